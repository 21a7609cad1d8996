"""The endpoint: its RayService applied from `dist/`, waited for, told about, and taken down again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from config import capacity, ingress, names
from config.digest import folder_digest
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused, Unreachable
from serving.store import Conflict, Store
from training import cluster as training_cluster
from training.cluster import Clock, Note
from training.kubernetes import Kubectl, Rejected

KIND: Final = "rayservices.ray.io"
POLL_SECONDS: Final = 2.0
CLOCK: Final = Clock()
_GPU: Final = "nvidia.com/gpu"


@dataclass(frozen=True)
class State:
    """How the RayService stands: its Serve applications (name -> status), and what it waits for."""

    name: str
    namespace: str
    exists: bool = False
    ready: bool = False
    deleting: bool = False
    applications: Mapping[str, str] = field(default_factory=dict)
    deployments: Mapping[str, str] = field(default_factory=dict)
    endpoints: int = 0
    waiting_for: Sequence[str] = ()
    # Whether the status is that of the newest specification; KubeRay does not always say so (training/cluster.py, UNSEEN_SECONDS).
    generation_seen: bool = True

    def sentence(self) -> str:
        """For people, on one line."""
        if not self.exists:
            return f"RayService {self.namespace}/{self.name} does not exist"
        word = "going away" if self.deleting else "ready" if self.ready else "not ready"
        said = [f"application {name} {status.lower()}" for name, status in self.applications.items()] or ["no application yet"]
        return f"RayService {self.namespace}/{self.name} is {word}: {', '.join(said)}, {self.endpoints} pod(s) answer"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name, "namespace": self.namespace, "exists": self.exists, "ready": self.ready, "deleting": self.deleting,
            "applications": dict(self.applications), "deployments": dict(self.deployments), "endpoints": self.endpoints,
            "waiting_for": list(self.waiting_for),
        }  # fmt: skip


@dataclass(frozen=True)
class Manifests:
    """What `python -m k8s` wrote for the endpoint."""

    folder: Path
    files: Sequence[Path]
    digest: str
    service: Mapping[str, Any] = field(default_factory=dict)


def manifests(env: Environment, environment_name: str, *, root: Path = ROOT) -> Manifests:
    """Find and check the manifests of the RayService. Raises Refused if they are missing, broken, or made for something else."""
    from config import kubernetes_rules

    folder = root / "dist" / env.name / "rayservice"
    write = f"write them: `python -m k8s --env {environment_name}`"
    files = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    if not files:
        raise Refused(Problem("manifests", str(folder), "there are no manifests of the RayService", write))
    objects, found = training_cluster.read_objects(files)
    services = [each for each in objects if each.get("kind") == "RayService"]
    wanted = (env.serving.namespace, env.serving.name)
    have = [(each.get("metadata", {}).get("namespace"), each.get("metadata", {}).get("name")) for each in services]
    if not found and have != [wanted]:
        said = ", ".join(f"{namespace}/{name}" for namespace, name in have) or "none"
        found.append(
            Problem("manifests", str(folder), f"the environment's RayService is {'/'.join(wanted)}, these files hold {said}", write)
        )
    for each in services:
        found += kubernetes_rules.problems(each)
        text = str(each.get("spec", {}).get("serveConfigV2"))
        if ingress.uri(env) not in text:
            found.append(Problem("manifests", str(folder), f"they do not start this version's ingress ({ingress.uri(env)})", write))
    found += training_cluster.too_many_gpus(env, services, beside=folder.parent / "raycluster")
    if found:
        raise Refused(found)
    return Manifests(folder=folder, files=files, digest=folder_digest(folder), service=services[0])


def check(kubectl: Kubectl) -> None:
    """What must hold in the cluster before the endpoint is applied: GPUs, and the Secret of its keys. Raises Refused with all."""
    found = [*_sharing(kubectl), *_gpus(kubectl), *_keys(kubectl)]
    if found:
        raise Refused(found)


def _sharing(kubectl: Kubectl) -> Iterator[Problem]:
    notice = capacity.sharing_notice(kubectl.environment)
    if notice is None:
        return
    training = training_cluster.state(kubectl)
    if training.exists or training.waiting_for:
        what = "is going away" if training.deleting or not training.exists else "is up"
        yield Problem(f"RayCluster {training.namespace}/{training.name}", what, notice)


def _gpus(kubectl: Kubectl) -> Iterator[Problem]:
    """GPUs on ready nodes of the group against what the endpoint asks for; nothing where nodes may not be listed."""
    env = kubectl.environment
    group, need = capacity.serving_group(env), capacity.serving_gpus(env)
    try:
        selector = f"sagemaker.amazonaws.com/instance-group-name={group.name}"
        nodes = kubectl.list("nodes", namespace=env.serving.namespace, selector=selector)
    except Rejected:
        return
    ready = [
        node for node in nodes
        if any(c.get("type") == "Ready" and c.get("status") == "True" for c in node.get("status", {}).get("conditions") or [])
    ]  # fmt: skip
    have = sum(int(str((node.get("status", {}).get("allocatable") or {}).get(_GPU, "0")) or 0) for node in ready)
    if have < need:
        rule = f"the endpoint needs {need} GPU(s), and the group has {len(ready)} ready node(s) with {have}"
        yield Problem(f"instance group {group.name}", f"{have} GPUs", rule, "raise the group's count and deploy, or use fewer replicas")


def _keys(kubectl: Kubectl) -> Iterator[Problem]:
    """Only whether the entry is there is looked at."""
    env = kubectl.environment
    if env.serving.authentication != "api-key":
        return
    name, entry = names.api_keys_secret(env), names.API_KEYS_ENTRY
    try:
        secret = kubectl.get("secrets", namespace=env.serving.namespace, name=name)
    except Rejected:
        return  # one who may not read secrets learns it from the pods' state
    if secret is None or not (secret.get("data") or {}).get(entry):
        fix = f"kubectl -n {env.serving.namespace} create secret generic {name} --from-file={entry}=FILE (one key a line)"
        yield Problem(
            f"secret {env.serving.namespace}/{name}", "", f"serving.authentication is api-key, and there is no entry {entry}", fix
        )


def deliver(store: Store) -> bool:
    """Put the ingress's archive into the artifact bucket, where Ray fetches it; False if it is there already."""
    try:
        store.put(ingress.key(), ingress.archive(), if_absent=True)
    except Conflict:
        return False
    return True


