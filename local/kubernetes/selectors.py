"""Label and field selectors as they come in a query string.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from local.kubernetes.errors import Rejected
from local.kubernetes.scheduling import matches_expression

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)")
_EQUAL = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
_EXISTS = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s!=,()]+)")


def labels_match(labels: Mapping[str, str] | None, selector: str) -> bool:
    """Whether labels satisfy `a=b,c in (d,e),!f`. Raises `Rejected` (BadRequest) when the selector cannot be read."""
    return all(matches_expression(labels or {}, requirement) for requirement in parse(selector))


def parse(selector: str) -> list[dict[str, Any]]:
    """The requirements of a label selector."""
    found: list[dict[str, Any]] = []
    rest = selector.strip()
    while rest:
        if match := _SET.match(rest):
            values = [value.strip() for value in match["values"].split(",")]
            found.append({"key": match["key"], "operator": "In" if match["operator"] == "in" else "NotIn", "values": values})
        elif match := _EQUAL.match(rest):
            found.append({"key": match["key"], "operator": "NotIn" if match["operator"] == "!=" else "In", "values": [match["value"]]})
        elif match := _EXISTS.match(rest):
            found.append({"key": match["key"], "operator": "DoesNotExist" if match["no"] else "Exists"})
        else:
            raise Rejected(f"unable to parse requirement: {rest!r} in label selector {selector!r}", reason="BadRequest")
        rest = rest[match.end() :].lstrip()
        if rest and not rest.startswith(","):
            text = f"unable to parse requirement: found {rest!r}, expected: ',' in label selector {selector!r}"
            raise Rejected(text, reason="BadRequest")
        rest = rest[1:].lstrip()
    return found


def fields_match(value: Mapping[str, Any], selector: str) -> bool:
    """Whether an object satisfies `metadata.name=x,status.phase!=Running`."""
    for part in filter(None, selector.split(",")):
        match = re.fullmatch(r"\s*([\w.\-]+)\s*(==|=|!=)\s*(.*?)\s*", part)
        if match is None:
            raise Rejected(f"invalid selector: {selector!r}; can't understand {part!r}", reason="BadRequest")
        found: Any = value
        for name in match[1].split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if (str(found if found is not None else "") == match[3]) is (match[2] == "!="):
            return False
    return True
