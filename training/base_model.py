"""The base model's way to the shared file system: a Kubernetes Job from `dist/<env>/model`, applied and waited for by `cluster up`.

So no GPU waits for a download, and no trainer has to make one: the entrypoint only looks for the marker of a whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.digest import folder_digest
from config.environment import Environment
from config.load import ROOT
from config.problems import Failed
from training.kubernetes import Kubectl

KIND = "jobs.batch"
# What the Job leaves beside a model that is whole (k8s/fetch_model.py), and whoever puts the weights there by hand.
MARKER = ".complete"
SELECTOR = "app.kubernetes.io/managed-by=hyperpod-rl,app.kubernetes.io/component=model"


@dataclass(frozen=True)
class Manifests:
    """What `python -m k8s` wrote for the download; `jobs` are the names of its Jobs."""

    folder: Path
    files: Sequence[Path]
    jobs: Sequence[str]
    digest: str


def manifests(env: Environment, *, root: Path = ROOT) -> Manifests | None:
    """The manifests; None where the environment fetches nothing (a closed network, a model of the user's own)."""
    import yaml

    folder = root / "dist" / env.name / "model"
    files = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    if not files:
        return None
    objects = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]
    jobs = [obj["metadata"]["name"] for obj in objects if isinstance(obj, dict) and obj.get("kind") == "Job"]
    return Manifests(folder=folder, files=files, jobs=jobs, digest=folder_digest(folder))


def start(kubectl: Kubectl, found: Manifests, *, sleep: Callable[[float], None]) -> None:
    """Apply the Job. One that failed before is removed first: a Job is immutable and would stay failed for ever."""
    namespace = kubectl.environment.ray_cluster.namespace
    for name in found.jobs:
        if (job := kubectl.get(KIND, namespace=namespace, name=name)) is not None and _condition(job, "Failed"):
            kubectl.delete(KIND, namespace=namespace, name=name)
            for _ in range(60):
                if kubectl.get(KIND, namespace=namespace, name=name) is None:
                    break
                sleep(1)
    kubectl.apply(found.folder)


def waits_for(kubectl: Kubectl, found: Manifests) -> Sequence[str]:
    """What the download still waits for; empty when it is done. Raises Failed if it has failed."""
    namespace = kubectl.environment.ray_cluster.namespace
    reasons = []
    for name in found.jobs:
        job = kubectl.get(KIND, namespace=namespace, name=name)
        logs = f"its log: kubectl --namespace {namespace} logs job/{name}"
        if job is None or _condition(job, "Complete"):
            continue  # absent: it was done, and Kubernetes has removed it after its time to live
        if failed := _condition(job, "Failed"):
            raise Failed(f"the base model was not brought to the shared file system: {failed}; {logs}")
        status = job.get("status") or {}
        tries = f", {status['failed']} tries failed ({logs})" if status.get("failed") else ""
        reasons.append(f"base model: Job {name} is {'running' if status.get('active') else 'not started'}{tries}")
    return reasons


def remove(kubectl: Kubectl) -> None:
    """Delete the Job and its script, whichever version of the manifests made them; what it fetched stays."""
    namespace = kubectl.environment.ray_cluster.namespace
    kubectl.delete_selected("jobs.batch,configmaps", namespace=namespace, selector=SELECTOR)


def _condition(job: dict[str, Any], kind: str) -> str:
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") == kind and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or kind)
    return ""
