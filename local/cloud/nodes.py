"""The nodes of a HyperPod cluster: they join its EKS cluster a while after the cluster is there, as on AWS.

HyperPod with continuous provisioning goes InService before its nodes exist, so whatever needs a node has to wait for it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from local.cloud import REGION, accounts
from local.cloud.attributes import drawn

if TYPE_CHECKING:
    from local.cloud.store import Cloud, Resource

HYPERPOD = "AWS::SageMaker::Cluster"


@dataclass(frozen=True)
class HyperPodNode:
    """One instance of an instance group, from the moment that it was asked for."""

    instance_id: str
    group: str
    instance_type: str
    launched: float
    running: bool

    @property
    def name(self) -> str:
        """The Kubernetes node name, as HyperPod gives it."""
        return f"hyperpod-{self.instance_id}"


@dataclass(frozen=True)
class Event:
    """What ListClusterEvents tells."""

    id: str
    time: float
    group: str
    instance_id: str
    description: str
    level: str = "Info"


_lock = threading.Lock()


def nodes(resource: Resource) -> list[HyperPodNode]:
    with _lock:
        return list(resource.owned.get("nodes", []))


def events(resource: Resource) -> list[Event]:
    with _lock:
        return list(resource.owned.get("events", []))


def eks_name(resource: Resource) -> str:
    orchestrator = resource.properties.get("Orchestrator", {}).get("Eks", {})
    return str(orchestrator.get("ClusterArn", "")).rsplit("/", 1)[-1]


def ready(cloud: Cloud, eks: str) -> bool:
    """Whether a node of this EKS cluster runs."""
    return any(n.running for r in cloud.store.all(HYPERPOD) if eks_name(r) == eks for n in nodes(r))


def schedule(cloud: Cloud, resource: Resource) -> None:
    """Ask for the nodes that the instance groups want; they join after the cloud's delay, those too many leave at once."""
    wanted = {g["InstanceGroupName"]: g for g in resource.properties.get("InstanceGroups", [])}
    with _lock:
        kept: list[HyperPodNode] = []
        for name, group in wanted.items():
            kind = str(group.get("InstanceType", ""))
            have = [n for n in resource.owned.get("nodes", []) if n.group == name and n.instance_type == kind]
            count = int(group.get("InstanceCount", 0))
            kept += have[:count]
            for _ in range(count - len(have)):
                kept.append(HyperPodNode(f"i-{drawn('hex', 17)}", name, kind, time.time(), False))
        resource.owned["nodes"] = kept
    _publish(cloud, resource)
    _set_timer(cloud, resource)


def _set_timer(cloud: Cloud, resource: Resource) -> None:
    timer = threading.Timer(cloud.node_delay, _join_later, args=(cloud, resource))
    timer.daemon = True
    before = resource.owned.get("timer")
    if before is not None:
        before.cancel()
    resource.owned["timer"] = timer
    timer.start()


def _join_later(cloud: Cloud, resource: Resource) -> None:
    with accounts.acting_as(resource.account):
        join(cloud, resource)
    with _lock:
        # Continuous provisioning goes on asking for what has not come.
        if any(not node.running for node in resource.owned.get("nodes", [])):
            _set_timer(cloud, resource)


def join(cloud: Cloud, resource: Resource) -> None:
    """Bring up what was asked for, except what a fault switch keeps away."""
    with _lock:
        missing = {n.group: cloud.faults.missing_nodes(n.group) for n in resource.owned.get("nodes", [])}
        joined: list[HyperPodNode] = []
        for node in reversed(resource.owned.get("nodes", [])):
            if not node.running and missing[node.group] > 0:
                missing[node.group] -= 1
                text = f"Insufficient capacity for {node.instance_type} in instance group {node.group}; the request is retried."
                if not any(e.instance_id == node.instance_id and e.description == text for e in resource.owned.get("events", [])):
                    _tell(resource, node, text, "Error")
            elif not node.running:
                node = HyperPodNode(node.instance_id, node.group, node.instance_type, node.launched, True)
                _tell(resource, node, f"Instance {node.instance_id} of instance group {node.group} joined the cluster.")
            joined.append(node)
        if "nodes" in resource.owned:
            resource.owned["nodes"] = joined[::-1]
    _publish(cloud, resource)


