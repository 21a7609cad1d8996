"""Server-side apply: which manager owns which field, what an apply changes, where two managers disagree.

https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from local.kubernetes.errors import Rejected
from local.kubernetes.fields import MISSING, Path, Schema, from_fields_v1, merge, paths, remove, to_fields_v1, value_at

# The API server's own: nobody owns them.
_NOT_OWNED = (
    ("f:apiVersion",), ("f:kind",), ("f:status",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace"),
    ("f:metadata", "f:uid"), ("f:metadata", "f:resourceVersion"), ("f:metadata", "f:generation"),
    ("f:metadata", "f:creationTimestamp"), ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:managedFields"),
    ("f:metadata", "f:selfLink"), ("f:metadata", "f:generateName"), ("f:metadata", "f:deletionGracePeriodSeconds"),
)  # fmt: skip
SERVER_SET_METADATA = tuple(path[1][2:] for path in _NOT_OWNED if len(path) == 2 and path[1] not in ("f:name", "f:namespace"))


def owned_paths(value: Mapping[str, Any], schema: Schema) -> set[Path]:
    """The paths of an object that a manager can own."""
    return {path for path in paths(dict(value), schema) if path and not any(path[: len(skip)] == skip for skip in _NOT_OWNED)}


def _entries(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    return copy.deepcopy(list(value.get("metadata", {}).get("managedFields", ())))


def _entry(*, manager: str, operation: str, api_version: str, owned: set[Path], now: str) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields_v1(owned),
        "manager": manager,
        "operation": operation,
        "time": now,
    }


def _with_owned(entries: list[dict[str, Any]], mine: dict[str, Any] | None, *, lost: set[Path]) -> list[dict[str, Any]]:
    """The others' entries less what they lost, then mine; entries that own nothing go."""
    kept: list[dict[str, Any]] = []
    for entry in entries:
        owned = from_fields_v1(entry["fieldsV1"])
        left = owned - lost
        if left:
            kept.append(entry if left == owned else {**entry, "fieldsV1": to_fields_v1(left)})
    return kept + ([mine] if mine is not None and mine["fieldsV1"] else [])


def apply(
    live: dict[str, Any] | None,
    applied: dict[str, Any],
    *,
    schema: Schema,
    manager: str,
    force: bool,
    now: str,
    name: str,
) -> dict[str, Any]:
    """The object after one server-side apply.

    Raises `Rejected` (Conflict) when another manager owns a field with another value and `force` is not set.
    """
    entries = _entries(live or {})
    wanted = owned_paths(applied, schema)
    mine = next((e for e in entries if e["manager"] == manager and e["operation"] == "Apply"), None)
    others = [entry for entry in entries if entry is not mine]
    before = from_fields_v1(mine["fieldsV1"]) if mine else set()
    held: set[Path] = set()
    disagreements: list[str] = []
    taken: set[Path] = set()
    for entry in others:
        owned = from_fields_v1(entry["fieldsV1"])
        held |= owned
        for path in sorted(owned & wanted):
            if path[-1].startswith("k:") or live is None:
                continue
            if value_at(live, schema, path) != value_at(applied, schema, path):
                taken.add(path)
                disagreements.append(f'conflict with "{entry["manager"]}": {readable(path)}')
    if disagreements and not force:
        noun = "conflict" if len(disagreements) == 1 else "conflicts"
        text = f"Apply failed with {len(disagreements)} {noun} on {name}: {'; '.join(disagreements)}"
        raise Rejected(text, reason="Conflict")
    merged = merge(live, applied, schema) if live is not None else copy.deepcopy(applied)
    for path in sorted(before - wanted, key=len):
        # An empty map that was applied before and has content now is not gone.
        if not any(other[: len(path)] == path for other in held | wanted):
            remove(merged, schema, path)
    own = _entry(manager=manager, operation="Apply", api_version=applied["apiVersion"], owned=wanted, now=now)
    if mine is not None and before == wanted:
        own["time"] = mine["time"]
    merged.setdefault("metadata", {})["managedFields"] = _with_owned(others, own, lost=taken)
    return merged


def update(live: Mapping[str, Any] | None, new: dict[str, Any], *, schema: Schema, manager: str, now: str) -> None:
    """Record in `new` what a create, PUT or patch by `manager` changed; other managers lose those fields."""
    entries = _entries(live or {})
    present = owned_paths(new, schema)
    if live is None:
        changed = present
        gone: set[Path] = set()
    else:
        had = owned_paths(live, schema)
        gone = had - present
        changed = {
            path for path in present if not path[-1].startswith("k:") and value_at(live, schema, path) != value_at(new, schema, path)
        } | (present - had)
    mine = next((e for e in entries if e["manager"] == manager and e["operation"] == "Update"), None)
    before = from_fields_v1(mine["fieldsV1"]) if mine else set()
    others = [entry for entry in entries if entry is not mine]
    owned = (before & present) | changed
    own = _entry(manager=manager, operation="Update", api_version=new["apiVersion"], owned=owned, now=now)
    if mine is not None and owned == before:
        own["time"] = mine["time"]
    new.setdefault("metadata", {})["managedFields"] = _with_owned(others, own, lost=changed | gone)


def readable(path: Path) -> str:
    """`.spec.containers[name="x"].image`, as conflicts name a field."""
    return "".join(f".{element[2:]}" if element.startswith("f:") else f"[{element[2:]}]" for element in path)


__all__ = ["MISSING", "SERVER_SET_METADATA", "apply", "owned_paths", "readable", "update"]
