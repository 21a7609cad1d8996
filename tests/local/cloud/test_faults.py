"""Switches that make the cloud misbehave, and that a stack which fails on the way leaves nothing."""

from __future__ import annotations

import json
import time

import pytest

from config.problems import Failed
from local import lifecycle
from local.cloud import faults
from tests.local.cloud.conftest import Account, Refused, group, hyperpod, lustre, resource
from tests.local.cloud.test_rules import _until_running


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ('"x"', "a switch is an object"),
        ('{"resource": "A", "fial": "x"}', "fial is no key of a switch; these are: action, fail"),
        ('{"resource": "A"}', "needs `resource` with `fail` or `slow`"),
        ('{"resource": "A", "fail": "x", "action": "break"}', "is none of create, update, delete"),
        ('{"resource": "A", "slow": "long"}', '`slow` is a number from 0 to 86400, not "long"'),
        ('{"resource": "A", "fail": "x", "times": -1}', "`times` is a whole number"),
        ('{"resource": "A", "fail": "x", "times": 1.5}', "`times` is a whole number"),
        ('{"resource": "A", "slow": 1e300}', "`slow` is a number from 0"),
        ('{"resource": 7, "fail": "x"}', "`resource` is a text, not 7"),
        ('{"instance_group": "g"}', "or `instance_group` with `missing`"),
    ],
)
def test_a_switch_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(faults.InvalidFault, match=message):
        faults.parse(text)


def test_a_switch_finds_its_resource_by_type_logical_id_or_the_beginning_of_it() -> None:
    by_id = faults.Fault(resource="FileSystem", fail="x")
    by_type = faults.Fault(resource="AWS::FSx::FileSystem", fail="x", action="delete")
    assert by_id.hits("create", "FileSystem1A2B3C4D", "AWS::FSx::FileSystem")
    assert not by_id.hits("delete", "FileSystem1A2B3C4D", "AWS::FSx::FileSystem")
    assert by_type.hits("delete", "Other", "AWS::FSx::FileSystem")
    assert not by_type.hits("delete", "Other", "AWS::FSx::Volume")


def test_a_switch_is_spent_after_its_times() -> None:
    switches = faults.Faults(faults.parse('{"resource": "A", "fail": "no capacity", "times": 2}'))
    for _ in range(2):
        with pytest.raises(faults.Injected, match="no capacity"):
            switches.act("create", "A", "T")
    switches.act("create", "A", "T")


def test_switches_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.ENVIRONMENT, json.dumps([{"instance_group": "g", "missing": 2}]))
    assert faults.Faults.from_environment().missing_nodes("g") == 2


@pytest.mark.cloud
class TestInTheCloud:
    def test_a_failed_create_rolls_the_stack_back_and_leaves_nothing(self, account: Account) -> None:
        before = lifecycle.inventory()
        lifecycle.set_faults([{"resource": "HyperPod", "fail": "no capacity"}])
        with pytest.raises(Refused, match="no capacity") as failure:
            account.deploy("fails", hyperpod())
        assert failure.value.status == "ROLLBACK_COMPLETE"
        now = lifecycle.inventory()
        assert now.pop("CloudFormation stack") == ["fails ROLLBACK_COMPLETE"]
        assert now == before
        assert account.destroy("fails") == "DELETE_COMPLETE"
        assert lifecycle.inventory() == before

    def test_a_failed_update_goes_back_to_what_was(self, account: Account) -> None:
        account.deploy("grow", lustre())
        lifecycle.set_faults([{"resource": "AWS::FSx::FileSystem", "action": "update", "fail": "busy", "times": 1}])
        with pytest.raises(Refused, match="busy") as failure:
            account.deploy("grow", lustre(StorageCapacity=2400))
        assert failure.value.status == "UPDATE_ROLLBACK_COMPLETE"
        assert account.client("fsx").describe_file_systems()["FileSystems"][0]["StorageCapacity"] == 1200

    def test_a_failed_delete_can_be_repeated(self, account: Account) -> None:
        account.deploy("stays", lustre())
        lifecycle.set_faults([{"resource": "FileSystem", "action": "delete", "fail": "busy"}])
        assert account.destroy("stays") == "DELETE_FAILED"
        lifecycle.set_faults([])
        assert account.destroy("stays") == "DELETE_COMPLETE"

    def test_types_of_ministack_fail_too(self, account: Account) -> None:
        lifecycle.set_faults([{"resource": "AWS::EC2::Subnet", "fail": "no addresses"}])
        with pytest.raises(Refused, match="no addresses"):
            account.deploy("fails", lustre())

    def test_a_slow_resource_holds_up_its_stack_only(self, account: Account) -> None:
        lifecycle.set_faults([{"resource": "Vpc", "slow": 3.0}])
        cloudformation = account.client("cloudformation")
        cloudformation.create_stack(StackName="slow", TemplateBody=json.dumps({"Resources": lustre()}))
        account.stacks.append("slow")
        began = time.monotonic()
        (found,) = cloudformation.describe_stacks(StackName="slow")["Stacks"]
        assert (found["StackStatus"], time.monotonic() - began < 2) == ("CREATE_IN_PROGRESS", True), "who asks does not wait"
        account.client("sts").get_caller_identity()
        account.deploy("quick", {"Address": resource("AWS::EC2::EIP", Domain="vpc")})
        assert account._settled("slow")["StackStatus"] == "CREATE_COMPLETE"
        ended = {name: account._events(name)[0]["Timestamp"] for name in ("slow", "quick")}
        assert ended["quick"] < ended["slow"], "the newest event of a stack is its end"

    def test_nodes_stay_away_and_the_events_say_why(self, account: Account) -> None:
        lifecycle.set_faults([{"instance_group": "workers", "missing": 2}])
        account.deploy("cluster", hyperpod(group("head"), group("workers", "ml.g7e.12xlarge", 3)))
        _until_running(account, 2)
        sagemaker = account.client("sagemaker")
        events = sagemaker.list_cluster_events(ClusterName="tests-hyperpod")["Events"]
        failed = [e["Description"] for e in events if "Insufficient capacity for ml.g7e.12xlarge" in e["Description"]]
        assert len(failed) == 2
        groups = sagemaker.describe_cluster(ClusterName="tests-hyperpod")["InstanceGroups"]
        assert [(g["InstanceGroupName"], g["CurrentCount"], g["TargetCount"]) for g in groups] == [("head", 1, 1), ("workers", 1, 3)]

    def test_the_admin_route_refuses_what_it_does_not_understand(self, account: Account) -> None:
        with pytest.raises(Failed, match="is no key of a switch"):
            lifecycle.set_faults([{"resource": "A", "fial": "x"}])
        assert lifecycle.admin("GET", "faults") == []

    def test_a_stack_that_is_deleted_while_it_is_made_leaves_nothing(self, account: Account) -> None:
        before = lifecycle.inventory()
        lifecycle.set_faults([{"resource": "SubnetA", "slow": 1.0}])
        cloudformation = account.client("cloudformation")
        identifier = cloudformation.create_stack(StackName="hasty", TemplateBody=json.dumps({"Resources": lustre()}))["StackId"]
        cloudformation.delete_stack(StackName="hasty")
        assert account._settled(identifier)["StackStatus"] == "DELETE_COMPLETE"
        time.sleep(1.2)  # as long as what was being made may still take
        assert lifecycle.inventory() == before
