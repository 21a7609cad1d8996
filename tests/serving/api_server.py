"""A kubectl over a few objects in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_KINDS = {
    "rayservices.ray.io": "RayService", "rayclusters.ray.io": "RayCluster", "pods": "Pod", "nodes": "Node", "events": "Event",
    "secrets": "Secret", "services": "Service",
}  # fmt: skip


@dataclass
class ApiServer:
    """`objects` by (kind, name); `forbidden` kinds answer 403; `looks` objects change with each look at the RayService."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    looks: list[dict[str, Any] | None] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    deleted: list[tuple[str, str]] = field(default_factory=list)
    after_apply: Callable[[], None] = lambda: None

    def put(self, kind: str, name: str, **value: Any) -> None:
        self.objects[(kind, name)] = {"kind": kind, **value, "metadata": {"name": name, **value.get("metadata", {})}}

    def __call__(self, words: Sequence[str]) -> str | tuple[int, str]:
        if words[0] == "apply":
            self.applied.append(words[-1])
            self.after_apply()
            return ""
        kind = _KINDS[words[1]]
        if kind in self.forbidden:
            return 1, f'Error from server (Forbidden): {words[1]} is forbidden: User "u" cannot get it'
        if words[0] == "delete":
            self.deleted.append((kind, words[2]))
            self.objects.pop((kind, words[2]), None)
            return ""
        if words[2].startswith("--"):
            return json.dumps({"items": [value for (its, _), value in self.objects.items() if its == kind]})
        if kind == "RayService" and self.looks:
            now = self.looks.pop(0)
            self.objects.pop((kind, words[2]), None)
            if now is not None:
                self.objects[(kind, words[2])] = now
        found = self.objects.get((kind, words[2]))
        return json.dumps(found) if found is not None else (1, f'Error from server (NotFound): {words[1]} "{words[2]}" not found')
