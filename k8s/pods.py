"""Pod templates of the Ray clusters: sizes, volumes, identity and security context in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from config import gpu_rules, names, pod_rules
from config.capacity import PodSize
from config.compute import InstanceGroup
from config.environment import Environment
from k8s.objects import Json

# User `ray` of rayproject's and SkyRL's images; its primary group comes from the image.
RAY_USER = 1000
METRICS_PORT = 8080
HEALTH_TAINT = "sagemaker.amazonaws.com/node-health-status"
INSTANCE_TYPE_LABEL = pod_rules.INSTANCE_TYPE
INSTANCE_GROUP_LABEL = gpu_rules.INSTANCE_GROUP


@dataclass(frozen=True)
class RayPod:
    """One pod template. `user` None leaves the user to the image; `reads_only` is about the shared file system."""

    image: str
    size: PodSize
    group: InstanceGroup
    service_account: str
    labels: Mapping[str, str]
    environment: Sequence[Json] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    user: int | None = RAY_USER
    termination_grace_seconds: int = 60
    readiness: Json | None = None
    restart_policy: str = "Always"
    api_token: bool = False
    reads_only: bool = False
    unhealthy_nodes: bool = False


def variables(values: Mapping[str, str]) -> list[Json]:
    """Plain environment variables, sorted by name."""
    return [{"name": name, "value": values[name]} for name in sorted(values)]


def host_ip(name: str) -> Json:
    """An environment variable that holds the node's address."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}


def resources(size: PodSize) -> Json:
    """Requests equal to limits: the pod is of class Guaranteed and the last to be evicted."""
    amounts: Json = {"cpu": str(size.cpus), "memory": f"{size.memory_gib}Gi"}
    if size.gpus:
        amounts["nvidia.com/gpu"] = str(size.gpus)
    if size.efa_interfaces:
        amounts["vpc.amazonaws.com/efa"] = str(size.efa_interfaces)
    return {"requests": amounts, "limits": dict(amounts)}


def tolerations(group: InstanceGroup, *, unhealthy: bool = False) -> list[Json]:
    """Tolerations for the taints that the group itself carries, and with `unhealthy` for HyperPod's own.

    By default HyperPod's `sagemaker.amazonaws.com/node-health-status=Unschedulable` is not tolerated: it marks a node under a deep
    health check or about to be replaced, which is where neither training nor serving belongs
    (https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency-node-labels.html).
    """
    accepted: list[Json] = [
        {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
        if taint.value
        else {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        for taint in group.taints
    ]
    if unhealthy:
        accepted.append({"key": HEALTH_TAINT, "operator": "Equal", "value": "Unschedulable", "effect": "NoSchedule"})
    return accepted


def node_selector(group: InstanceGroup) -> dict[str, str]:
    """HyperPod labels a node with its `ml.` type and its group; two groups may share a type, so both are asked for."""
    return {INSTANCE_TYPE_LABEL: group.instance_type, INSTANCE_GROUP_LABEL: group.name}


def container_security() -> Json:
    """What every container of ours gives up, whoever its user is."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def template(env: Environment, pod: RayPod) -> Json:
    """The pod template: one container, first in the list as KubeRay wants it (its `RayContainerIndex` is 0)."""
    mount = env.storage.file_system.mount_path
    container: Json = {
        "name": "ray",
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        "env": list(pod.environment),
        "resources": resources(pod.size),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "shared", "mountPath": mount} | ({"readOnly": True} if pod.reads_only else {}),
            {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    if pod.ports:
        container["ports"] = [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in pod.ports.items()]
    if pod.readiness:
        container["readinessProbe"] = pod.readiness
    spec: Json = {
        "serviceAccountName": pod.service_account,
        "automountServiceAccountToken": pod.api_token,
        "nodeSelector": node_selector(pod.group),
        "restartPolicy": pod.restart_policy,
        "terminationGracePeriodSeconds": pod.termination_grace_seconds,
        "securityContext": _pod_security(pod.user),
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": names.SHARED_CLAIM}},
            {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{pod.size.shared_memory_gib}Gi"}},
        ],
    }
    if accepted := tolerations(pod.group, unhealthy=pod.unhealthy_nodes):
        spec["tolerations"] = accepted
    return {"metadata": {"labels": dict(pod.labels)}, "spec": spec}


def _pod_security(user: int | None) -> Json:
    security: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user is not None:
        # fsGroup reaches emptyDirs only: the FSx driver leaves a file system's owners alone, the Job in the platform chart sets them.
        security |= {"runAsNonRoot": True, "runAsUser": user, "fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
    return security
