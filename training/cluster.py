"""The RayCluster that training runs on: applied from `dist/`, waited for, told about, and taken down again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from config import capacity
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused
from training import base_model
from training import manifests as files
from training.kubernetes import Kubectl
from training.manifests import Manifests
from training.waiting import CLOCK, UNSEEN_SECONDS, Clock, Note, backing_off, left_pods, members, until, waiting_pods

KIND = files.RESOURCES["RayCluster"]


@dataclass(frozen=True)
class State:
    """How the RayCluster stands: head, workers, GPUs, and what it waits for."""

    name: str
    namespace: str
    exists: bool = False
    head_ready: bool = False
    workers_ready: int = 0
    workers_wanted: int = 0
    gpus: int = 0
    state: str = "absent"
    generation_seen: bool = True
    deleting: bool = False
    waiting_for: Sequence[str] = field(default=())
    restarts: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    given_up: str = ""  # KubeRay goes on for ever with a RayCluster

    @property
    def ready(self) -> bool:
        """Head and every worker are ready. Right after a change the status is still the old one's: `generation_seen` tells."""
        return (
            self.exists and not self.deleting and self.head_ready
            and self.workers_wanted > 0 and self.workers_ready >= self.workers_wanted
        )  # fmt: skip

    def sentence(self) -> str:
        """For people, on one line."""
        if not self.exists:
            return f"RayCluster {self.namespace}/{self.name} does not exist"
        word = "going away" if self.deleting else "ready" if self.ready else "not ready"
        head = "head ready" if self.head_ready else "head not ready"
        workers = f"{self.workers_ready} of {self.workers_wanted} workers ready"
        return f"RayCluster {self.namespace}/{self.name} is {word}: {head}, {workers}, {self.gpus} GPUs"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name, "namespace": self.namespace, "exists": self.exists, "ready": self.ready, "state": self.state,
            "head_ready": self.head_ready, "workers_ready": self.workers_ready, "workers_wanted": self.workers_wanted, "gpus": self.gpus,
            "deleting": self.deleting, "waiting_for": list(self.waiting_for),
        }  # fmt: skip


def manifests(env: Environment, environment_name: str, *, root: Path = ROOT) -> Manifests:
    """Find and check the manifests of the RayCluster. Raises Refused if they are missing, broken, or made for something else."""
    from config import names

    wanted = (env.ray_cluster.namespace, env.ray_cluster.name)
    made, found = files.find(env, environment_name, "RayCluster", wanted=wanted, root=root)
    if made.ray:
        replicas = sum(int(group.get("replicas") or 0) for group in made.ray.get("spec", {}).get("workerGroupSpecs", []))
        if replicas != env.workers.count:
            rule = f"they ask for {replicas} workers, the environment has {env.workers.count}"
            found.append(Problem("manifests", str(made.folder), rule, files.rewrite(environment_name)))
        if not env.local and names.image_uri(env) not in {each.get("image") for each in _containers(made.ray)}:
            rule = f"they do not use the environment's image {names.image_uri(env)}"
            found.append(Problem("manifests", str(made.folder), rule, files.rewrite(environment_name)))
    if found:
        raise Refused(found)
    return made


