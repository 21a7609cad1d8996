"""A run as a RayJob: the in-cluster alternative to the launcher, for clusters that a controller and not a laptop looks after.

The same command and variables as the launcher's own job (`hyperpod-rl submit --dry-run --json`), on a RayCluster that exists for
this run only. `backoffLimit` is the number of further attempts: each gets a new RayCluster, and the trainer goes on from its last
checkpoint (`trainer.resume_mode=latest`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from config import kubernetes_rules
from config.environment import Environment
from config.problems import Problem, Refused
from k8s import objects
from k8s.objects import Json
from k8s.raycluster import cluster_spec, queue_label, remote_endpoint

LONGEST_NAME = 47


@dataclass(frozen=True)
class Job:
    """What runs: the entrypoint is a shell command, the variables are seen by driver and workers. Times in seconds."""

    run_id: str
    entrypoint: str
    variables: Mapping[str, str]
    metadata: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 3
    deadline_seconds: int | None = None
    pending_seconds: int = 3600
    keep_seconds: int = 600


def from_document(document: object) -> Job:
    """The job in the document that `hyperpod-rl submit --dry-run --json` prints. Raises Refused for anything else."""
    job = document.get("job") if isinstance(document, Mapping) else None
    run_id = document.get("run_id") if isinstance(document, Mapping) else None
    runtime = job.get("runtime_env") if isinstance(job, Mapping) else None
    variables = runtime.get("env_vars") if isinstance(runtime, Mapping) else None
    if (
        not isinstance(job, Mapping)
        or not isinstance(run_id, str)
        or not isinstance(variables, Mapping)
        or not isinstance(job.get("entrypoint"), str)
    ):
        raise Refused(
            Problem("--ray-job", "", "this is not the description of a run", "make it with `hyperpod-rl submit --dry-run --json`")
        )
    metadata = job.get("metadata")
    return Job(
        run_id,
        job["entrypoint"],
        {str(key): str(value) for key, value in variables.items()},
        {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, Mapping) else {},
    )


def name(run_id: str) -> str:
    """Name of the RayJob: the run id, with a letter before a digit. Raises Refused where that is no name."""
    made = run_id if run_id[:1].isalpha() else f"run-{run_id}"
    if len(made) > LONGEST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made):
        raise Refused(
            Problem("run id", run_id, f"a RayJob's name has at most {LONGEST_NAME} of a-z, 0-9 and `-`", "choose a shorter run id")
        )
    return made


def ray_job(env: Environment, job: Job) -> Json:
    """The RayJob of a run. Raises Refused with everything that KubeRay would refuse."""
    namespace = env.ray_cluster.namespace
    spec: Json = {
        "entrypoint": job.entrypoint,
        "runtimeEnvYAML": yaml.safe_dump({"env_vars": dict(job.variables)}, sort_keys=True, default_flow_style=False),
        "metadata": dict(job.metadata),
        # The operator asks Ray itself: a submitter pod would need an image of the same Ray, and a lost answer there submits the run twice
        # (https://github.com/ray-project/kuberay/issues/756).
        "submissionMode": "HTTPMode",
        "backoffLimit": job.attempts - 1,
        "preRunningDeadlineSeconds": job.pending_seconds,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": job.keep_seconds,
        "rayClusterSpec": cluster_spec(env),
    }
    if job.deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = job.deadline_seconds
    metadata: Json = {"name": name(job.run_id), "namespace": namespace}
    metadata["labels"] = objects.labels(env, instance=job.run_id, component="training") | queue_label(env, namespace)
    if annotations := remote_endpoint(env):
        metadata["annotations"] = annotations
    made: dict[str, Any] = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}
    if found := kubernetes_rules.problems(made):
        raise Refused(found)
    return made
