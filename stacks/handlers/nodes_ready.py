"""Waits until every instance group has as many Ready nodes as it wants, with their GPUs. For CDK's provider framework.

With continuous provisioning a HyperPod cluster is InService before its nodes are there, and stays so when none ever comes:
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-scaling-eks.html
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from .kubernetes_api import Gone, api

GROUP_LABEL = "sagemaker.amazonaws.com/instance-group-name"
EVENTS_QUOTED = 5
RUNNING = "Running"


def on_event(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Nothing to begin; the time is kept, so that the wait can end with a reason before CloudFormation ends it without one."""
    cluster = event["ResourceProperties"]["ClusterName"]
    return {"PhysicalResourceId": f"nodes-ready/{cluster}", "Began": str(int(time.time()))}


def is_complete(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Whether all nodes are there. Raises RuntimeError, with what is missing and the cluster's last events, when time is up."""
    if event["RequestType"] == "Delete":
        return {"IsComplete": True}
    properties = event["ResourceProperties"]
    cluster, eks = properties["ClusterName"], properties["EksClusterName"]
    wanted: Sequence[Mapping[str, Any]] = properties["Groups"]
    instances = instance_states(cluster)
    missing = missing_nodes(wanted, instances=instances, ready=ready_nodes(eks))
    if not missing:
        return {"IsComplete": True, "Data": {"Nodes": sum(int(group["Count"]) for group in wanted)}}
    waited = time.time() - float(event.get("Began", time.time()))
    if waited < 60 * float(properties["TimeoutMinutes"]):
        return {"IsComplete": False}
    raise RuntimeError(
        f"after {waited / 60:.0f} minutes: {'; '.join(missing)}. Last events of {cluster}: {' | '.join(last_events(cluster)) or 'none'}. "
        "The cluster was kept and goes on trying; deploy this stack again to go on waiting, or set the group's count to what there is"
    )


def missing_nodes(
    wanted: Sequence[Mapping[str, Any]], *, instances: Mapping[str, Mapping[str, int]], ready: Mapping[str, Sequence[int]]
) -> list[str]:
    """One sentence for each group that lacks something.

    `instances` counts a group's instances by their state, `ready` has the allocatable GPUs of each of its Ready nodes.
    """
    missing = []
    for group in wanted:
        name, count, gpus = group["Name"], int(group["Count"]), int(group["Gpus"])
        nodes, states = ready.get(name, ()), instances.get(name, {})
        if (running := states.get(RUNNING, 0)) < count:
            others = ", ".join(f"{number} {state}" for state, number in sorted(states.items()) if state != RUNNING)
            missing.append(f"group {name} has {running} of {count} instances running" + (f" ({others})" if others else ""))
        elif len(nodes) < count:
            missing.append(f"group {name} has {len(nodes)} of {count} nodes Ready in Kubernetes")
        elif gpus and sum(found >= gpus for found in nodes) < count:
            missing.append(
                f"group {name} has nodes with {min(nodes)} allocatable GPUs instead of {gpus}: the device plugin does not run there yet"
            )
    return missing


def instance_states(cluster: str) -> dict[str, Counter[str]]:
    """Instances of each group by their state, as SageMaker sees them: a deep health check for instance keeps one from running."""
    found: dict[str, Counter[str]] = {}
    client = boto3.client("sagemaker")
    more: dict[str, str] = {}
    while True:
        page = client.list_cluster_nodes(ClusterName=cluster, MaxResults=100, **more)
        for node in page["ClusterNodeSummaries"]:
            found.setdefault(node["InstanceGroupName"], Counter())[node["InstanceStatus"]["Status"]] += 1
        if not page.get("NextToken"):
            return found
        more = {"NextToken": page["NextToken"]}


def ready_nodes(eks: str) -> dict[str, list[int]]:
    """Allocatable GPUs of each Ready node, by group, as Kubernetes sees them."""
    try:
        listed = api(eks).get("/api/v1/nodes") or {}
    except Gone as error:
        # A moment without an API server (an upgrade of the control plane) is not a failure of the nodes.
        print(f"waiting: {error}")
        return {}
    found: dict[str, list[int]] = {}
    for node in listed.get("items", ()):
        conditions = {entry["type"]: entry["status"] for entry in node.get("status", {}).get("conditions", ())}
        group = node["metadata"].get("labels", {}).get(GROUP_LABEL)
        if group and conditions.get("Ready") == "True":
            found.setdefault(group, []).append(int(node["status"].get("allocatable", {}).get("nvidia.com/gpu", 0)))
    return found


def last_events(cluster: str) -> list[str]:
    """The cluster's newest events, which name the reason (capacity, quota, health checks) where the cluster's status does not."""
    client = boto3.client("sagemaker")
    try:
        answer = client.list_cluster_events(ClusterName=cluster, SortBy="EventTime", SortOrder="Descending", MaxResults=EVENTS_QUOTED)
    except (ClientError, BotoCoreError, AttributeError) as error:
        # They only explain; the sentence before them stands without. Lambda's own boto3 may be older than this call (AttributeError).
        return [f"they could not be read ({error})"]
    events = answer.get("Events", ())
    # Each stands in a sentence of ours, which has its own full stop.
    return [f"{entry.get('InstanceGroupName', '')} {entry.get('Description', '')}".strip()[:200].rstrip(". ") for entry in events]
