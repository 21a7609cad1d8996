"""The RayCluster that training runs on: applied from `dist/`, waited for, told about, and taken down again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from config import capacity
from config.digest import folder_digest
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused, Unreachable
from training import base_model
from training.kubernetes import Kubectl, Rejected

KIND = "rayclusters.ray.io"
# KubeRay writes `observedGeneration` only when something else in the status changes (ray-operator, utils/consistency.go), so after an
# edit that moves no pod (a toleration) it stays old for ever. An edit that does move pods shows within a second or two.
UNSEEN_SECONDS = 30.0
POLL_SECONDS = 2.0
Note = Callable[[str], None]


@dataclass(frozen=True)
class Clock:
    """Time, so that tests need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


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


@dataclass(frozen=True)
class Manifests:
    """What `python -m k8s` wrote for the RayCluster."""

    folder: Path
    files: Sequence[Path]
    digest: str
    cluster: Mapping[str, Any] = field(default_factory=dict)


def manifests(env: Environment, environment_name: str, *, root: Path = ROOT) -> Manifests:
    """Find and check the manifests of the RayCluster. Raises Refused if they are missing, broken, or made for something else."""
    from config import names

    folder = root / "dist" / env.name / "raycluster"
    write = f"write them: `python -m k8s --env {environment_name}`"
    files = sorted(path for path in folder.glob("*.yaml")) if folder.is_dir() else []
    if not files:
        raise Refused(Problem("manifests", str(folder), "there are no manifests of the RayCluster", write))
    objects, found = read_objects(files)
    clusters = [obj for obj in objects if obj.get("kind") == "RayCluster"]
    wanted = (env.ray_cluster.namespace, env.ray_cluster.name)
    names_found = [(c.get("metadata", {}).get("namespace"), c.get("metadata", {}).get("name")) for c in clusters]
    if not found and names_found != [wanted]:
        have = ", ".join(f"{namespace}/{name}" for namespace, name in names_found) or "none"
        found.append(
            Problem("manifests", str(folder), f"the environment's RayCluster is {'/'.join(wanted)}, these files hold {have}", write)
        )
    for obj in clusters:
        found += _rules(obj)
        replicas = sum(int(group.get("replicas") or 0) for group in obj.get("spec", {}).get("workerGroupSpecs", []))
        if replicas != env.workers.count:
            found.append(
                Problem("manifests", str(folder), f"they ask for {replicas} workers, the environment has {env.workers.count}", write)
            )
        images = {c.get("image") for c in _containers(obj)}
        if not env.local and names.image_uri(env) not in images:
            found.append(Problem("manifests", str(folder), f"they do not use the environment's image {names.image_uri(env)}", write))
    found += too_many_gpus(env, clusters, beside=folder.parent / "rayservice")
    if found:
        raise Refused(found)
    return Manifests(folder=folder, files=files, digest=folder_digest(folder), cluster=clusters[0])