def up(
    kubectl: Kubectl,
    found: Manifests,
    store: Store,
    *,
    timeout_seconds: float,
    note: Note = lambda _: None,
    clock: Clock = CLOCK,
) -> State:
    """Deliver the ingress, apply the manifests, and wait until the endpoint answers.

    Raises Refused where `check` says no, Rejected if the API server does, Unreachable naming what is missing if the time is over.
    """
    check(kubectl)
    if deliver(store):
        note(f"delivered the ingress: s3://{store.bucket}/{ingress.key()}")
    try:
        kubectl.apply(found.folder)
    except Rejected as error:
        raise Rejected(f"{error}{training_cluster.missing_step(kubectl.environment, str(error))}") from None
    applied = clock.now()

    def done(state: State) -> bool:
        return state.ready and (state.generation_seen or clock.now() - applied >= training_cluster.UNSEEN_SECONDS)

    return _until(kubectl, done, "ready", timeout_seconds=timeout_seconds, note=note, clock=clock)


def down(kubectl: Kubectl, *, timeout_seconds: float, note: Note = lambda _: None, clock: Clock = CLOCK) -> State:
    """Delete the RayService and wait until it and its pods are gone. Content if there was none. Releases stay where they are."""
    env = kubectl.environment
    kubectl.delete(KIND, namespace=env.serving.namespace, name=env.serving.name)
    kubectl.delete("services", namespace=env.serving.namespace, name=names.load_balancer_service(env))
    return _until(
        kubectl, lambda state: not state.exists and not state.waiting_for, "gone", timeout_seconds=timeout_seconds, note=note, clock=clock
    )  # fmt: skip


