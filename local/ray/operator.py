"""What KubeRay's operator does with one RayCluster object: its pods, its head service, its status."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from local.kubernetes.cluster import Cluster
from local.kubernetes.controllers import RAY_CLUSTER_LABEL
from local.kubernetes.errors import Rejected
from local.kubernetes.store import Key, now
from local.ray import manifest

Object = dict[str, Any]
MANAGER = "kuberay-operator"


def key_of(cluster: Object) -> Key:
    """The store's key of a RayCluster."""
    return Key("ray.io", "RayCluster", cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def pods_of(kubernetes: Cluster, cluster: Object) -> list[Object]:
    """The pods that this RayCluster owns."""
    metadata = cluster["metadata"]
    return [
        pod
        for pod in kubernetes.store.select(kind="Pod", namespace=metadata["namespace"])
        if any(owner["uid"] == metadata["uid"] for owner in pod["metadata"].get("ownerReferences", ()))
    ]


def is_head(pod: Object) -> bool:
    """Whether a Ray pod is the head."""
    return bool(pod["metadata"]["labels"].get("ray.io/node-type") == "head")


def reconcile(kubernetes: Cluster, cluster: Object) -> str:
    """Create what is missing, delete what is too much. Returns why something could not be created, or ''."""
    pod_kind = kubernetes.api.kind("v1", "Pod")
    metadata = cluster["metadata"]
    strategy = (cluster["spec"].get("upgradeStrategy") or {}).get("type", "None")
    pods = pods_of(kubernetes, cluster)
    digest = manifest.template_digest(cluster)
    if strategy == "Recreate":
        outdated = [pod for pod in pods if pod["metadata"]["annotations"].get("ray.io/template-digest") != digest]
        if outdated:
            for pod in pods:
                kubernetes.api.delete(pod_kind, metadata["namespace"], pod["metadata"]["name"])
            pods = []
    ended = [pod for pod in pods if pod.get("status", {}).get("phase") in ("Failed", "Succeeded")]
    for pod in ended:
        kubernetes.api.delete(pod_kind, metadata["namespace"], pod["metadata"]["name"])
    pods = [pod for pod in pods if pod not in ended]
    wanted = {group.name: group for group in manifest.groups(cluster)}
    for pod in pods:
        if pod["metadata"]["labels"].get("ray.io/group") not in wanted:
            kubernetes.api.delete(pod_kind, metadata["namespace"], pod["metadata"]["name"])
    try:
        if wanted:
            kubernetes.api.apply(manifest.head_service(cluster), manager=MANAGER, force=True)
        for group in wanted.values():
            have = [pod for pod in pods if pod["metadata"]["labels"].get("ray.io/group") == group.name]
            for pod in have[group.replicas :]:
                kubernetes.api.delete(pod_kind, metadata["namespace"], pod["metadata"]["name"])
            for _ in range(group.replicas - len(have)):
                suffix = "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))  # noqa: S311
                made = kubernetes.api.create(manifest.pod(cluster, group, suffix=suffix), manager=MANAGER)
                text = f"Created {'head' if group.head else 'worker'} Pod {metadata['namespace']}/{made['metadata']['name']}"
                kubernetes.controllers.event(cluster, reason="CreatedPod", message=text, component="raycluster-controller")
    except Rejected as refused:
        return str(refused)
    return ""


def report(kubernetes: Cluster, cluster: Object, *, problem: str, addresses: Mapping[str, str]) -> None:
    """Write the RayCluster's status; `addresses` are those of its pods by name."""
    before = cluster.get("status", {})
    pods = pods_of(kubernetes, cluster)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
    heads = [pod for pod in pods if is_head(pod)]
    groups = [group for group in manifest.groups(cluster) if not group.head]
    desired = sum(group.replicas for group in groups)
    ready_workers = sum(not is_head(pod) for pod in running)
    head_ready = any(is_head(pod) for pod in running)
    specs = cluster["spec"].get("workerGroupSpecs") or ()
    provisioned = head_ready and ready_workers >= desired
    was = any(c["type"] == "RayClusterProvisioned" and c["status"] == "True" for c in before.get("conditions", ()))
    once = provisioned or was
    head_reason = "HeadPodRunningAndReady" if head_ready else "ContainersNotReady" if heads else "HeadPodNotFound"
    status: dict[str, Any] = {
        "observedGeneration": cluster["metadata"]["generation"],
        "desiredWorkerReplicas": desired,
        "readyWorkerReplicas": ready_workers,
        "availableWorkerReplicas": ready_workers,
        "minWorkerReplicas": sum(group.get("minReplicas") or 0 for group in specs),
        "maxWorkerReplicas": sum(min(group.get("maxReplicas") or 0, 2**31 - 1) for group in specs),
        **manifest.demand(cluster),
        "endpoints": {"client": "10001", "dashboard": "8265", "gcs-server": "6379"},
        "head": _head_info(cluster, heads, addresses),
        "conditions": [
            _condition(before, "HeadPodReady", head_ready, head_reason),
            # Once true it stays true: https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/observability.html
            _condition(before, "RayClusterProvisioned", once, "AllPodRunningAndReadyFirstTime" if once else "RayClusterPodsProvisioning"),
        ],
    }
    if cluster["spec"].get("suspend"):
        status["state"] = "suspended" if not pods else before.get("state", "")
    elif problem:
        status["state"], status["reason"] = "failed", problem
    elif provisioned:
        status["state"] = "ready"
    elif before.get("state"):
        status["state"] = before["state"] if before["state"] != "suspended" else ""
    times = dict(before.get("stateTransitionTimes") or {})
    if status.get("state") and status["state"] != before.get("state"):
        times[status["state"]] = now()
    status["stateTransitionTimes"] = times
    compared = {name: value for name, value in before.items() if name != "lastUpdateTime"}
    if compared != status:
        kubernetes.api.set_status(key_of(cluster), {**status, "lastUpdateTime": now()})


def _head_info(cluster: Object, heads: list[Object], addresses: Mapping[str, str]) -> Object:
    found: Object = {"serviceName": f"{cluster['metadata']['name'][:50]}-head-svc"}
    if heads:
        name = heads[0]["metadata"]["name"]
        found["podName"] = name
        if name in addresses:
            found |= {"podIP": addresses[name], "serviceIP": addresses[name]}
    return found


def _condition(before: Mapping[str, Any], name: str, holds: bool, reason: str) -> Object:
    state = "True" if holds else "False"
    old = next((c for c in before.get("conditions", ()) if c["type"] == name), None)
    since = old["lastTransitionTime"] if old and old["status"] == state else now()
    return {"type": name, "status": state, "reason": reason, "message": "", "lastTransitionTime": since}


__all__ = ["RAY_CLUSTER_LABEL", "is_head", "key_of", "pods_of", "reconcile", "report"]
