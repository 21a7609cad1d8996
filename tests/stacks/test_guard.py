"""The guard in front of the file system: what may not change is named, and a rollback passes."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.handlers import guard

KEPT = {"subnet_ids": ["subnet-1"], "kms_key_id": "key"}


def _guarded(kind: str, kept: dict[str, Any], *, was: dict[str, Any] = KEPT, physical: str = "") -> dict[str, Any]:
    properties = {"What": "file system", "Fix": "Take it back", "Kept": kept}
    old = {"OldResourceProperties": {**properties, "Kept": was}} if kind == "Update" else {}
    return {"RequestType": kind, "ResourceProperties": properties, "PhysicalResourceId": physical or guard.digest(was), **old}


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


def test_what_is_kept_since_a_later_version_may_come_but_not_change() -> None:
    now = {**KEPT, "per_unit_storage_throughput": "250", "storage_type": "SSD"}
    physical, _ = guard.work(_guarded("Update", now))
    assert physical == guard.digest(now), "a stack of an older version learns them"
    assert guard.work(_guarded("Update", KEPT, was=now, physical=physical)) == (guard.digest(KEPT), {}), "its rollback"
    for name, value in (("per_unit_storage_throughput", "500"), ("storage_type", "HDD")):
        with pytest.raises(RuntimeError, match=f"changing {name} would replace the file system"):
            guard.work(_guarded("Update", {**now, name: value}, was=now))
    with pytest.raises(RuntimeError, match="changing subnet_ids would"):
        guard.work(_guarded("Update", {**now, "subnet_ids": ["subnet-2"]}))
