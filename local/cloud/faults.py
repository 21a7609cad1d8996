"""Switches that make the local cloud misbehave on purpose: resources that fail or are slow, nodes that never come.

A switch is JSON, posted as a list to `/_hyperpod-rl/faults` or given in the environment variable
`HYPERPOD_RL_FAULTS` when the daemon starts:

    {"resource": "FileSystem", "action": "create", "fail": "no capacity"}     logical id, its beginning, or a type
    {"resource": "Vpc$", "action": "create", "fail": "why"}                   this logical id, not others that begin so
    {"resource": "AWS::EKS::Cluster", "action": "create", "slow": 5}          seconds
    {"resource": "AWS::FSx::Backup", "action": "create", "fail": "why"}       a backup that ends as FAILED
    {"instance_group": "workers", "missing": 1}                               nodes of the group that do not join
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast, get_args

Action = Literal["create", "update", "delete"]
ENVIRONMENT = "HYPERPOD_RL_FAULTS"
MOST = 86_400  # seconds, times or nodes: more is a slip of the hand


class InvalidFault(ValueError):
    """A switch that cannot be understood; the message says why."""


class Injected(RuntimeError):
    """A resource failed because a switch said so."""


@dataclass(frozen=True)
class Fault:
    resource: str = ""
    action: Action = "create"
    fail: str = ""
    slow: float = 0.0
    # How often it acts before it is spent; 0 = always.
    times: int = 0
    instance_group: str = ""
    missing: int = 0

    @classmethod
    def parse(cls, given: object) -> Fault:
        """One switch from JSON. Raises InvalidFault."""
        if not isinstance(given, dict):
            raise InvalidFault(f"a switch is an object with some of the keys {_keys(cls)}, not {json.dumps(given)}")
        unknown = sorted(set(given) - {f.name for f in fields(cls)})
        if unknown:
            raise InvalidFault(f"{', '.join(unknown)} is no key of a switch; these are: {_keys(cls)}")
        fault = cls(
            resource=_text(given, "resource"),
            action=cast(Action, _text(given, "action", "create")),
            fail=_text(given, "fail"),
            slow=_number(given, "slow"),
            times=int(_number(given, "times", whole=True)),
            instance_group=_text(given, "instance_group"),
            missing=int(_number(given, "missing", whole=True)),
        )
        if fault.action not in get_args(Action):
            raise InvalidFault(f"action {fault.action!r} is none of {', '.join(get_args(Action))}")
        if not (fault.resource and (fault.fail or fault.slow)) and not (fault.instance_group and fault.missing > 0):
            raise InvalidFault("a switch needs `resource` with `fail` or `slow`, or `instance_group` with `missing`")
        return fault

    def hits(self, action: str, logical_id: str, resource_type: str) -> bool:
        """Logical ids of CDK end in eight hexadecimal digits, so the beginning of one is enough."""
        if not self.resource or self.action != action:
            return False
        return self.resource == resource_type or f"{logical_id}$".startswith(self.resource)


def _keys(cls: type[Fault]) -> str:
    return ", ".join(sorted(f.name for f in fields(cls)))


def _text(given: dict[str, Any], key: str, default: str = "") -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        raise InvalidFault(f"`{key}` is a text, not {json.dumps(value)}")
    return value


def _number(given: dict[str, Any], key: str, *, whole: bool = False) -> float:
    value = given.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not 0 <= value < MOST:
        raise InvalidFault(f"`{key}` is a {'whole ' if whole else ''}number from 0 to {MOST}, not {json.dumps(value)}")
    return float(value)


class Faults:
    """The switches that are on. Safe from any thread."""

    def __init__(self, faults: list[Fault] | None = None) -> None:
        self._lock = threading.Lock()
        self._faults = list(faults or [])
        self._spent: dict[Fault, int] = {}

    @classmethod
    def from_environment(cls) -> Faults:
        """Raises InvalidFault."""
        text = os.environ.get(ENVIRONMENT, "")
        return cls(parse(text)) if text.strip() else cls()

    def set(self, faults: list[Fault]) -> None:
        with self._lock:
            self._faults, self._spent = list(faults), {}

    def clear(self) -> None:
        self.set([])

    def listed(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(fault) for fault in self._faults]

    def any_for(self, resource_type: str) -> bool:
        """Whether a switch may hold up a resource of this type: then it must not run on the event loop."""
        with self._lock:
            return any(f.slow and (not f.resource.startswith("AWS::") or f.resource == resource_type) for f in self._faults)

    def act(self, action: str, logical_id: str, resource_type: str) -> None:
        """Wait and fail as switched. Raises Injected."""
        with self._lock:
            hits = [f for f in self._faults if f.hits(action, logical_id, resource_type)]
            hits = [f for f in hits if not f.times or self._spent.get(f, 0) < f.times]
            for fault in hits:
                self._spent[fault] = self._spent.get(fault, 0) + 1
        for fault in hits:
            if fault.slow:
                time.sleep(fault.slow)
        for fault in hits:
            if fault.fail:
                raise Injected(f'Resource handler returned message: "{fault.fail}" (HandlerErrorCode: GeneralServiceException)')

    def missing_nodes(self, instance_group: str) -> int:
        with self._lock:
            return sum(f.missing for f in self._faults if f.instance_group == instance_group)


def parse(text: str) -> list[Fault]:
    """Switches from JSON: a list, or one object. Raises InvalidFault."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidFault(f"is no JSON ({error})") from error
    return [Fault.parse(item) for item in (given if isinstance(given, list) else [given])]
