"""Values of a template as a reader knows them: references as `${Name}`, joined texts as one, JSON texts as data."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# What names a member of a list, so that one more member is not a change of all that follow.
_NAMES = ("InstanceGroupName", "Key", "Name", "name", "PolicyName", "Sid", "Id", "ServiceAccount")
_ABSENT = object()
LONGEST = 90
# `${Name}` and `${Name.Attribute}` in Fn::Sub; `${!Name}` is a text.
_SUBSTITUTED = re.compile(r"\$\{([A-Za-z0-9]+)(\.[^}]*)?\}")


@dataclass(frozen=True)
class Difference:
    """One place that differs. `before` and `after` are texts as shown, empty where there is nothing."""

    path: str
    before: str
    after: str

    def sentence(self) -> str:
        """For people, on one line."""
        if not self.before:
            return f"{self.path}: + {self.after}"
        if not self.after:
            return f"{self.path}: - {self.before}"
        return f"{self.path}: {self.before} -> {self.after}"


def named(stack: str, reference: Any) -> str:
    """`Stack/LogicalId` of what a plain reference within a stack (`${Id}`, `${Id.Attribute}`) names; any other text as it is."""
    return re.sub(r"^\$\{([^.}]+).*\}$", rf"{stack}/\1", str(reference))


def plain(value: Any, mark: Callable[[str], str] = str) -> Any:
    """A value without intrinsic functions: `{"Ref": "X"}` becomes `${X}`. `mark` may write a reference's name in another way."""
    if isinstance(value, Mapping):
        if len(value) == 1:
            ((key, inner),) = value.items()
            if key == "Ref":
                return f"${{{mark(str(inner))}}}"
            if key == "Fn::GetAtt":
                resource, _, attribute = str(inner).partition(".") if isinstance(inner, str) else (str(inner[0]), "", str(inner[1]))
                return f"${{{mark(resource)}.{attribute}}}"
            if key == "Fn::Sub" and isinstance(inner, str):
                return _SUBSTITUTED.sub(lambda found: f"${{{mark(found[1])}{found[2] or ''}}}", inner)
            if key == "Fn::Sub" and isinstance(inner, list) and len(inner) == 2 and isinstance(inner[1], Mapping):
                own, given = {str(name) for name in inner[1]}, plain(inner[1], mark)
                return _SUBSTITUTED.sub(
                    lambda found: _text(given[found[1]]) if found[1] in own else f"${{{mark(found[1])}{found[2] or ''}}}", str(inner[0])
                )
            if key == "Fn::Join" and isinstance(inner, list) and len(inner) == 2 and isinstance(inner[1], list):
                return str(inner[0]).join(_text(plain(part, mark)) for part in inner[1])
        return {str(key): plain(inner, mark) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(item, mark) for item in value]
    return value


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Where two plain values differ, the deepest places first named. JSON in texts is looked into."""
    before, after = _parsed(before), _parsed(after)
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}/{key}" if path else str(key))
        return
    if isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
        return
    if isinstance(before, str) and isinstance(after, str) and "\n" in before and "\n" in after:
        yield from _of_texts(before, after, path)
        return
    yield Difference(path, shown(before), shown(after))


def _of_texts(before: str, after: str, path: str) -> Iterator[Difference]:
    """Lines that went and came, of a text of several."""
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line[:2] in ("- ", "+ "):
            text = shown(line[2:])
            yield Difference(f"{path}[line]", text if line[0] == "-" else "", text if line[0] == "+" else "")


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Difference]:
    for field in _NAMES:
        first, second = _named(before, field), _named(after, field)
        if first is not None and second is not None:
            for name in [*first, *(name for name in second if name not in first)]:
                yield from differences(first.get(name, _ABSENT), second.get(name, _ABSENT), f"{path}[{name}]")
            return
    if len(before) == len(after) and not all(isinstance(item, str | int | float) for item in (*before, *after)):
        for index, (one, two) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, two, f"{path}[{index}]")
        return
    gone = [item for item in before if item not in after]
    new = [item for item in after if item not in before]
    if not gone and not new:  # another order, or one of several equal ones
        yield Difference(path, shown(before), shown(after))
    for item in gone:
        yield Difference(f"{path}[]", shown(item), "")
    for item in new:
        yield Difference(f"{path}[]", "", shown(item))


def _named(items: list[Any], field: str) -> dict[str, Any] | None:
    """Members by their name; None if one has none, or two the same."""
    if not all(isinstance(item, Mapping) and isinstance(item.get(field), str) for item in items):
        return None
    found = {str(item[field]): item for item in items}
    return found if len(found) == len(items) else None


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            found = json.loads(value)
        except ValueError:
            return value
        return found if isinstance(found, dict | list) else value
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def shown(value: Any) -> str:
    """One line, cut where it is long; empty for what is not there."""
    if value is _ABSENT:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    text = " ".join(text.split()) or '""'
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}… ({len(text)} characters)"
