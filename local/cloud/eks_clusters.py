"""EKS clusters: ministack keeps the record that DescribeCluster answers, Kubernetes itself is ours."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

from local.cloud import backing
from local.cloud.store import EKS, Cloud, Properties, Resource


def created(cloud: Cloud, resource: Resource, record: dict[str, Any]) -> Properties:
    """Bring up the Kubernetes of a new cluster, and what EKS makes with it. Changes the record; returns the attributes."""
    name, network = resource.id, resource.properties.get("ResourcesVpcConfig", {})
    cloud.store.add(resource)
    record["status"] = "ACTIVE"
    if cloud.clusters is not None:
        cloud.clusters.create(name)
    if cloud.kubernetes_endpoint is not None:
        url, authority = cloud.kubernetes_endpoint(name)
        record["endpoint"] = url
        record["certificateAuthority"] = {"data": base64.b64encode(authority.encode()).decode()}
        cloud.write_kubeconfig(name, url, authority)
    record["resourcesVpcConfig"].update(backing.add_cluster_security_group(cloud, resource, network.get("SubnetIds", [])))
    for subnet in network.get("SubnetIds", []):
        backing.add_interface(cloud, resource, subnet, list(network.get("SecurityGroupIds", [])), f"Amazon EKS {name}")
    if resource.properties.get("Logging"):
        # EKS makes this group and never deletes it: https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
        logs = cloud.client("logs")
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=f"/aws/eks/{name}/cluster")
    authority_data = record["certificateAuthority"].get("data", "")
    resource.attributes.update(
        {
            "Endpoint": record["endpoint"],
            "CertificateAuthorityData": authority_data,
            "CertificateAuthority.Data": authority_data,
            "ClusterSecurityGroupId": record["resourcesVpcConfig"]["clusterSecurityGroupId"],
            "EncryptionConfigKeyArn": "",
            "Id": "",
        }
    )
    return resource.attributes


def deleted(cloud: Cloud, name: str) -> None:
    """End the cluster's Kubernetes, its Ray processes with it, and remove what EKS made. Idempotent."""
    resource = cloud.store.remove(EKS, name)
    if resource is not None:
        backing.delete(cloud, resource)
    if cloud.clusters is not None:
        cloud.clusters.delete(name)
        cloud.remove_kubeconfig(name)
