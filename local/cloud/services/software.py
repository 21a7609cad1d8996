"""HyperPod's software: a new AMI for the nodes. Here nodes are replaced group by group, which is what a user sees of it.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_UpdateClusterSoftware.html
"""

from __future__ import annotations

from typing import Any

from local.cloud import nodes
from local.cloud.services.sagemaker import _cluster
from local.cloud.store import Cloud
from local.cloud.wire import Answer, Operation, ServiceError


def update_software(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """Replace the nodes of the groups that are named, or of all."""
    resource = _cluster(cloud, given)
    known = {group["InstanceGroupName"] for group in resource.properties.get("InstanceGroups", [])}
    wanted = [str(group["InstanceGroupName"]) for group in given.get("InstanceGroups", [])] or sorted(known)
    if unknown := sorted(set(wanted) - known):
        raise ServiceError("ValidationException", f"Instance groups {', '.join(unknown)} are not part of the cluster.")
    nodes.replace(cloud, resource, [node.instance_id for node in nodes.nodes(resource) if node.group in wanted], remove=False)
    return {"ClusterArn": resource.id}


OPERATIONS: dict[str, Operation] = {"UpdateClusterSoftware": update_software}
