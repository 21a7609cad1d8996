"""Upgrades as the pages describe them, on the local cloud: what changes in place, what is replaced, what a step needs before it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from local import lifecycle
from tests.docs.pages import command
from tests.local.cloud.conftest import Account, chart, eks, group, hyperpod, lustre, ref, resource
from tests.operations.aws_cli import aws

pytestmark = pytest.mark.cloud


@pytest.fixture(autouse=True)
def _shell(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of `hyperpod-rl local env`."""
    for name, value in lifecycle.environment().items():
        monkeypatch.setenv(name, value)


def _until(true: Callable[[], Any]) -> None:
    limit = time.monotonic() + 120
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_kubernetes_minor_changes_in_place(account: Account) -> None:
    old = eks()
    account.deploy("cluster", old)
    made = account.client("eks").describe_cluster(name="tests")["cluster"]
    new = eks()
    new["Eks"]["Properties"]["Version"] = "1.35"
    account.deploy("cluster", new)
    after = account.client("eks").describe_cluster(name="tests")["cluster"]
    assert (made["version"], after["version"]) == ("1.34", "1.35")
    assert after["endpoint"] == made["endpoint"], "the same cluster"


def test_an_add_on_changes_in_place(account: Account) -> None:
    def with_version(version: str) -> dict[str, Any]:
        return {**eks(), "Addon": resource("AWS::EKS::Addon", ["Eks"], AddonName="coredns", ClusterName=ref("Eks"), AddonVersion=version)}

    account.deploy("cluster", with_version("v1.12.3-eksbuild.1"))
    client = account.client("eks")
    made = client.describe_addon(clusterName="tests", addonName="coredns")["addon"]
    account.deploy("cluster", with_version("v1.12.4-eksbuild.1"))
    after = client.describe_addon(clusterName="tests", addonName="coredns")["addon"]
    assert after["addonVersion"] == "v1.12.4-eksbuild.1"
    assert after["addonArn"] == made["addonArn"]


def test_a_new_chart_of_kuberay_is_the_same_release(account: Account) -> None:
    def with_version(version: str) -> dict[str, Any]:
        made = chart("kuberay-operator")
        made["Properties"] |= {"Chart": "kuberay-operator", "Version": version}
        return {**eks(), "KubeRay": {**made, "DependsOn": ["Eks"]}}

    account.deploy("cluster", with_version("1.7.0"))
    account.deploy("cluster", with_version("1.7.1"))
    events = account.client("cloudformation").describe_stack_events(StackName="cluster")["StackEvents"]
    ids = {event["PhysicalResourceId"] for event in events if event["LogicalResourceId"] == "KubeRay" and event.get("PhysicalResourceId")}
    assert len(ids) == 1, "upgraded, not removed and installed: RayClusters live through it"


def test_new_software_replaces_the_nodes_of_one_group_at_a_time(account: Account) -> None:
    account.deploy("hyper", hyperpod(group("head"), group("workers", count=2)))
    client = account.client("sagemaker")

    def nodes() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for node in client.list_cluster_nodes(ClusterName="tests-hyperpod")["ClusterNodeSummaries"]:
            if node["InstanceStatus"]["Status"] == "Running":
                found.setdefault(node["InstanceGroupName"], set()).add(node["InstanceId"])
        return found

    _until(lambda: {name: len(ids) for name, ids in nodes().items()} == {"head": 1, "workers": 2})
    before = nodes()
    line = command("11-upgrade.md", "aws sagemaker update-cluster-software")
    aws(line.replace("hyperpod-rl-mine", "tests-hyperpod").replace("InstanceGroupName=system", "InstanceGroupName=workers"))
    _until(lambda: len(nodes().get("workers", ())) == 2 and not nodes()["workers"] & before["workers"])
    assert nodes()["head"] == before["head"]


def test_a_file_system_comes_back_from_a_backup_as_another_one(account: Account) -> None:
    fsx = account.client("fsx")
    made = account.deploy("data", lustre(), {"Id": ref("FileSystem")})
    line = command("12-disaster.md", "aws fsx create-backup", FILE_SYSTEM=made["Id"])
    backup = json.loads(aws(f"{line} --output json"))["Backup"]["BackupId"]
    _until(lambda: fsx.describe_backups(BackupIds=[backup])["Backups"][0]["Lifecycle"] == "AVAILABLE")
    assert {"AVAILABLE", backup} <= set(aws(command("12-disaster.md", "aws fsx describe-backups")).replace("|", " ").split())
    fsx.delete_file_system(FileSystemId=made["Id"])  # the disaster
    restored = account.deploy("data", lustre(BackupId=backup), {"Id": ref("FileSystem")})
    assert restored["Id"] != made["Id"]
    assert [system["FileSystemId"] for system in fsx.describe_file_systems()["FileSystems"]] == [restored["Id"]]
    account.destroy("data")
    fsx.delete_backup(BackupId=backup)
