"""What of the environment, its SkyRL overrides and its version set is not as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from operations.review.sides import Side
from operations.review.values import Difference, differences

# Settings that let more people in, though no template says so: (path in the environment, the value that lets in, what it does).
_OPENING = (
    ("serving/authentication", "none", "the endpoint asks for no key"),
    ("remote_access/strategy", "public", "whoever may connect in the namespace reaches Ray's dashboard and Jobs API"),
)


@dataclass(frozen=True)
class Settings:
    """Differences by what they are of."""

    environment: tuple[Difference, ...] = ()
    overrides: tuple[Difference, ...] = ()
    versions: tuple[Difference, ...] = ()
    remarks: tuple[str, ...] = ()


def changes(base: Side, head: Side) -> Settings:
    """Compare what both revisions say. The overrides stand apart from the environment that they are written in."""
    old, new = base.facts, head.facts
    environment = [
        each
        for each in differences(old.get("environment", {}), new.get("environment", {}))
        if not each.path.startswith("training/overrides") and not each.path.startswith("versions")
    ]
    remarks = dict.fromkeys(str(side["remark"]) for side in (old, new) if "remark" in side)
    return Settings(
        tuple(environment),
        tuple(differences(old.get("overrides", {}), new.get("overrides", {}))),
        tuple(differences(old.get("versions", {}), new.get("versions", {}))),
        tuple(remarks),
    )


def widened(base: Side, head: Side) -> Iterator[tuple[str, str]]:
    """(setting, what it lets through more)."""
    for path, opens, sentence in _OPENING:
        if _at(head, path) == opens and _at(base, path) not in (opens, None):
            yield path.replace("/", "."), sentence


def stops_resuming(base: Side, head: Side) -> Iterator[tuple[str, str]]:
    """(override, why no run that exists goes on with it). The launcher refuses these; GPUs may move between nodes, their number not."""
    from training.preflight.resume import FIXED, WORLD
    from training.skyrl_settings import with_defaults

    if not (base.facts.get("overrides") and head.facts.get("overrides")):
        return
    old, new = (with_defaults(side.facts["overrides"]) for side in (base, head))
    same_world = _product(old, WORLD) == _product(new, WORLD)
    for key, why in FIXED.items():
        if old.get(key) != new.get(key) and not (key in WORLD and same_world):
            yield key, f"no existing run can resume with {key} {json.dumps(old.get(key))} -> {json.dumps(new.get(key))}: {why}"


def _product(values: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    return math.prod(value for key in keys if isinstance(value := values.get(key), int))


def _at(side: Side, path: str) -> Any:
    found: Any = side.facts.get("environment", {})
    for step in path.split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
