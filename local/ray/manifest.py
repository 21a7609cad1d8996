"""What a RayCluster object asks for: pods as KubeRay would make them, and the `ray start` of each.

KubeRay's rules: https://github.com/ray-project/kuberay, ray-operator/controllers/ray/common/pod.go
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from local.kubernetes.scheduling import quantity

Object = dict[str, Any]
OBJECT_STORE_BYTES = 80_000_000  # Ray's smallest is 75 MB; the manifest's own would not fit on one machine
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
# Set by the runtime, since all nodes share one machine.
_OURS = {
    "address", "autoscaling-config", "block", "dashboard-agent-grpc-port", "dashboard-agent-listen-port",
    "dashboard-host", "dashboard-port", "head", "include-dashboard", "metrics-export-port", "min-worker-port",
    "max-worker-port", "node-ip-address", "node-manager-port", "object-manager-port", "object-store-memory",
    "plasma-directory", "port", "ray-client-server-port", "temp-dir", "no-monitor", "disable-usage-stats", "num-cpus",
    "num-gpus", "memory", "resources",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """The head or one worker group: how many pods, from which template, with which `ray start` parameters."""

    name: str
    head: bool
    replicas: int
    template: Object
    parameters: Mapping[str, str]
    resources: Mapping[str, str]


def groups(cluster: Object) -> list[Group]:
    """Head first, then the worker groups in their order; none of a suspended cluster."""
    spec = cluster["spec"]
    if spec.get("suspend"):
        return []
    head = spec["headGroupSpec"]
    found = [_group("headgroup", True, 1, head)]
    for worker in spec.get("workerGroupSpecs") or ():
        low, high = worker.get("minReplicas") or 0, worker.get("maxReplicas")
        wanted = worker.get("replicas") if worker.get("replicas") is not None else low
        wanted = max(low, wanted if high is None else min(wanted, high))
        if not worker.get("suspend"):
            found.append(_group(worker["groupName"], False, wanted * (worker.get("numOfHosts") or 1), worker))
    return found


def _group(name: str, head: bool, replicas: int, spec: Object) -> Group:
    parameters = {key: str(value) for key, value in (spec.get("rayStartParams") or {}).items()}
    return Group(name, head, replicas, spec["template"], parameters, spec.get("resources") or {})


def template_digest(cluster: Object) -> str:
    """Hash of what `upgradeStrategy: Recreate` looks at: everything but the numbers of replicas."""
    parts = [[g.name, g.template, dict(g.parameters), dict(g.resources)] for g in groups(cluster)]
    text = json.dumps([cluster["spec"].get("rayVersion"), parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pod(cluster: Object, group: Group, *, suffix: str) -> Object:
    """The Pod object of one replica."""
    metadata = cluster["metadata"]
    name = metadata["name"]
    template = copy.deepcopy(group.template)
    given = template.get("metadata") or {}
    kind = "head" if group.head else "worker"
    middle = "head" if group.head else f"{group.name}-worker"
    labels = {
        **(given.get("labels") or {}),
        "app.kubernetes.io/created-by": "kuberay-operator",
        "app.kubernetes.io/name": "kuberay",
        "ray.io/cluster": name,
        "ray.io/group": group.name,
        "ray.io/identifier": f"{name}-{kind}",
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": kind,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name[:50]}-{middle}-{suffix}"[:63],
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": {**(given.get("annotations") or {}), "ray.io/template-digest": template_digest(cluster)},
            "ownerReferences": [owner(cluster)],
        },
        "spec": template["spec"],
    }


def owner(cluster: Object) -> Object:
    """The reference by which pods and services go with their RayCluster."""
    metadata = cluster["metadata"]
    return {
        "apiVersion": cluster["apiVersion"], "kind": cluster["kind"], "name": metadata["name"], "uid": metadata["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def head_service(cluster: Object) -> Object:
    """The Service in front of the head (headless, as KubeRay makes it by default)."""
    name = cluster["metadata"]["name"]
    selector = {"ray.io/cluster": name, "ray.io/node-type": "head", "app.kubernetes.io/name": "kuberay"}
    container = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    ports = {port.get("name") or f"port-{port['containerPort']}": port["containerPort"] for port in container.get("ports") or ()}
    ports = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, **ports}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{name[:50]}-head-svc",
            "namespace": cluster["metadata"]["namespace"],
            "labels": {"ray.io/cluster": name, "ray.io/node-type": "head", "ray.io/identifier": f"{name}-head"},
            "ownerReferences": [owner(cluster)],
        },
        "spec": {
            "clusterIP": "None", "selector": selector,
            "ports": [{"name": key[:15], "port": port, "targetPort": port, "protocol": "TCP"} for key, port in ports.items()],
        },
    }  # fmt: skip


def resource_flags(group: Group) -> list[str]:
    """`--num-cpus`, `--num-gpus`, `--memory`, `--resources`: from rayStartParams, else from the group, else from the container."""
    limits = _limits(group)
    parameters = group.parameters
    named = {name.lower(): amount for name, amount in group.resources.items()}
    cpus = parameters.get("num-cpus") or named.get("cpu") or limits.get("cpu")
    gpus = parameters.get("num-gpus") or named.get("gpu") or limits.get("nvidia.com/gpu")
    memory = parameters.get("memory") or named.get("memory") or limits.get("memory")
    flags = [f"--num-cpus={_whole(cpus)}" if cpus is not None else "--num-cpus=1", f"--num-gpus={_whole(gpus or 0)}"]
    if memory is not None:
        flags.append(f"--memory={_whole(memory)}")
    custom = {key: float(quantity(v)) for key, v in group.resources.items() if key.lower() not in ("cpu", "gpu", "memory")}
    if parameters.get("resources"):
        custom |= json.loads(_unquoted(parameters["resources"]))
    if custom:
        flags.append(f"--resources={json.dumps(custom)}")
    for name, value in parameters.items():
        if name not in _OURS:
            flags.append(f"--{name}={value}" if value else f"--{name}")
    return flags


def _whole(amount: object) -> int:
    return math.ceil(quantity(amount))


def _unquoted(text: str) -> str:
    """KubeRay wants the JSON of `resources` quoted once more for its shell."""
    stripped = text.strip().strip("'")
    return json.loads(stripped) if stripped.startswith('"') else stripped


def _limits(group: Group) -> dict[str, Any]:
    resources = group.template["spec"]["containers"][0].get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def demand(cluster: Object) -> dict[str, str]:
    """What all pods of the cluster ask for together, for its status."""
    totals = {"cpu": 0.0, "memory": 0.0, "nvidia.com/gpu": 0.0}
    for group in groups(cluster):
        limits = _limits(group)
        for name in totals:
            totals[name] += group.replicas * float(quantity(limits.get(name, 0)))
    gibibytes = totals["memory"] / 2**30
    memory = f"{gibibytes:g}Gi" if gibibytes == int(gibibytes) else f"{int(totals['memory'])}"
    return {"desiredCPU": f"{totals['cpu']:g}", "desiredMemory": memory, "desiredGPU": f"{totals['nvidia.com/gpu']:g}"}


def shared_mount(spec: Object) -> str | None:
    """Where the pod's first container mounts a PersistentVolumeClaim: this machine's shared folder stands for it."""
    claims = {volume["name"] for volume in spec.get("volumes") or () if volume.get("persistentVolumeClaim")}
    for mount in spec["containers"][0].get("volumeMounts") or ():
        if mount["name"] in claims:
            return str(mount["mountPath"]).rstrip("/")
    return None


def environment(value: Object, *, address: str, shared: str, look_up: Callable[[str, str], Object | None]) -> dict[str, str]:
    """The container's own variables. Values below the shared mount point are moved to the folder that stands for it.

    `look_up(kind, name)` finds ConfigMaps and Secrets. Raises ValueError for one that is missing and not optional.
    """
    spec = value["spec"]
    container = spec["containers"][0]
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in source:
                data = _data(look_up(kind, source[field]["name"]), kind, source[field])
                found |= {source.get("prefix", "") + key: text for key, text in data.items()}
    mount = shared_mount(spec)
    for entry in container.get("env") or ():
        text = entry.get("value")
        if text is None:
            text = _value_from(entry.get("valueFrom") or {}, value, address, look_up)
        if text is None:
            continue
        text = _REFERENCE.sub(lambda match: found.get(match[1], match[0]), str(text))
        if mount and (text == mount or text.startswith(mount + "/")):
            text = shared + text[len(mount) :]
        found[entry["name"]] = text
    return found


def _value_from(source: Mapping[str, Any], value: Object, address: str, look_up: Callable[[str, str], Object | None]) -> str | None:
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if field in source:
            return _data(look_up(kind, source[field]["name"]), kind, source[field]).get(source[field]["key"])
    path = (source.get("fieldRef") or {}).get("fieldPath", "")
    if path in ("status.podIP", "status.hostIP"):
        return address
    found: Any = value
    for part in path.split(".") if path else ():
        found = found.get(part) if isinstance(found, Mapping) else None
    return str(found) if found is not None and path else None


def _data(found: Object | None, kind: str, reference: Mapping[str, Any]) -> dict[str, str]:
    if found is None:
        if reference.get("optional"):
            return {}
        raise ValueError(f'{kind.lower()} "{reference["name"]}" not found')
    data = found.get("data") or {}
    return {key: base64.b64decode(text).decode(errors="replace") if kind == "Secret" else text for key, text in data.items()}
