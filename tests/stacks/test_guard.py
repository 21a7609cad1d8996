"""The guard in front of the file system: what may not change is named, and a rollback passes."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from stacks.handlers import guard

STACK = "arn:aws:cloudformation:us-west-2:123456789012:stack/hyperpod-rl-mine-Data/1"
KEPT = {"subnet_ids": ["subnet-1"], "kms_key_id": "key"}


def _guarded(kind: str, kept: dict[str, Any], *, was: dict[str, Any] = KEPT, physical: str = "") -> dict[str, Any]:
    properties = {"What": "file system", "Fix": "Take it back", "Kept": kept}
    old = {"OldResourceProperties": {**properties, "Kept": was}} if kind == "Update" else {}
    return {
        "RequestType": kind,
        "StackId": STACK,
        "ResourceProperties": properties,
        "PhysicalResourceId": physical or guard.digest(was),
        **old,
    }


def test_the_guard_names_what_would_replace_the_file_system() -> None:
    with pytest.raises(RuntimeError, match="changing subnet_ids would replace the file system"):
        guard.work(_guarded("Update", {**KEPT, "subnet_ids": ["subnet-2"]}))
    with pytest.raises(RuntimeError, match="changing backup_id"):
        guard.work(_guarded("Update", KEPT, was={**KEPT, "backup_id": "backup-1"}))


def test_the_guard_lets_a_rollback_and_everything_else_pass() -> None:
    physical, _ = guard.work({**_guarded("Create", KEPT), "PhysicalResourceId": None})
    assert physical == guard.digest(KEPT)
    changed = {**KEPT, "subnet_ids": ["subnet-2"]}
    assert guard.work(_guarded("Update", KEPT, was=changed, physical=physical)) == (physical, {})
    assert guard.work(_guarded("Delete", KEPT)) == (physical, {})


def test_a_restore_passes_and_so_does_its_rollback_but_not_taking_the_backup_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    restored, now = {**KEPT, "backup_id": "backup-1"}, 1_800_000_000.0
    monkeypatch.setattr(guard.time, "time", lambda: now)
    physical, _ = guard.work(_guarded("Update", restored))
    assert physical != guard.digest(KEPT)
    assert guard.work(_guarded("Update", restored, was=restored, physical=physical)) == (physical, {}), "an update of something else"
    assert guard.work(_guarded("Update", KEPT, was=restored, physical=physical)) == (guard.digest(KEPT), {}), "the rollback"
    again, _ = guard.work(_guarded("Update", {**KEPT, "backup_id": "backup-2"}, was=restored, physical=physical))
    assert again.startswith(guard.digest({**KEPT, "backup_id": "backup-2"}))
    with pytest.raises(RuntimeError, match="changing subnet_ids would replace"):
        guard.work(_guarded("Update", {**restored, "subnet_ids": ["subnet-2"]}, was=restored, physical=physical))
    now += guard.ROLLBACK_SECONDS
    with pytest.raises(RuntimeError, match="changing backup_id would replace"):
        guard.work(_guarded("Update", KEPT, was=restored, physical=physical))


NOW = {**KEPT, "per_unit_storage_throughput": "250", "storage_type": "SSD"}


class _Account:
    """CloudFormation and FSx as the guard asks them: a stack with one file system, or with none yet."""

    class exceptions:
        """botocore makes one class for each error code."""

        class FileSystemNotFound(ClientError):
            """There was one."""

    def __init__(self, *, there: bool = True, throughput: int = 250, denials: int = 0) -> None:
        self._there, self._throughput, self._denials = there, throughput, denials

    def describe_stack_resources(self, *, StackName: str) -> dict[str, Any]:
        assert StackName == STACK
        if self._denials:
            self._denials -= 1
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not yet"}}, "DescribeStackResources")
        system = {"ResourceType": "AWS::FSx::FileSystem", "LogicalResourceId": "FileSystem", "PhysicalResourceId": "fs-1"}
        guarded = {"ResourceType": "Custom::Guard", "LogicalResourceId": "Guard", "PhysicalResourceId": "guard/1"}
        return {"StackResources": [guarded, *([system] if self._there else [])]}

    def describe_file_systems(self, *, FileSystemIds: list[str]) -> dict[str, Any]:
        assert FileSystemIds == ["fs-1"]
        lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": self._throughput}
        return {"FileSystems": [{"FileSystemTypeVersion": "2.15", "StorageType": "SSD", "LustreConfiguration": lustre}]}


def test_what_is_kept_since_a_later_version_is_learned_from_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first deploy after an upgrade of this project is guarded like every other."""
    there = _Account()
    monkeypatch.setattr(guard.boto3, "client", lambda _: there)
    physical, _ = guard.work(_guarded("Update", NOW))
    assert physical == guard.digest(NOW), "what is there is what is wanted"
    assert guard.work(_guarded("Update", KEPT, was=NOW, physical=physical)) == (guard.digest(KEPT), {}), "its rollback"
    with pytest.raises(RuntimeError, match="changing per_unit_storage_throughput would replace the file system"):
        guard.work(_guarded("Update", {**NOW, "per_unit_storage_throughput": "500"}))
    with pytest.raises(RuntimeError, match="changing subnet_ids would"):
        guard.work(_guarded("Update", {**NOW, "subnet_ids": ["subnet-2"]}))
    monkeypatch.setattr(guard.boto3, "client", lambda _: _Account(there=False))
    assert guard.work(_guarded("Update", {**NOW, "storage_type": "HDD"}))[0].startswith("guard/"), "nothing is there that could be lost"


def test_what_is_known_may_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(guard, "boto3")
    for name, value in (("per_unit_storage_throughput", "500"), ("storage_type", "HDD")):
        with pytest.raises(RuntimeError, match=f"changing {name} would replace the file system"):
            guard.work(_guarded("Update", {**NOW, name: value}, was=NOW))


def test_a_right_that_comes_some_seconds_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(guard.time, "sleep", waited.append)
    late = _Account(denials=3)
    monkeypatch.setattr(guard.boto3, "client", lambda _: late)
    assert guard.work(_guarded("Update", NOW))[0] == guard.digest(NOW)
    assert waited == [guard.DENIED_SECONDS] * 3
    never = _Account(denials=99)
    monkeypatch.setattr(guard.boto3, "client", lambda _: never)
    with pytest.raises(ClientError, match="not yet"):
        guard.work(_guarded("Update", NOW))
