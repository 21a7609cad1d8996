"""The three patch styles beside server-side apply: JSON patch, JSON merge patch, strategic merge patch.

https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from local.kubernetes.errors import Rejected
from local.kubernetes.schemas import member, resolve

STYLES = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
}


def patched(live: dict[str, Any], content: Any, *, style: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A patched copy of `live`. Raises `Rejected` when the patch cannot be read or does not fit."""
    if style == "json":
        return _json(live, content)
    if not isinstance(content, dict):
        raise Rejected("a merge patch must be an object", reason="BadRequest")
    if style == "merge":
        return _merge(copy.deepcopy(live), content)  # type: ignore[no-any-return]
    if style == "strategic":
        return _strategic(copy.deepcopy(live), content, schema)  # type: ignore[no-any-return]
    raise Rejected(f"patch style {style!r} is not one of json, merge, strategic", reason="UnsupportedMediaType")


def _json(live: dict[str, Any], content: Any) -> dict[str, Any]:
    import jsonpatch

    if not isinstance(content, list) or not all(isinstance(operation, dict) for operation in content):
        raise Rejected("a JSON patch must be a list of operations", reason="BadRequest")
    try:
        result: dict[str, Any] = jsonpatch.apply_patch(live, content)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError, KeyError) as error:
        raise Rejected(f"the server rejected our request due to an error in our request: {error}") from None
    return result


def _merge(live: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = live if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _strategic(live: Any, patch: dict[str, Any], schema: Mapping[str, Any]) -> Any:
    result: dict[str, Any] = live if isinstance(live, dict) else {}
    match patch.get("$patch"):
        case "replace":
            return {name: copy.deepcopy(value) for name, value in patch.items() if name != "$patch"}
        case "delete":
            return {}
    if "$retainKeys" in patch:
        result = {name: value for name, value in result.items() if name in patch["$retainKeys"]}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            target = name.partition("/")[2]
            result[target] = [item for item in result.get(target, []) if item not in value]
        if name.startswith("$"):
            continue
        known = _annotated(schema, name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = _strategic(result.get(name), value, member(schema, name))
        elif isinstance(value, list) and known.get("x-kubernetes-patch-strategy", "").startswith("merge"):
            result[name] = _list(result.get(name) or [], value, known)
        else:
            result[name] = copy.deepcopy(value)
    return result


def _annotated(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema.get("properties", {}).get(name, {})
    return found


def _list(live: list[Any], patch: list[Any], schema: Mapping[str, Any]) -> list[Any]:
    key = schema.get("x-kubernetes-patch-merge-key")
    if key is None:
        return live + [item for item in patch if item not in live]
    items = resolve(schema.get("items"))
    result = list(live)
    for item in patch:
        if not isinstance(item, dict):
            raise Rejected(f"items of a list merged by {key!r} must be objects", reason="BadRequest")
        if item.get("$patch") == "replace":
            return [copy.deepcopy(other) for other in patch if other is not item]
        if key not in item:
            raise Rejected(f"map: {item} does not contain declared merge key: {key}", reason="BadRequest")
        index = next((i for i, other in enumerate(result) if other.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [other for other in result if other.get(key) != item[key]]
        elif index is None:
            result.append(_strategic({}, item, items))
        else:
            result[index] = _strategic(result[index], item, items)
    return result
