"""Which changes need a word though every template of them deploys: nodes that go, checkpoints that nothing can read any more."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from operations.review import show
from operations.review.compare import compare
from operations.review.sides import Side, StackTemplate
from stacks.handlers import guard

Json = dict[str, Any]

BEFORE = {"system": 2, "head": 1, "workers": 3}


def hyperpod(groups: dict[str, int], **more: Any) -> Side:
    listed = [{"InstanceGroupName": name, "InstanceCount": count, "InstanceType": "ml.m5.xlarge"} for name, count in groups.items()]
    body = {"Type": "AWS::SageMaker::Cluster", "Properties": {"ClusterName": "c", "InstanceGroups": listed}}
    return Side("some", (StackTemplate("HyperPod", "t-HyperPod", "aws://1/r", {"Resources": {"HyperPod": body}}),), **more)


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        (BEFORE, []),
        ({**BEFORE, "workers": 4}, []),
        ({**BEFORE, "workers": 2}, ["workers"]),
        ({"system": 2, "head": 1, "gpus": 3}, ["workers"]),
        ({"system": 2, "main": 1, "workers": 3}, ["head"]),
        (dict.fromkeys(BEFORE, 0), ["system", "head", "workers"]),
    ],
)
def test_nodes_that_go_need_a_word(after: dict[str, int], lost: list[str]) -> None:
    review = compare("e", hyperpod(BEFORE), hyperpod(after), percent=100)
    assert [risk.id for risk in review.risks] == [f"nodes:HyperPod/{group}" for group in lost]
    assert review.worst.word == ("node replacement" if lost else "nothing")
    assert all("ends" in risk.sentence for risk in review.risks)


@pytest.mark.parametrize(
    ("change", "stopped"),
    [
        ({"trainer.policy.optimizer_config.lr": 1e-6}, []),
        ({"trainer.policy.model.lora.rank": 64}, ["trainer.policy.model.lora.rank"]),
        ({"trainer.placement.policy_num_nodes": 2}, ["trainer.placement.policy_num_nodes"]),
        ({"trainer.placement.policy_num_nodes": 6, "trainer.placement.policy_num_gpus_per_node": 1}, []),
        ({"trainer.bf16": True}, []),  # SkyRL's default, now written
    ],
)
def test_what_no_checkpoint_survives_needs_a_word(change: dict[str, Any], stopped: list[str]) -> None:
    old = {"trainer.policy.model.lora.rank": 32, "trainer.placement.policy_num_nodes": 3, "trainer.placement.policy_num_gpus_per_node": 2}
    base, head = (hyperpod(BEFORE, facts={"overrides": overrides}) for overrides in (old, old | change))
    review = compare("e", base, head)
    assert [risk.id for risk in review.risks] == [f"resume:{key}" for key in stopped]
    assert all("no existing run can resume" in risk.sentence for risk in review.risks)


def test_a_line_that_nearly_names_a_risk_says_which_one_is_meant() -> None:
    after = hyperpod({**BEFORE, "workers": 2})
    review = compare("e", hyperpod(BEFORE), after, text="Accept: nodes:Hyperpod/worker, widen:Network/NodesGroup, cost:+30%")
    assert review.exit_code == 1
    assert review.hints == ("the text accepts nodes:Hyperpod/worker, which is no risk here: did you mean nodes:HyperPod/workers?",)
    shown = [text for _, text in show.lines(review)]
    assert any(review.hints[0] in line for line in shown)
    assert any(line.endswith("Accept: nodes:HyperPod/workers") for line in shown), "how to accept it"
    done = compare("e", hyperpod(BEFORE), after, text="Accept: nodes:HyperPod/workers")
    assert (done.exit_code, done.hints) == (0, ())
    assert not any("To accept" in text for _, text in show.lines(done))


def test_what_a_deploy_leaves_behind_costs_on() -> None:
    """Under another name the old environment stays: both cost."""
    base, head = hyperpod(BEFORE), hyperpod(BEFORE)
    moved = replace(head, stacks=tuple(replace(stack, stack_name="other-HyperPod") for stack in head.stacks))
    review = compare("e", base, moved)
    assert review.after.hourly == pytest.approx(2 * review.before.hourly)
    assert "cost:+100%" in [risk.id for risk in review.risks]


KEPT: Json = {"subnet_ids": ["a"], "per_unit_storage_throughput": "250", "storage_type": "SSD"}


def data(**kept: Any) -> Side:
    lustre = {"PerUnitStorageThroughput": int(kept["per_unit_storage_throughput"]), "DeploymentType": "PERSISTENT_2"}
    properties = {"SubnetIds": kept["subnet_ids"], "StorageType": kept["storage_type"], "LustreConfiguration": lustre}
    properties |= {"BackupId": kept["backup_id"]} if "backup_id" in kept else {}
    file_system = {"Type": "AWS::FSx::FileSystem", "Properties": properties, "UpdateReplacePolicy": "Retain", "DeletionPolicy": "Retain"}
    body = {"FileSystem": file_system, "Guard": {"Type": "Custom::Guard", "Properties": {"What": "file system", "Fix": "-", "Kept": kept}}}
    return Side("some", (StackTemplate("Data", "t-Data", "aws://1/r", {"Resources": body}),))


def unguarded(side: Side) -> Side:
    """As an older version of this project made it: its guard keeps the subnet only."""
    (stack,) = side.stacks
    template = copy.deepcopy(dict(stack.template))
    kept = template["Resources"]["Guard"]["Properties"]["Kept"]
    template["Resources"]["Guard"]["Properties"]["Kept"] = {name: kept[name] for name in kept if name not in guard.LATER}
    return replace(side, stacks=(replace(stack, template=template),))


@pytest.mark.parametrize(
    ("change", "lets"),
    [
        ({"subnet_ids": ["b"]}, False),
        ({"per_unit_storage_throughput": "500"}, False),
        ({"storage_type": "HDD"}, False),
        ({"backup_id": "backup-1"}, True),
        ({"backup_id": "backup-1", "storage_type": "HDD"}, False),
    ],
)
@pytest.mark.parametrize("older", [False, True])
def test_review_and_guard_agree_on_what_replaces_the_file_system(
    change: Json, lets: bool, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, head = data(**KEPT), data(**KEPT | change)
    monkeypatch.setattr(guard, "_deployed", lambda stack, names: {name: KEPT[name] for name in names if name in KEPT})
    base = unguarded(base) if older else base
    old, new = (side.stacks[0].template["Resources"]["Guard"]["Properties"] for side in (base, head))
    event = {
        "RequestType": "Update",
        "StackId": "t-Data",
        "ResourceProperties": new,
        "OldResourceProperties": old,
        "PhysicalResourceId": guard.digest(old["Kept"]),
    }
    try:
        guard.work(event)
        passes = True
    except RuntimeError:
        passes = False
    review = compare("e", base, head)
    assert [risk.id for risk in review.risks] == ["replace:Data/FileSystem" if passes else "refused:Data/FileSystem"]
    assert review.worst.word == ("data loss" if passes else "nothing")
    assert passes == lets