def read_objects(files: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Every object of these YAML files, and what is wrong with the files."""
    import yaml

    objects: list[dict[str, Any]] = []
    found: list[Problem] = []
    for path in files:
        try:
            documents = list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            found.append(
                Problem("manifests", str(path), f"this is not valid YAML: {' '.join(str(error).split())}", "write the manifests anew")
            )
            continue
        objects += [obj for obj in documents if isinstance(obj, dict)]
    return objects, found


def _containers(cluster: dict[str, Any]) -> Sequence[dict[str, Any]]:
    groups = [cluster.get("spec", {}).get("headGroupSpec", {}), *cluster.get("spec", {}).get("workerGroupSpecs", [])]
    return [container for group in groups for container in group.get("template", {}).get("spec", {}).get("containers", [])]


def _rules(obj: dict[str, Any]) -> Sequence[Problem]:
    from config import kubernetes_rules

    return list(kubernetes_rules.problems(obj))


def too_many_gpus(env: Environment, objects: Sequence[dict[str, Any]], *, beside: Path) -> Sequence[Problem]:
    """GPUs that Ray objects ask for and that are not there; those of the folder `beside` count too, where the two do not take turns."""
    from config import gpu_rules

    more = [] if env.serving.share_workers or not beside.is_dir() else read_objects(sorted(beside.glob("*.yaml")))[0]
    return gpu_rules.problems([*objects, *more], env)


def up(
    kubectl: Kubectl,
    found: Manifests,
    *,
    model: base_model.Manifests | None = None,
    timeout_seconds: float,
    note: Note = lambda _: None,
    clock: Clock = Clock(),
) -> State:
    """Apply the manifests and wait until head and all workers are ready, and the base model is there.

    Raises Rejected if the API server says no, Failed if the model cannot be fetched, Unreachable naming what is missing if the
    time is over.
    """
    env = kubectl.environment
    try:
        if model is not None:
            base_model.start(kubectl, model, sleep=clock.sleep)
        kubectl.apply(found.folder)
    except Rejected as error:
        raise Rejected(f"{error}{missing_step(env, str(error))}") from None

    applied = clock.now()

    def done(state: State) -> bool:
        return state.ready and not state.waiting_for and (state.generation_seen or clock.now() - applied >= UNSEEN_SECONDS)

    def look() -> State:
        now = state(kubectl)
        more = base_model.waits_for(kubectl, model) if model is not None else ()
        return replace(now, waiting_for=(*now.waiting_for, *more))

    return _until(look, done, "ready", timeout_seconds=timeout_seconds, note=note, clock=clock)


def changes(kubectl: Kubectl, found: Manifests) -> Sequence[str]:
    """Fields of the specification that applying would change; empty where there is no RayCluster.

    With `upgradeStrategy: Recreate` KubeRay restarts all pods for any of them, and a running job dies. What is taken out of a
    mapping is not seen, since the API server adds fields of its own there.
    """
    env = kubectl.environment
    live = kubectl.get(KIND, namespace=env.ray_cluster.namespace, name=env.ray_cluster.name)
    return [] if live is None else list(changed_fields(live.get("spec"), found.cluster.get("spec"), "spec"))


def changed_fields(live: object, wanted: object, where: str) -> Iterator[str]:
    """Paths at which what is wanted differs from what is there; what the API server added there is passed over."""
    if isinstance(live, Mapping) and isinstance(wanted, Mapping):
        for key, value in wanted.items():
            yield from changed_fields(live.get(key), value, f"{where}.{key}")
    elif isinstance(live, list) and isinstance(wanted, list) and len(live) == len(wanted):
        for index, (before, after) in enumerate(zip(live, wanted, strict=True)):
            yield from changed_fields(before, after, f"{where}[{index}]")
    elif live != wanted and not (live is None and wanted in ({}, [], "", 0, False)):
        yield where


def down(kubectl: Kubectl, *, timeout_seconds: float, note: Note = lambda _: None, clock: Clock = Clock()) -> State:
    """Delete the RayCluster and wait until it and its pods are gone. Content if there was none. The model stays where it is."""
    env = kubectl.environment
    kubectl.delete(KIND, namespace=env.ray_cluster.namespace, name=env.ray_cluster.name)
    base_model.remove(kubectl)
    return _until(
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
    if notice is not None and kubectl.get("rayservices.ray.io", **where) is not None:
        raise Refused(Problem(f"RayService {env.serving.namespace}/{env.serving.name}", "is up", notice))


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
    return replace(result, waiting_for=_reasons(kubectl, namespace, name, status))


def _gpus(status: dict[str, Any]) -> int:
    value = str(status.get("desiredGPU") or "0")
    return int(value) if value.isdigit() else 0


def _left(kubectl: Kubectl, namespace: str, name: str) -> Sequence[str]:
    pods = kubectl.list("pods", namespace=namespace, selector=f"ray.io/cluster={name}")
    return [f"pod {pod['metadata']['name']} is still there" for pod in pods]


def _reasons(kubectl: Kubectl, namespace: str, name: str, status: dict[str, Any]) -> Sequence[str]:
    """Why it is not ready: KubeRay's own words, each pod that waits, the newest warnings."""
    reasons = [str(status["reason"])] if status.get("reason") else []
    reasons += [
        str(c.get("message")) for c in status.get("conditions") or [] if c.get("type") == "ReplicaFailure" and c.get("status") == "True"
    ]
    pods = kubectl.list("pods", namespace=namespace, selector=f"ray.io/cluster={name}")
    for pod in pods:
        if reason := pod_reason(pod):
            reasons.append(f"pod {pod['metadata']['name']}: {reason}")
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


def pod_reason(pod: dict[str, Any]) -> str:
    """Why a pod is not ready; '' for one that is."""
    status = pod.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    if conditions.get("Ready", {}).get("status") == "True":
        return ""
    if (scheduled := conditions.get("PodScheduled", {})).get("status") == "False":
        return f"not scheduled, {scheduled.get('message') or scheduled.get('reason') or 'no reason given'}"
    for container in status.get("containerStatuses") or []:
        if waiting := (container.get("state") or {}).get("waiting"):
            return f"{waiting.get('reason', 'waiting')}{', ' + waiting['message'] if waiting.get('message') else ''}"
    return f"{str(status.get('phase') or 'Pending').lower()}, not ready yet"


def _until(
    look: Callable[[], State], done: Callable[[State], bool], word: str, *, timeout_seconds: float, note: Note, clock: Clock
) -> State:
    start, said = clock.now(), ""
    while True:
        current = look()
        if done(current):
            return current
        line = "; ".join((current.sentence(), *current.waiting_for[:3]))
        if line != said:
            note(line)
            said = line
        if clock.now() - start >= timeout_seconds:
            missing = "; ".join(current.waiting_for) or "nothing more is known"
            raise Unreachable(f"{current.sentence()}; it was not {word} within {timeout_seconds / 60:.0f} min. It waits for: {missing}")
        clock.sleep(POLL_SECONDS)


def missing_step(env: Environment, said: str) -> str:
    """What to run where the API server says that a namespace or a kind is missing; '' for anything else."""
    if ("namespace" in said and "not found" in said) or "no matches for kind" in said:
        return f"; the Platform stack brings namespace and KubeRay: `cdk deploy --all -c env={env.name}`"
    return ""
