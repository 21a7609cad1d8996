"""SageMaker: HyperPod clusters, their nodes and events, Studio domains.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeCluster.html and its neighbours.
"""

from __future__ import annotations

from typing import Any

from local.cloud import nodes
from local.cloud.provider import Refusal, judged, validated
from local.cloud.store import Cloud, Resource
from local.cloud.wire import Answer, Operation, ServiceError

HYPERPOD = nodes.HYPERPOD


def _cluster(cloud: Cloud, given: dict[str, Any]) -> Resource:
    name = str(given.get("ClusterName", ""))
    for resource in cloud.store.all(HYPERPOD):
        if name in (resource.properties.get("ClusterName"), resource.id, resource.owned.get("cluster_id")):
            return resource
    raise ServiceError("ResourceNotFound", f"Cluster with name {name} not found.", 400)


def _group(cloud: Cloud, resource: Resource, group: dict[str, Any]) -> Answer:
    running = [n for n in nodes.nodes(resource) if n.group == group["InstanceGroupName"] and n.running]
    count = int(group.get("InstanceCount", 0))
    kept = (
        "InstanceGroupName",
        "InstanceType",
        "LifeCycleConfig",
        "ExecutionRole",
        "InstanceStorageConfigs",
        "OnStartDeepHealthChecks",
        "TrainingPlanArn",
        "OverrideVpcConfig",
        "KubernetesConfig",
    )
    return {
        **{name: group[name] for name in kept if name in group},
        "ThreadsPerCore": int(group.get("ThreadsPerCore", 2)),
        "CurrentCount": len(running),
        "TargetCount": count,
        "Status": "InService" if len(running) == count else "Creating",
    }


