"""Deleting by the services' own calls what CloudFormation made: what somebody does by hand, and what removes a thing that was left."""

from __future__ import annotations

from typing import Any

from local.cloud import provider
from local.cloud.services.sagemaker import _cluster
from local.cloud.store import EKS, Cloud
from local.cloud.wire import Answer, Operation, ServiceError

APP = "AWS::SageMaker::App"


def _deleting(resource_type: str, key: str, attribute: str = "", *, missing: str = "ResourceNotFoundException", **answer: str) -> Operation:
    """Delete the resource whose id (or whose attribute) is in the parameter `key`."""

    def call(cloud: Cloud, given: dict[str, Any]) -> Answer:
        wanted = str(given.get(key))
        for resource in cloud.store.all(resource_type):
            if wanted == (resource.attributes.get(attribute) if attribute else resource.id):
                try:
                    provider.judged(cloud, "delete", resource_type, resource.logical_id, resource.properties, physical_id=resource.id)
                    provider.delete(cloud, resource_type, resource.id)
                except provider.Refusal as error:
                    raise ServiceError("ConflictException", str(error)) from error
                return {key: wanted, **answer}
        raise ServiceError(missing, f"{resource_type} '{wanted}' does not exist.", 404)

    return call


def delete_cluster(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """The HyperPod cluster with its nodes."""
    resource = _cluster(cloud, given)
    provider.delete(cloud, resource.type, resource.id)
    return {"ClusterArn": resource.id}


def delete_eks_cluster(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """The EKS cluster with everything in it."""
    from local.cloud import eks_clusters, ministack

    name = str(given.get("name"))
    if cloud.store.get(EKS, name) is None:
        raise ServiceError("ResourceNotFoundException", f"No cluster found for name: {name}.", 404)
    eks_clusters.deleted(cloud, name)
    ministack.forget_eks_cluster(name)
    return {"cluster": {"name": name, "status": "DELETING"}}


def list_apps(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """Apps of a domain, or of all."""
    wanted = given.get("DomainIdEquals")
    shown = ("DomainId", "UserProfileName", "AppType", "AppName")
    return {"Apps": [
        {**{name: r.properties[name] for name in shown if name in r.properties}, "Status": "InService", "CreationTime": r.created}
        for r in cloud.store.all(APP) if wanted in (None, r.properties.get("DomainId"))
    ]}  # fmt: skip


def delete_app(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """One app."""
    keys = ("DomainId", "UserProfileName", "AppType", "AppName")
    for resource in cloud.store.all(APP):
        if all(resource.properties.get(key) == given.get(key) for key in keys):
            provider.delete(cloud, APP, resource.id)
            return {}
    raise ServiceError("ResourceNotFound", f"App {given.get('AppName')} does not exist.")


def delete_user_profile(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """One user profile of a domain."""
    kind, keys = "AWS::SageMaker::UserProfile", ("DomainId", "UserProfileName")
    for resource in cloud.store.all(kind):
        if all(resource.properties.get(key) == given.get(key) for key in keys):
            provider.delete(cloud, kind, resource.id)
            return {}
    raise ServiceError("ResourceNotFound", f"UserProfile {given.get('UserProfileName')} does not exist.")


FSX: dict[str, Operation] = {
    "DeleteFileSystem": _deleting("AWS::FSx::FileSystem", "FileSystemId", missing="FileSystemNotFound", Lifecycle="DELETING")
}
PROMETHEUS: dict[str, Operation] = {"DeleteWorkspace": _deleting("AWS::APS::Workspace", "workspaceId", "WorkspaceId")}
GRAFANA: dict[str, Operation] = {"DeleteWorkspace": _deleting("AWS::Grafana::Workspace", "workspaceId")}
EKS_OPERATIONS: dict[str, Operation] = {"DeleteCluster": delete_eks_cluster}
SAGEMAKER: dict[str, Operation] = {
    "DeleteCluster": delete_cluster,
    "DeleteDomain": _deleting("AWS::SageMaker::Domain", "DomainId"),
    "DeleteUserProfile": delete_user_profile,
    "ListApps": list_apps,
    "DeleteApp": delete_app,
}