def _containers(cluster: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    groups = [cluster.get("spec", {}).get("headGroupSpec", {}), *cluster.get("spec", {}).get("workerGroupSpecs", [])]
    return [container for group in groups for container in group.get("template", {}).get("spec", {}).get("containers", [])]


def up(
    kubectl: Kubectl,
    found: Manifests,
    *,
    model: base_model.Manifests | None = None,
    timeout_seconds: float,
    note: Note = lambda _: None,
    clock: Clock = CLOCK,
) -> State:
    """Apply the manifests and wait until head and all workers are ready, and the base model is there.

    Raises Rejected if the API server says no, Failed if the model cannot be fetched or a container ends again and again, Unreachable
    naming what is missing if the time is over.
    """
    files.apply(kubectl, found.folder)  # first, so that what the API server refuses has started no download
    if model is not None:
        base_model.start(kubectl, model, sleep=clock.sleep)
    applied = clock.now()

    def done(state: State) -> bool:
        return state.ready and not state.waiting_for and (state.generation_seen or clock.now() - applied >= UNSEEN_SECONDS)

    def look() -> State:
        now = state(kubectl)
        more = base_model.waits_for(kubectl, model) if model is not None else ()
        return replace(now, waiting_for=(*now.waiting_for, *more))

    return until(look, done, "ready", timeout_seconds=timeout_seconds, note=note, clock=clock)


def down(kubectl: Kubectl, *, timeout_seconds: float, note: Note = lambda _: None, clock: Clock = CLOCK) -> State:
    """Delete the RayCluster and wait until it and its pods are gone. Content if there was none. The model stays where it is."""
    env = kubectl.environment
    kubectl.delete(KIND, namespace=env.ray_cluster.namespace, name=env.ray_cluster.name)
    base_model.remove(kubectl)
    return until(
        lambda: state(kubectl),
        lambda state: not state.exists and not state.waiting_for,
        "gone",
        timeout_seconds=timeout_seconds,
        note=note,
        clock=clock,
    )


def check_sharing(kubectl: Kubectl) -> None:
    """Where the endpoint shares the workers' GPUs, it must be down before the RayCluster comes up. Raises Refused."""
    env = kubectl.environment
    notice = capacity.sharing_notice(env)
    where = {"namespace": env.serving.namespace, "name": env.serving.name}
    if notice is not None and kubectl.get(files.RESOURCES["RayService"], **where) is not None:
        raise Refused(Problem(f"RayService {env.serving.namespace}/{env.serving.name}", "", f"it is up, and {notice}"))


def state(kubectl: Kubectl) -> State:
    """How the RayCluster stands now."""
    env = kubectl.environment
    name, namespace = env.ray_cluster.name, env.ray_cluster.namespace
    obj = kubectl.get(KIND, namespace=namespace, name=name)
    if obj is None:
        return State(name=name, namespace=namespace, waiting_for=_left(kubectl, namespace, name))
    spec, status = obj.get("spec", {}), obj.get("status") or {}
    # Group replicas count hosts: a replica of a multi-host group is several pods (KubeRay, `numOfHosts`).
    wanted = sum(int(g.get("replicas") or 0) * int(g.get("numOfHosts") or 1) for g in spec.get("workerGroupSpecs", []))
    conditions = {c.get("type"): c.get("status") == "True" for c in status.get("conditions") or []}
    ready_workers = status.get("readyWorkerReplicas", status.get("availableWorkerReplicas", 0))
    result = State(
        name=name, namespace=namespace, exists=True, state=str(status.get("state") or "pending"),
        head_ready=conditions.get("HeadPodReady", status.get("state") == "ready"),
        workers_ready=int(ready_workers or 0), workers_wanted=wanted, gpus=_gpus(status),
        generation_seen=int(status.get("observedGeneration") or 0) >= int(obj.get("metadata", {}).get("generation") or 0),
        deleting=bool(obj.get("metadata", {}).get("deletionTimestamp")),
    )  # fmt: skip
    if result.ready or result.deleting:
        return result
    pods = kubectl.list("pods", namespace=namespace, selector=f"ray.io/cluster={name}")
    return replace(result, waiting_for=_reasons(kubectl, namespace, name, status, pods), restarts=backing_off(pods), members=members(pods))


def _gpus(status: dict[str, Any]) -> int:
    value = str(status.get("desiredGPU") or "0")
    return int(value) if value.isdigit() else 0


def _left(kubectl: Kubectl, namespace: str, name: str) -> Sequence[str]:
    return left_pods(kubectl.list("pods", namespace=namespace, selector=f"ray.io/cluster={name}"))


def _reasons(kubectl: Kubectl, namespace: str, name: str, status: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Why it is not ready: KubeRay's own words, each pod that waits, the newest warnings."""
    reasons = [str(status["reason"])] if status.get("reason") else []
    reasons += [
        str(c.get("message")) for c in status.get("conditions") or [] if c.get("type") == "ReplicaFailure" and c.get("status") == "True"
    ]
    reasons += waiting_pods(pods)
    watched = {name, *(pod["metadata"]["name"] for pod in pods)}
    events = [
        e
        for e in kubectl.list("events", namespace=namespace)
        if e.get("type") == "Warning" and e.get("involvedObject", {}).get("name") in watched
    ]
    events.sort(key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    reasons += dict.fromkeys(
        f"{e['involvedObject']['name']}: {e.get('reason')}, {' '.join(str(e.get('message')).split())}" for e in events[-3:]
    )
    return reasons
