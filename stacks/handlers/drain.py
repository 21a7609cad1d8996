"""Removes, on delete, what Kubernetes made outside CloudFormation: Ray's objects, then load balancers. Bounded and idempotent.

While a job trains it refuses, unless a RayCluster says that its jobs may be lost: a `cdk destroy` in the wrong window must not end a run.

Without it the operator goes before its objects, whose finalizers then wait for ever, and load balancers keep interfaces in subnets that
CloudFormation cannot delete (https://github.com/aws/aws-cdk/issues/18650, https://github.com/aws/aws-cdk/issues/12130).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .custom_resource import LOG, answering
from .kubernetes_api import Api, Gone, Silent, api

PATIENCE_SECONDS = 10 * 60
# So long an API server may be silent and yet come back; one that stays so is as good as gone.
SILENCE_SECONDS = 2 * 60
POLL_SECONDS = 3
# In this order: a RayJob or a RayService would make its RayCluster again.
RAY = ("raycronjobs", "rayjobs", "rayservices", "rayclusters")
# What the launcher started beside Ray (a supervisor, the Jobs of gate and promote): a claim that a pod of theirs mounts is never deleted
# (https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection).
OURS = (("/apis/apps/v1", "deployments"), ("/apis/batch/v1", "jobs"))
SELECTOR = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Dhyperpod-rl"
DASHBOARD_PORT = 8265
MAY_LOSE_JOBS = "hyperpod-rl/may-lose-jobs"


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Nothing on create and update. Raises RuntimeError naming what is still there when the time is up."""
    cluster = event["ResourceProperties"]["ClusterName"]
    if event["RequestType"] == "Delete":
        try:
            _drained(cluster)
        except Gone as error:
            LOG.info("nothing to drain: %s", error)
    return f"drain/{cluster}", {}


def _drained(cluster: str) -> None:
    """Raises Gone when there is no cluster, or when its API server has not answered for too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    silent_since: float | None = None
    while True:
        try:
            server = api(cluster)
            refuse(running_jobs(server))
            silent_since = None
            return drain(server, patience_seconds=end - time.monotonic())
        except Silent as error:
            now = time.monotonic()
            silent_since = now if silent_since is None else silent_since
            if now >= min(silent_since + SILENCE_SECONDS, end):
                raise
            LOG.info("waiting: %s", error)
            time.sleep(POLL_SECONDS)


def refuse(running: list[str]) -> None:
    """Raises RuntimeError that names the jobs, and what a person does about them."""
    if running:
        raise RuntimeError(
            f"nothing was deleted: {'; '.join(running)}. Stop the run (hyperpod-rl stop RUN), or say that its work since the last "
            f"checkpoint may be lost (kubectl annotate raycluster NAME -n NAMESPACE {MAY_LOSE_JOBS}=true), then destroy again"
        )


def running_jobs(server: Api) -> list[str]:
    """One sentence for each RayCluster with submitted jobs that have not ended, as its own dashboard says.

    The dashboard is asked through the API server. One that does not answer (its head is down, or a network policy is in the way) counts as
    idle, for a broken cluster must be destroyable.
    """
    found = []
    for item in (server.get("/apis/ray.io/v1/rayclusters") or {}).get("items", ()):
        metadata = item["metadata"]
        if (metadata.get("annotations") or {}).get(MAY_LOSE_JOBS) == "true":
            continue
        service = item.get("status", {}).get("head", {}).get("serviceName") or f"{metadata['name']}-head-svc"
        path = f"/api/v1/namespaces/{metadata['namespace']}/services/{service}:{DASHBOARD_PORT}/proxy/api/jobs/"
        try:
            jobs: Any = server.get(path) or ()
        except (Gone, RuntimeError, ValueError) as error:  # Gone: a proxied request that timed out looks like a server that is gone
            LOG.warning("jobs of %s are not known: %s", metadata["name"], error)
            continue
        # A list of details: https://docs.ray.io/en/latest/cluster/running-applications/job-submission/doc/ray.job_submission.JobDetails.html
        names = sorted(
            str(job.get("submission_id")) for job in jobs if job.get("submission_id") and job.get("status") in ("PENDING", "RUNNING")
        )
        if names:
            found.append(f"RayCluster {metadata['namespace']}/{metadata['name']} runs {', '.join(names)}")
    return found


def drain(server: Api, *, patience_seconds: float) -> None:
    """Delete everything that `leftovers` finds until it finds nothing."""
    deadline = time.monotonic() + patience_seconds
    while left := leftovers(server):
        for path in left:
            # Ours stay until their pods are gone, so that nothing mounts a claim any more.
            server.delete(path, first_its_pods=path.startswith(tuple(group for group, _ in OURS)))
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"still there after {patience_seconds / 60:.0f} minutes: {', '.join(left)}; "
                "look at their finalizers, then delete the stack again"
            )
        LOG.info("waiting for %s", ", ".join(left))
        time.sleep(POLL_SECONDS)


def leftovers(server: Api) -> list[str]:
    """API paths of what the launcher started, or when there is none, of Ray objects, then of load balancers' services and ingresses."""
    if found := [path for group, plural in OURS for path in _paths(server, f"{group}/{plural}?{SELECTOR}", group, plural)]:
        return found
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
