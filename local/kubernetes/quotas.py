"""ResourceQuota: what the pods of a namespace may ask for together (https://kubernetes.io/docs/concepts/policy/resource-quotas/).

Only what a quota says of pods is held: numbers of pods, requests and limits; scopes and counts of other kinds are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from local.kubernetes.scheduling import finished, quantity, requests


def exceeded(pod: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], quotas: Sequence[Mapping[str, Any]]) -> str:
    """The first quota that a new pod would exceed, in the API server's words, or ''. `pods` are those of its namespace."""
    held = [other for other in pods if not finished(other)]
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        over: list[tuple[str, Decimal, Decimal, str]] = []
        for name, limit in (quota["spec"].get("hard") or {}).items():
            asked = _amount(pod, name)
            if asked is None or asked == 0:
                continue
            used = sum((_amount(other, name) or Decimal(0) for other in held), Decimal(0))
            if asked + used > quantity(limit):
                over.append((name, asked, used, str(limit)))
        if over:
            asked_text = ",".join(f"{name}={asked.normalize():f}" for name, asked, _, _ in over)
            used_text = ",".join(f"{name}={used.normalize():f}" for name, _, used, _ in over)
            limit_text = ",".join(f"{name}={limit}" for name, _, _, limit in over)
            return f"exceeded quota: {quota['metadata']['name']}, requested: {asked_text}, used: {used_text}, limited: {limit_text}"
    return ""


def _amount(pod: Mapping[str, Any], name: str) -> Decimal | None:
    """How much of one quota's entry a pod takes; None for entries that are not about pods."""
    if name in ("pods", "count/pods"):
        return Decimal(1)
    if name.startswith("limits."):
        spec = {"containers": [{"resources": {"requests": (c.get("resources") or {}).get("limits")}} for c in pod["spec"]["containers"]]}
        return requests(spec).get(name.removeprefix("limits."), Decimal(0))
    if name.startswith("requests.") or name in ("cpu", "memory"):
        return requests(pod["spec"]).get(name.removeprefix("requests."), Decimal(0))
    return None