def describe_cluster(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _cluster(cloud, given)
    p = resource.properties
    kept = ("Orchestrator", "VpcConfig", "NodeRecovery", "NodeProvisioningMode", "TieredStorageConfig", "ClusterRole")
    return {
        "ClusterArn": resource.id,
        "ClusterName": p["ClusterName"],
        "ClusterStatus": "InService",
        "CreationTime": resource.created,
        "InstanceGroups": [_group(cloud, resource, g) for g in p.get("InstanceGroups", [])],
        **{name: p[name] for name in kept if name in p},
    }


def list_clusters(cloud: Cloud, given: dict[str, Any]) -> Answer:
    part = str(given.get("NameContains", ""))
    return {
        "ClusterSummaries": [
            {
                "ClusterArn": r.id,
                "ClusterName": r.properties["ClusterName"],
                "CreationTime": r.created,
                "ClusterStatus": "InService",
            }
            for r in cloud.store.all(HYPERPOD)
            if part in r.properties["ClusterName"]
        ]
    }


def _node(resource: Resource, node: nodes.HyperPodNode) -> Answer:
    return {
        "InstanceGroupName": node.group,
        "InstanceId": node.instance_id,
        "InstanceType": node.instance_type,
        "LaunchTime": node.launched,
        "InstanceStatus": {"Status": "Running" if node.running else "Pending", "Message": ""},
    }


def list_cluster_nodes(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _cluster(cloud, given)
    part = str(given.get("InstanceGroupNameContains", ""))
    found = [n for n in nodes.nodes(resource) if part in n.group]
    # The API answers pages of at most 100 (`MaxResults`).
    size, start = int(given.get("MaxResults", 100)), int(given.get("NextToken") or 0)
    more = {"NextToken": str(start + size)} if start + size < len(found) else {}
    return {"ClusterNodeSummaries": [_node(resource, n) for n in found[start : start + size]], **more}


def describe_cluster_node(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _cluster(cloud, given)
    for node in nodes.nodes(resource):
        if node.instance_id == given.get("NodeId"):
            groups = {g["InstanceGroupName"]: g for g in resource.properties.get("InstanceGroups", [])}
            group = groups.get(node.group, {})
            extra = {k: group[k] for k in ("LifeCycleConfig", "OverrideVpcConfig") if k in group}
            shown = {**_node(resource, node), "ThreadsPerCore": int(group.get("ThreadsPerCore", 2)), **extra}
            return {"NodeDetails": {**shown, "PrivateDnsHostname": f"{node.name}.local"}}
    raise ServiceError("ResourceNotFound", f"Instance {given.get('NodeId')} is not part of the cluster.")


def list_cluster_events(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _cluster(cloud, given)
    return {
        "Events": [
            {
                "EventId": e.id,
                "ClusterArn": resource.id,
                "ClusterName": resource.properties["ClusterName"],
                "InstanceGroupName": e.group,
                "InstanceId": e.instance_id,
                "ResourceType": "Instance",
                "EventTime": e.time,
                "Description": e.description,
                "EventLevel": e.level,
            }
            for e in nodes.events(resource)
            if given.get("InstanceGroupName") in (None, e.group) and given.get("NodeId") in (None, e.instance_id)
        ]
    }


def update_cluster(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _cluster(cloud, given)
    changed = {k: v for k, v in given.items() if k in ("InstanceGroups", "NodeRecovery", "TieredStorageConfig")}
    # Groups that the call leaves out stay as they are.
    if "InstanceGroups" in changed:
        named = {g["InstanceGroupName"]: g for g in changed["InstanceGroups"]}
        old = {g["InstanceGroupName"]: g for g in resource.properties.get("InstanceGroups", [])}
        gone = set(given.get("InstanceGroupsToDelete", []))
        changed["InstanceGroups"] = [g for n, g in {**old, **named}.items() if n not in gone]
    new = {**resource.properties, **changed}
    try:
        validated(HYPERPOD, new, resource.logical_id)
        judged(cloud, "update", HYPERPOD, resource.logical_id, new, resource.properties, resource.id)
    except Refusal as error:
        raise ServiceError("ValidationException", str(error)) from error
    resource.properties = new
    nodes.schedule(cloud, resource)
    return {"ClusterArn": resource.id}


def _batch(remove: bool) -> Operation:
    def call(cloud: Cloud, given: dict[str, Any]) -> Answer:
        resource = _cluster(cloud, given)
        asked = list(given.get("NodeIds", []))
        known = nodes.replace(cloud, resource, asked, remove=remove)
        unknown = [i for i in asked if i not in known]
        if remove:
            failed = [{"NodeId": i, "Code": "NodeIdNotFound", "Message": f"Node {i} is unknown."} for i in unknown]
            return {"Successful": known, "Failed": failed}
        failed = [{"NodeId": i, "ErrorCode": "InstanceIdNotFound", "Message": f"Node {i} is unknown."} for i in unknown]
        return {"Successful": known, "Failed": failed, "FailedNodeLogicalIds": [], "SuccessfulNodeLogicalIds": []}

    return call


def list_domains(cloud: Cloud, given: dict[str, Any]) -> Answer:
    found = cloud.store.all("AWS::SageMaker::Domain")
    return {
        "Domains": [
            {
                "DomainId": r.id,
                "DomainArn": r.attributes["DomainArn"],
                "DomainName": r.properties["DomainName"],
                "Status": "InService",
                "Url": r.attributes["Url"],
            }
            for r in found
        ]
    }


def describe_domain(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """A Studio domain by its id."""
    found = cloud.store.get("AWS::SageMaker::Domain", str(given.get("DomainId")))
    if found is None:
        raise ServiceError("ResourceNotFound", f"Domain {given.get('DomainId')} does not exist.")
    return {
        "DomainId": found.id,
        "DomainArn": found.attributes["DomainArn"],
        "DomainName": found.properties["DomainName"],
        "Status": "InService",
    }


def list_user_profiles(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """User profiles of a domain, or of all."""
    wanted, shown = given.get("DomainIdEquals"), ("DomainId", "UserProfileName")
    found = [r for r in cloud.store.all("AWS::SageMaker::UserProfile") if wanted in (None, r.properties["DomainId"])]
    return {"UserProfiles": [{**{name: r.properties[name] for name in shown}, "Status": "InService"} for r in found]}


def list_spaces(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """Nobody opens Studio on this machine, so there is never a space."""
    return {"Spaces": []}


OPERATIONS: dict[str, Operation] = {
    "DescribeCluster": describe_cluster,
    "ListClusters": list_clusters,
    "ListClusterNodes": list_cluster_nodes,
    "DescribeClusterNode": describe_cluster_node,
    "ListClusterEvents": list_cluster_events,
    "UpdateCluster": update_cluster,
    "BatchDeleteClusterNodes": _batch(remove=True),
    "BatchReplaceClusterNodes": _batch(remove=False),
    "ListDomains": list_domains,
    "DescribeDomain": describe_domain,
    "ListUserProfiles": list_user_profiles,
    "ListSpaces": list_spaces,
}