def changes(kubectl: Kubectl, found: Manifests) -> Sequence[str]:
    """Fields of the specification that applying would change; empty where there is no RayService."""
    env = kubectl.environment
    live = kubectl.get(KIND, namespace=env.serving.namespace, name=env.serving.name)
    return [] if live is None else list(training_cluster.changed_fields(live.get("spec"), found.service.get("spec"), "spec"))


def state(kubectl: Kubectl) -> State:
    """How the RayService stands now."""
    env = kubectl.environment
    name, namespace = env.serving.name, env.serving.namespace
    live = kubectl.get(KIND, namespace=namespace, name=name)
    if live is None:
        return State(name, namespace, waiting_for=[f"pod {each['metadata']['name']} is still there" for each in _pods(kubectl)])
    status = live.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    seen = int(status.get("observedGeneration") or 0) >= int(live.get("metadata", {}).get("generation") or 0)
    deleting = bool(live.get("metadata", {}).get("deletionTimestamp"))
    ready_condition = conditions.get("Ready", {}).get("status") == "True"
    applications, deployments, messages = _applications(status)
    ready = ready_condition and not deleting and all(said == "RUNNING" for said in applications.values())
    waiting: list[str] = []
    if not ready and not deleting:
        if said := conditions.get("Ready", {}).get("message"):
            waiting.append(str(said))
        waiting += messages
        pods = _pods(kubectl)
        waiting += [f"pod {pod['metadata']['name']}: {reason}" for pod in pods if (reason := training_cluster.pod_reason(pod))]
        if not pods:
            waiting.append("its pods do not exist yet")
    return State(
        name, namespace, exists=True, ready=ready, deleting=deleting, applications=applications, deployments=deployments,
        endpoints=int(status.get("numServeEndpoints") or 0), waiting_for=waiting, generation_seen=seen,
    )  # fmt: skip


def _applications(status: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Statuses of applications and deployments (those of the newer cluster while there are two), and what the bad ones say."""
    applications: dict[str, str] = {}
    deployments: dict[str, str] = {}
    messages: list[str] = []
    for part in ("activeServiceStatus", "pendingServiceStatus"):
        for name, found in ((status.get(part) or {}).get("applicationStatuses") or {}).items():
            applications[name] = str(found.get("status") or "")
            if found.get("status") != "RUNNING" and found.get("message"):
                messages.append(f"application {name}: {_last_line(str(found['message']))}")
            for deployment, its in (found.get("serveDeploymentStatuses") or {}).items():
                deployments[deployment] = str(its.get("status") or "")
                if its.get("status") != "HEALTHY" and its.get("message"):
                    messages.append(f"deployment {deployment}: {_last_line(str(its['message']))}")
    return applications, deployments, messages


def _last_line(message: str) -> str:
    """Of a traceback the line that says what happened."""
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def _pods(kubectl: Kubectl) -> Sequence[dict[str, Any]]:
    env = kubectl.environment
    return kubectl.list("pods", namespace=env.serving.namespace, selector=f"app.kubernetes.io/instance={env.serving.name}")


def _until(
    kubectl: Kubectl, done: Callable[[State], bool], word: str, *, timeout_seconds: float, note: Note, clock: Clock
) -> State:  # fmt: skip
    begin, said = clock.now(), ""
    while True:
        current = state(kubectl)
        if done(current):
            return current
        line = "; ".join((current.sentence(), *current.waiting_for[:3]))
        if line != said:
            note(line)
            said = line
        if clock.now() - begin >= timeout_seconds:
            missing = "; ".join(current.waiting_for) or "nothing more is known"
            raise Unreachable(f"{current.sentence()}; it was not {word} within {timeout_seconds / 60:.0f} min. It waits for: {missing}")
        clock.sleep(POLL_SECONDS)
