"""Removes, on delete, what Kubernetes made outside CloudFormation: Ray's objects, then load balancers. Bounded and idempotent.

Without it the operator goes before its objects, whose finalizers then wait for ever, and load balancers keep interfaces in subnets that
CloudFormation cannot delete (https://github.com/aws/aws-cdk/issues/18650, https://github.com/aws/aws-cdk/issues/12130).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .custom_resource import LOG, answering
from .kubernetes_api import Api, Gone, api

PATIENCE_SECONDS = 10 * 60
POLL_SECONDS = 3
# In this order: a RayJob or a RayService would make its RayCluster again.
RAY = ("raycronjobs", "rayjobs", "rayservices", "rayclusters")


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Nothing on create and update. Raises RuntimeError naming what is still there when the time is up."""
    cluster = event["ResourceProperties"]["ClusterName"]
    if event["RequestType"] == "Delete":
        try:
            drain(api(cluster), patience_seconds=PATIENCE_SECONDS)
        except Gone as error:
            LOG.info("nothing to drain: %s", error)
    return f"drain/{cluster}", {}


def drain(server: Api, *, patience_seconds: float) -> None:
    """Delete everything that `leftovers` finds until it finds nothing."""
    deadline = time.monotonic() + patience_seconds
    while left := leftovers(server):
        for path in left:
            server.delete(path)
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"still there after {patience_seconds / 60:.0f} minutes: {', '.join(left)}; "
                "look at their finalizers, then delete the stack again"
            )
        LOG.info("waiting for %s", ", ".join(left))
        time.sleep(POLL_SECONDS)


def leftovers(server: Api) -> list[str]:
    """API paths of Ray objects, or when there are none, of load balancers' services and ingresses."""
    for plural in RAY:
        if found := _paths(server, f"/apis/ray.io/v1/{plural}", "/apis/ray.io/v1", plural):
            return found
    services = server.get("/api/v1/services") or {}
    balancers = [
        _path("/api/v1", "services", item) for item in services.get("items", ()) if item.get("spec", {}).get("type") == "LoadBalancer"
    ]
    return balancers + _paths(server, "/apis/networking.k8s.io/v1/ingresses", "/apis/networking.k8s.io/v1", "ingresses")


def _paths(server: Api, listing: str, group: str, plural: str) -> list[str]:
    listed = server.get(listing) or {}
    return [_path(group, plural, item) for item in listed.get("items", ())]


def _path(group: str, plural: str, item: Mapping[str, Any]) -> str:
    return f"{group}/namespaces/{item['metadata']['namespace']}/{plural}/{item['metadata']['name']}"


handler = answering(work)
