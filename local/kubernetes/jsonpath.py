"""The part of kubectl's JSONPath that `KubernetesObjectValue` needs: fields, indices, `[*]`; anything else is refused.

https://kubernetes.io/docs/reference/kubectl/jsonpath/
"""

from __future__ import annotations

import json
import re
from typing import Any

from local.kubernetes.errors import Rejected

_STEP = re.compile(
    r"""\.(?P<field>(?:[^.\[\]\\'"]|\\.)+)|\[(?P<index>-?\d+)\]|\[(?P<every>\*)\]|\[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]"""
)


def read(value: Any, path: str) -> str:
    """What kubectl prints for a path (several results with spaces between them), empty when nothing is there."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    found = [value]
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise Rejected(f"JsonPath = {path}: only fields, indices and [*] are understood here", reason="BadRequest")
        position = step.end()
        found = [inner for outer in found for inner in _step(outer, step)]
    return " ".join(_shown(item) for item in found)


def _step(value: Any, step: re.Match[str]) -> list[Any]:
    name = step["field"] if step["field"] is not None else step["quoted"]
    if name is not None:
        name = name.replace("\\.", ".")
        return [value[name]] if isinstance(value, dict) and name in value else []
    if step["every"]:
        return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []
    index = int(step["index"])
    return [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, separators=(",", ":"))