def replace(cloud: Cloud, resource: Resource, instance_ids: list[str], *, remove: bool) -> list[str]:
    """Take nodes away: for good (`remove`, the group shrinks) or to be replaced after the delay. Returns the ids that were known."""
    with _lock:
        known = [n for n in resource.owned.get("nodes", []) if n.instance_id in instance_ids]
        resource.owned["nodes"] = [n for n in resource.owned.get("nodes", []) if n not in known]
        for node in known:
            _tell(resource, node, f"Instance {node.instance_id} of instance group {node.group} was removed.")
        if remove:
            for group in resource.properties.get("InstanceGroups", []):
                gone = sum(n.group == group["InstanceGroupName"] for n in known)
                group["InstanceCount"] = int(group.get("InstanceCount", 0)) - gone
    if remove:
        _publish(cloud, resource)
    else:
        schedule(cloud, resource)
    return [n.instance_id for n in known]


def leave(cloud: Cloud, resource: Resource) -> None:
    """All nodes go, with the cluster."""
    timer = resource.owned.pop("timer", None)
    if timer is not None:
        timer.cancel()
    with _lock:
        resource.owned.pop("nodes", None)
    _publish(cloud, resource)


def _tell(resource: Resource, node: HyperPodNode, description: str, level: str = "Info") -> None:
    event = Event(drawn("hex", 32), time.time(), node.group, node.instance_id, description, level)
    resource.owned.setdefault("events", []).insert(0, event)


def _publish(cloud: Cloud, resource: Resource) -> None:
    cluster = cloud.clusters.get(eks_name(resource)) if cloud.clusters is not None else None
    if cluster is None:
        return
    from local.kubernetes.scheduling import Node, Taint

    groups = {g["InstanceGroupName"]: g for g in resource.properties.get("InstanceGroups", [])}
    zones = {name: _zone(cloud, resource, group) for name, group in groups.items()}
    cluster.set_nodes(
        [
            Node(
                name=node.name,
                labels=_labels(resource, node, groups.get(node.group, {}), zones.get(node.group, {})),
                taints=[Taint(**_taint(t)) for t in (groups.get(node.group, {}).get("KubernetesConfig") or {}).get("Taints", [])],
                capacity=capacity(node.instance_type, int(groups.get(node.group, {}).get("ThreadsPerCore", 2))),
                ready=True,
            )
            for node in nodes(resource)
            if node.running
        ]
    )


def _taint(given: dict[str, Any]) -> dict[str, str]:
    return {k.lower(): str(v) for k, v in given.items()}


def _zone(cloud: Cloud, resource: Resource, group: dict[str, Any]) -> dict[str, str]:
    """Labels of the zone of the group's (first) subnet."""
    network = group.get("OverrideVpcConfig") or resource.properties.get("VpcConfig") or {}
    known: dict[str, dict[str, str]] = resource.owned.setdefault("zones", {})
    subnet = next(iter(network.get("Subnets", [])), "")
    if subnet and subnet not in known:
        found = cloud.client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"][0]
        known[subnet] = {
            "topology.kubernetes.io/zone": found["AvailabilityZone"],
            "topology.k8s.aws/zone-id": found["AvailabilityZoneId"],
        }
    return known.get(subnet, {})


def _labels(resource: Resource, node: HyperPodNode, group: dict[str, Any], zone: dict[str, str]) -> dict[str, str]:
    own = (group.get("KubernetesConfig") or {}).get("Labels") or {}
    return {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": node.name,
        "node.kubernetes.io/instance-type": node.instance_type,
        "topology.kubernetes.io/region": REGION,
        **zone,
        "sagemaker.amazonaws.com/cluster-name": str(resource.properties.get("ClusterName", "")),
        "sagemaker.amazonaws.com/compute-type": "hyperpod",
        "sagemaker.amazonaws.com/instance-group-name": node.group,
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        **{str(k): str(v) for k, v in own.items()},
    }


def capacity(instance_type: str, threads_per_core: int = 2) -> dict[str, str]:
    """What the node offers to pods, from the instance table; a type that it lacks counts as 8 CPUs with 32 GiB."""
    from config.instances import INSTANCES

    known = INSTANCES.get(instance_type)
    if known is None:
        return {"cpu": "8", "memory": "32Gi", "pods": "14"}
    offered = {
        "cpu": f"{known.allocatable_cpu_millicores(threads_per_core)}m",
        "memory": f"{int(known.allocatable_memory_gib())}Gi",
        "pods": str(known.max_pods),
        "ephemeral-storage": "450Gi",
    }
    if known.gpus:
        offered["nvidia.com/gpu"] = str(known.gpus)
    if known.efa_interfaces:
        offered["vpc.amazonaws.com/efa"] = str(known.efa_interfaces)
    return offered
