"""Before a `cdk destroy --all`: what it takes, what stays by `storage.removal`, and whether a job runs. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from config import names
from config.environment import Environment
from config.names import Stack

_GOES: Mapping[Stack, str] = MappingProxyType(
    {
        Stack.OBSERVABILITY: "dashboards and alarms",
        Stack.PLATFORM: "every RayCluster, RayService and RayJob, their load balancers, KubeRay, the namespaces with all that is in them",
        Stack.NODES_READY: "the wait for nodes",
        Stack.HYPERPOD: "the HyperPod cluster with its nodes and their disks",
        Stack.CLUSTER: "the EKS cluster, mirrored charts",
        Stack.TELEMETRY: "the Grafana and Prometheus workspaces with every metric",
        Stack.STUDIO: "the Studio domain and its apps",
        Stack.NETWORK: "the VPC",
    }
)


@dataclass(frozen=True)
class Plan:
    """One sentence for each thing. `stops_at`: protected stacks, where a destroy of everything ends with CloudFormation's refusal.

    `changing`: stacks that an operation still works on. A destroy beside it leaves what that operation makes last
    (https://github.com/aws/aws-cdk/issues/18683).
    """

    goes: Sequence[str]
    stays: Sequence[str]
    stops_at: Sequence[str]
    running: Sequence[str]
    changing: Sequence[str] = ()

    @property
    def refused(self) -> list[str]:
        """Why not to begin now."""
        return [*self.running, *self.changing]

    @property
    def lines(self) -> list[str]:
        """For people."""
        return [
            *(f"goes     {text}" for text in self.goes), *(f"stays    {text}" for text in self.stays),
            *(f"stops at {text}" for text in self.stops_at), *(f"refused  {text}" for text in self.refused),
        ]  # fmt: skip

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "goes": list(self.goes),
            "stays": list(self.stays),
            "stops_at": list(self.stops_at),
            "running": list(self.running),
            "changing": list(self.changing),
        }


def plan(env: Environment, *, stacks: Mapping[str, str], running: Collection[str]) -> Plan:
    """What a destroy of the stacks that are there (name -> status) does; `running` are the ids of runs that have not ended."""
    removal = env.storage.removal
    there = [which for which in Stack if which.value in stacks]
    kept = {which for which in there if removal == "retain" and which in (Stack.DATA, Stack.NETWORK)}
    protected = set(there) if env.termination_protection else kept
    goes = [f"{which.value}: {_GOES[which]}" for which in reversed(there) if which in _GOES and which not in kept]
    stays: list[str] = []
    if Stack.DATA in there:
        bucket, images = names.artifact_bucket(env), names.image_repository(env)
        data = f"the bucket {bucket} and the images in {images}" + (", and their key" if env.storage.encryption == "kms" else "")
        match removal:
            case "destroy":
                goes.append(f"Data: the file system with all of {env.storage.file_system.mount_path}, {data}, for ever")
            case "backup":
                goes.append(f"Data: the file system, after a last backup named {names.file_system(env)}-final")
                stays += ["the last backup of the file system", data]
            case "retain":
                stays += [
                    f"the file system with all of {env.storage.file_system.mount_path}",
                    data,
                    "the VPC, which the file system lives in",
                ]
    by = "termination_protection" if env.termination_protection else "storage.removal: retain"
    stops = [f"{which.value}, which is protected by {by}" for which in reversed(there) if which in protected]
    lose = f"kubectl annotate raycluster {env.ray_cluster.name} -n {env.ray_cluster.namespace} hyperpod-rl/may-lose-jobs=true"
    said = [f"run {run} has not ended: hyperpod-rl stop {run}, or let its work be lost with {lose}" for run in running]
    busy = [f"stack {names.stack(env, which)} is {stacks[which.value]}: wait for its end (hyperpod-rl --env {env.name} status)"
            for which in there if stacks[which.value].endswith("_IN_PROGRESS") and stacks[which.value] != "REVIEW_IN_PROGRESS"]  # fmt: skip
    return Plan(goes, stays, stops, said, busy)
