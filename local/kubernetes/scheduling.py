"""On which node a pod fits, by the rules of the Kubernetes scheduler that matter here; no preemption, no spreading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

_SUFFIX = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(2**10),
    "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


@dataclass(frozen=True)
class Taint:
    """A node's taint: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True)
class Node:
    """A HyperPod node that joined. `capacity` is what pods may ask for (allocatable), as Kubernetes quantities."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    capacity: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True


def quantity(text: object) -> Decimal:
    """A Kubernetes quantity as a number (`500m` -> 0.5, `2Gi` -> bytes). Raises ValueError on anything else."""
    value = str(text).strip()
    for length in (2, 1):
        suffix = value[-length:]
        if suffix in _SUFFIX:
            return _number(value[:-length]) * _SUFFIX[suffix]
    return _number(value)


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"{text!r} is not a Kubernetes quantity") from None


def requests(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """What a pod asks of its node: the sum over containers, at least each init container's; limits stand in for requests."""
    total: dict[str, Decimal] = {}
    for container in spec.get("containers", ()):
        for name, amount in _asked(container).items():
            total[name] = total.get(name, Decimal(0)) + amount
    for container in spec.get("initContainers", ()) or ():
        for name, amount in _asked(container).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _asked(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in asked.items()}


def place(pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]) -> tuple[str | None, str]:
    """The name of the first node where the pod fits, or None and the scheduler's message that says why not."""
    asked = requests(pod["spec"])
    reasons: Counter[str] = Counter()
    for node in nodes:
        against = _obstacles(pod, node, asked, pods)
        if not against:
            return str(node["metadata"]["name"]), ""
        reasons.update(against)
    if not nodes:
        return None, "no nodes available to schedule pods"
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return None, f"0/{len(nodes)} nodes are available: {listed}."


def _obstacles(
    pod: Mapping[str, Any], node: Mapping[str, Any], asked: Mapping[str, Decimal], pods: Sequence[Mapping[str, Any]]
) -> list[str]:
    spec = pod["spec"]
    labels = {"kubernetes.io/hostname": node["metadata"]["name"], **node["metadata"].get("labels", {})}
    if not takes_pods(node):
        return ["node(s) were unschedulable" if is_ready(node) else "node(s) were not ready"]
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()) or not _affine(spec, labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    for taint in node.get("spec", {}).get("taints", ()):
        if taint["effect"] != "PreferNoSchedule" and not _tolerated(taint, spec.get("tolerations") or ()):
            value = f": {taint['value']}" if taint.get("value") else ""
            return [f"node(s) had untolerated taint {{{taint['key']}{value}}}"]
    here = [other for other in pods if other["spec"].get("nodeName") == node["metadata"]["name"] and not finished(other)]
    free = {name: quantity(amount) for name, amount in node["status"]["allocatable"].items()}
    if len(here) >= free.get("pods", Decimal(10**6)):
        return ["Too many pods"]
    short: list[str] = []
    for name, amount in asked.items():
        used = sum((requests(other["spec"]).get(name, Decimal(0)) for other in here), Decimal(0))
        if amount > free.get(name, Decimal(0)) - used and amount > 0 and name != "ephemeral-storage":
            short.append(f"Insufficient {name}")
    return short


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether the node's Ready condition is True: its pods stay, cordoned or not."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node.get("status", {}).get("conditions", ()))


def takes_pods(node: Mapping[str, Any]) -> bool:
    """Whether new pods may come: the node is ready and not cordoned."""
    return is_ready(node) and not node.get("spec", {}).get("unschedulable")


def finished(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has ended and holds nothing of its node any more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        exists = toleration.get("operator") == "Exists"
        if exists and not toleration.get("key"):
            return True
        if toleration.get("key") == taint["key"] and (exists or toleration.get("value", "") == taint.get("value", "")):
            return True
    return False


def _affine(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(all(matches_expression(labels, e) for e in term.get("matchExpressions", ())) for term in required["nodeSelectorTerms"])


def matches_expression(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    """One requirement of a label selector or a node affinity term."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt":
            if key not in labels or not labels[key].lstrip("-").isdigit():
                return False
            return int(labels[key]) > int(values[0]) if operator == "Gt" else int(labels[key]) < int(values[0])
    return False


def matches_selector(labels: Mapping[str, str], selector: Mapping[str, Any] | None) -> bool:
    """Whether labels satisfy a LabelSelector (`matchLabels`, `matchExpressions`)."""
    chosen = selector or {}
    return all(labels.get(k) == v for k, v in (chosen.get("matchLabels") or {}).items()) and all(
        matches_expression(labels, e) for e in chosen.get("matchExpressions") or ()
    )
