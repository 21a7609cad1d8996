"""`POST .../raydashboardconnections`: the one call that the toolkit for `sagemaker_ray://` makes to Kubernetes.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-dashboard-access-strategies.html
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from local.kubernetes.cluster import Cluster
from local.kubernetes.discovery import CONNECTION
from local.kubernetes.errors import Rejected
from local.ray.sessions import Sessions, Target

ENABLED = "access.sagemaker.amazonaws.com/enabled"
STRATEGY = "access.sagemaker.amazonaws.com/access-strategy"
PRIVATE, PUBLIC = "ray-access-strategy-private", "ray-access-strategy-public"


def connect(cluster: Cluster, namespace: str, body: Any, *, identity: str, sessions: Sessions, proxy: str) -> dict[str, Any]:
    """The answer with `status.connectionUrl`. `proxy` is the URL of the dashboards' proxy.

    Raises `Rejected`: NotFound without operator or RayCluster, Forbidden where its access strategy says so.
    """
    if not operator_installed(cluster):
        text = (
            "the server could not find the requested resource: the RayDashboardConnection API is not available on this cluster;"
            " install the hyperpod-ray-endpoint-operator Helm chart"
        )
        raise Rejected(text, reason="NotFound")
    spec = body.get("spec") if isinstance(body, dict) else None
    name = (spec or {}).get("clusterName")
    if not name and (spec or {}).get("endpoint"):
        raise Rejected("spec.endpoint: a RayCluster has no host name of its own here; use spec.clusterName", reason="BadRequest")
    if not isinstance(name, str) or not name:
        raise Rejected("spec.clusterName: Required value")
    found = cluster.get("RayCluster", namespace, name)
    if found is None:
        raise Rejected(f'rayclusters.ray.io "{name}" not found', reason="NotFound")
    if not _enabled(cluster, found):
        text = f'rayclusters.ray.io "{name}" is forbidden: remote endpoints are off; set the annotation {ENABLED}: "true"'
        raise Rejected(text, reason="Forbidden")
    annotations = found["metadata"].get("annotations") or {}
    creator = cluster.creators.get(found["metadata"]["uid"])
    if annotations.get(STRATEGY, PRIVATE) != PUBLIC and creator != identity:
        text = f'rayclusters.ray.io "{name}" is forbidden: its access strategy is private and {identity} did not create it'
        raise Rejected(text, reason="Forbidden")
    token = sessions.token(Target(cluster.name, namespace, name))
    base = urlsplit(proxy)
    metadata = body.get("metadata") or {}
    return {
        "apiVersion": CONNECTION.api_version,
        "kind": CONNECTION.kind,
        "metadata": {"name": metadata.get("name") or f"{metadata.get('generateName', name + '-')}connection", "namespace": namespace},
        "spec": {"clusterName": name},
        "status": {"connectionUrl": f"{base.scheme}://{base.netloc}/bearer-auth?token={token}"},
    }


def operator_installed(cluster: Cluster) -> bool:
    """Whether the Ray Endpoint Operator serves its API."""
    return cluster.get("APIService", None, f"{CONNECTION.version}.{CONNECTION.group}") is not None


def _enabled(cluster: Cluster, found: dict[str, Any]) -> bool:
    """The object's own switch, else the operator's default."""
    said = (found["metadata"].get("annotations") or {}).get(ENABLED)
    if said is not None:
        return str(said).lower() == "true"
    for release in cluster.releases.values():
        manager = release.values.get("manager")
        if release.chart_name == "hyperpod-ray-endpoint-operator" and isinstance(manager, dict):
            return str(manager.get("enableEndpointsByDefault")).lower() == "true"
    return False
