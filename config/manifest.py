"""Reading a Kubernetes object that may be wrong: nothing here raises, what has the wrong type reads as absent.

The API server's schema says what has a wrong type; the rules that use this say what a right type does not guarantee.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

Json = Mapping[str, Any]

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


def quantity(value: object) -> Decimal | None:
    """A Kubernetes quantity as a number (`500m` -> 0.5, `2Gi` -> 2147483648), or None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value).strip()
    digits = text.rstrip("numkKMGTPEi")
    try:
        number = Decimal(digits) * _SUFFIXES[text[len(digits) :]]
    except (ArithmeticError, KeyError):
        return None
    # Beyond any machine's size: a number with a million digits would only take time to write out.
    return number if number.is_finite() and number.adjusted() < 40 else None


def mapping(value: object) -> Json:
    """The mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Json]:
    """The mappings of a list; what is no mapping is left out."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def text(value: object) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""


def integer(value: object) -> int | None:
    """The integer, or None; true and false are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def at(value: object, *path: str) -> object:
    """What stands at a path of keys, or None."""
    for key in path:
        value = mapping(value).get(key)
    return value


def pod_spec(group: Json) -> Json:
    """The pod spec of a head or worker group."""
    return mapping(at(group, "template", "spec"))


def containers(group: Json) -> list[Json]:
    """Containers of a head or worker group; the first is Ray's."""
    return items(pod_spec(group).get("containers"))


def variables(group: Json) -> dict[str, str]:
    """Environment variables of Ray's container; those that come from elsewhere have an empty value."""
    found = containers(group)
    return {text(item.get("name")): text(item.get("value")) for item in items(found[0].get("env"))} if found else {}


def start_parameters(group: Json) -> Json:
    """`rayStartParams` of a group."""
    return mapping(group.get("rayStartParams"))


def groups(spec: Json, field: str) -> Iterator[tuple[str, Json]]:
    """Head and worker groups of a RayClusterSpec, each with the path that a reader finds it by."""
    yield f"{field}.headGroupSpec", mapping(spec.get("headGroupSpec"))
    yield from worker_groups(spec, field)


def worker_groups(spec: Json, field: str) -> Iterator[tuple[str, Json]]:
    """Worker groups of a RayClusterSpec with their paths."""
    for index, group in enumerate(items(spec.get("workerGroupSpecs"))):
        yield f"{field}.workerGroupSpecs[{index}]", group


def at_least(version: object, least: str) -> bool:
    """Whether a version is this one or later, by its first two numbers; a text that is no version is not."""
    match = re.match(r"^(\d+)\.(\d+)", text(version))
    return match is not None and (int(match[1]), int(match[2])) >= tuple(int(part) for part in least.split("."))
