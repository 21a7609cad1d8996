"""Sets of field paths, as `metadata.managedFields` records them, and merging of objects along the schemas.

A path is a tuple of FieldsV1 elements: `f:spec`, `k:{"name":"ray-head"}`, `v:"item"`:
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/#System
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from local.kubernetes.schemas import list_type, member, resolve

Path = tuple[str, ...]
Schema = Mapping[str, Any]
MISSING = object()
# Defaults that the API server fills in before it looks at list keys.
_KEY_DEFAULTS = {"protocol": "TCP"}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, default=str)


def _is_granular_map(value: object, schema: Schema) -> bool:
    return isinstance(value, dict) and schema.get("x-kubernetes-map-type") != "atomic"


def _key(item: Mapping[str, Any], keys: Iterable[str]) -> str:
    chosen = {key: item.get(key, _KEY_DEFAULTS.get(key)) for key in keys}
    return "k:" + _compact({key: value for key, value in chosen.items() if value is not None})


def _items(schema: Schema) -> Schema:
    return resolve(schema.get("items"))


def paths(value: object, schema: Schema, at: Path = ()) -> set[Path]:
    """Every leaf of `value`, and every item of a keyed list."""
    if _is_granular_map(value, schema) and value:
        found: set[Path] = set()
        for name, child in value.items():  # type: ignore[attr-defined]
            found |= paths(child, member(schema, name), (*at, f"f:{name}"))
        return found
    if isinstance(value, list) and value:
        kind, keys = list_type(schema)
        if kind == "map" and all(isinstance(item, dict) for item in value):
            found = set()
            for item in value:
                here = (*at, _key(item, keys))
                found |= {here} | paths(item, _items(schema), here)
            return found
        if kind == "set":
            return {(*at, "v:" + _compact(item)) for item in value}
    return {at}


def value_at(value: object, schema: Schema, path: Path) -> object:
    """What stands at a path, or `MISSING`. Items of sets give themselves."""
    for element in path:
        kind, name = element[:2], element[2:]
        if kind == "f:":
            if not isinstance(value, dict) or name not in value:
                return MISSING
            value, schema = value[name], member(schema, name)
            continue
        if not isinstance(value, list):
            return MISSING
        if kind == "v:":
            value = next((item for item in value if _compact(item) == name), MISSING)
        else:
            keys = list_type(schema)[1]
            value = next((item for item in value if isinstance(item, dict) and _key(item, keys) == element), MISSING)
            schema = _items(schema)
        if value is MISSING:
            return MISSING
    return value


def merge(live: Any, applied: Any, schema: Schema) -> Any:
    """`applied` laid over `live`: maps and keyed lists field by field, everything else as a whole."""
    if _is_granular_map(applied, schema) and isinstance(live, dict):
        merged = dict(live)
        for name, child in applied.items():
            merged[name] = merge(live[name], child, member(schema, name)) if name in live else copy.deepcopy(child)
        return merged
    if isinstance(applied, list) and isinstance(live, list):
        kind, keys = list_type(schema)
        if kind == "map" and all(isinstance(item, dict) for item in (*applied, *live)):
            by_key = {_key(item, keys): item for item in applied}
            kept = [merge(item, by_key.pop(_key(item, keys)), _items(schema)) if _key(item, keys) in by_key else item for item in live]
            return kept + [copy.deepcopy(item) for item in by_key.values()]
        if kind == "set":
            return live + [item for item in applied if item not in live]
    return copy.deepcopy(applied)


def remove(value: Any, schema: Schema, path: Path) -> None:
    """Take the field at a path out of `value` in place, and the maps that are empty afterwards."""
    parents: list[tuple[Any, str]] = []
    for element in path[:-1]:
        parents.append((value, element))
        child = value_at(value, schema, (element,))
        if child is MISSING:
            return
        schema = member(schema, element[2:]) if element.startswith("f:") else _items(schema)
        value = child
    last = path[-1]
    if last.startswith("f:") and isinstance(value, dict):
        value.pop(last[2:], None)
    elif isinstance(value, list):
        gone = value_at(value, schema, (last,))
        if gone is not MISSING:
            value.remove(gone)
    for parent, element in reversed(parents):
        name = element[2:]
        if element.startswith("f:") and isinstance(parent, dict) and parent.get(name) in ({}, []):
            del parent[name]
        else:
            break


def to_fields_v1(owned: Iterable[Path]) -> dict[str, Any]:
    """The nested FieldsV1 form of a set of paths."""
    tree: dict[str, Any] = {}
    for path in sorted(owned):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        if path[-1].startswith("k:"):
            node["."] = {}
    return tree


def from_fields_v1(tree: Mapping[str, Any], at: Path = ()) -> set[Path]:
    """The paths that a FieldsV1 tree holds."""
    found: set[Path] = set()
    for element, below in tree.items():
        if element == ".":
            found.add(at)
            continue
        here = (*at, element)
        found |= from_fields_v1(below, here) if below else {here}
    return found
