"""What hangs on an object beside its status: the scale of a workload, the eviction of a pod; and why there is no exec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from local.kubernetes.errors import Rejected
from local.kubernetes.kinds import Kind
from local.kubernetes.scheduling import matches_selector
from local.kubernetes.store import Object, Store

SCALED: Final = ("Deployment", "StatefulSet", "ReplicaSet")
# Kind -> its subresources as discovery lists them: name, and group, version and kind of what they take.
LISTED: Final[Mapping[str, tuple[tuple[str, str, str, str], ...]]] = {
    **dict.fromkeys(SCALED, (("scale", "autoscaling", "v1", "Scale"),)),
    "Pod": (("eviction", "policy", "v1", "Eviction"), ("log", "", "v1", "Pod")),
}
_NEED_A_PROCESS: Final = ("exec", "attach", "portforward", "ephemeralcontainers")


def scale(owner: Object) -> Object:
    """The `Scale` of a workload (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/deployment-v1/)."""
    metadata, labels = owner["metadata"], (owner["spec"].get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")},
        "spec": {"replicas": owner["spec"].get("replicas", 1)},
        "status": {
            "replicas": (owner.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{name}={labels[name]}" for name in sorted(labels)),
        },
    }  # fmt: skip


def replicas(content: Any) -> int:
    """The number that a Scale asks for. Raises Rejected."""
    spec = content.get("spec") if isinstance(content, Mapping) else None
    wanted = spec.get("replicas", 0) if isinstance(spec, Mapping) else None
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0:
        raise Rejected(f"spec.replicas: Invalid value: {wanted}: must be greater than or equal to 0")
    return wanted


def check_eviction(store: Store, pod: Object) -> None:
    """Raises Rejected (TooManyRequests) where a disruption budget forbids to evict a pod.

    https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
    """
    namespace, pods = pod["metadata"]["namespace"], store.select(kind="Pod", namespace=pod["metadata"]["namespace"])
    for budget in store.select(kind="PodDisruptionBudget", namespace=namespace):
        selector, name = budget["spec"].get("selector"), budget["metadata"]["name"]
        if not matches_selector(pod["metadata"].get("labels") or {}, selector):
            continue
        mine = [each for each in pods if matches_selector(each["metadata"].get("labels") or {}, selector)]
        healthy = sum(_healthy(each) for each in mine)
        wanted = _wanted(budget["spec"], len(mine))
        if _healthy(pod):
            room = healthy - 1 >= wanted
        else:  # IfHealthyBudget is the default
            room = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= wanted
        if not room:
            text = (
                "Cannot evict pod as it would violate the pod's disruption budget."
                f" The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
            )
            raise Rejected(text, reason="TooManyRequests")


def _healthy(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _wanted(spec: Mapping[str, Any], pods: int) -> int:
    """How many must stay; shares are rounded up, as Kubernetes does."""

    def number(value: Any) -> int:
        return math.ceil(pods * int(value[:-1]) / 100) if isinstance(value, str) and value.endswith("%") else int(value)

    if spec.get("maxUnavailable") is not None:
        return pods - number(spec["maxUnavailable"])
    return number(spec.get("minAvailable", 1))


def refusal(kind: Kind, name: str, subresource: str) -> Rejected:
    """Why this machine's API server has not this subresource."""
    shown = f'{kind.resource} "{name}"'
    if subresource == "portforward":
        text = (
            f"{shown}: the local cloud forwards no ports: what runs listens on this machine already, `hyperpod-rl serve status` says where"
        )
        return Rejected(text, reason="NotImplemented")
    if subresource in _NEED_A_PROCESS:
        text = f"{shown}: the local cloud has no containers to enter: Ray's pods are processes of this machine, other pods run nothing"
        return Rejected(text, reason="NotImplemented")
    if subresource == "token":
        text = f"{shown}: the local cloud issues no service account tokens: its API server takes the tokens of `aws eks get-token`"
        return Rejected(text, reason="NotImplemented")
    return Rejected(f"the server could not find the requested resource ({kind.resource}/{subresource})", reason="NotFound")
