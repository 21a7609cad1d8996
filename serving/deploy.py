"""The endpoint: its RayService applied from `dist/`, waited for, told about, and taken down again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from config import capacity, ingress, names
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused
from serving.store import Conflict, Store
from training import cluster as training_cluster
from training import manifests as files
from training.kubernetes import Kubectl, Rejected
from training.manifests import Manifests
from training.waiting import CLOCK, UNSEEN_SECONDS, Clock, Note, backing_off, left_pods, until, waiting_pods

KIND: Final = files.RESOURCES["RayService"]
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
    restarts: Mapping[str, int] = field(default_factory=dict)
    # Whether the status is that of the newest specification; KubeRay does not always say so (training/waiting.py, UNSEEN_SECONDS).
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


def manifests(env: Environment, environment_name: str, *, root: Path = ROOT) -> Manifests:
    """Find and check the manifests of the RayService. Raises Refused if they are missing, broken, or made for something else."""
    wanted = (env.serving.namespace, env.serving.name)
    made, found = files.find(env, environment_name, "RayService", wanted=wanted, root=root)
    if made.ray and ingress.uri(env) not in str(made.ray.get("spec", {}).get("serveConfigV2")):
        rule = f"they do not start this version's ingress ({ingress.uri(env)})"
        found.append(Problem("manifests", str(made.folder), rule, files.rewrite(environment_name)))
    if found:
        raise Refused(found)
    return made


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
        yield Problem(f"RayCluster {training.namespace}/{training.name}", "", f"it {what}, and {notice}")


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

    Raises Refused where `check` says no, Rejected if the API server does, Failed if a container ends again and again, Unreachable
    naming what is missing if the time is over.
    """
    check(kubectl)
    if deliver(store):
        note(f"delivered the ingress: s3://{store.bucket}/{ingress.key()}")
    files.apply(kubectl, found.folder)
    applied = clock.now()

    def done(state: State) -> bool:
        return state.ready and (state.generation_seen or clock.now() - applied >= UNSEEN_SECONDS)

    return until(lambda: state(kubectl), done, "ready", timeout_seconds=timeout_seconds, note=note, clock=clock)


def down(kubectl: Kubectl, *, timeout_seconds: float, note: Note = lambda _: None, clock: Clock = CLOCK) -> State:
    """Delete the RayService and wait until it and its pods are gone. Content if there was none. Releases stay where they are."""
    env = kubectl.environment
    kubectl.delete(KIND, namespace=env.serving.namespace, name=env.serving.name)
    kubectl.delete("services", namespace=env.serving.namespace, name=names.load_balancer_service(env))
    return until(
        lambda: state(kubectl),
        lambda state: not state.exists and not state.waiting_for,
        "gone",
        timeout_seconds=timeout_seconds,
        note=note,
        clock=clock,
    )


def state(kubectl: Kubectl) -> State:
    """How the RayService stands now."""
    env = kubectl.environment
    name, namespace = env.serving.name, env.serving.namespace
    live = kubectl.get(KIND, namespace=namespace, name=name)
    if live is None:
        return State(name, namespace, waiting_for=left_pods(_pods(kubectl)))
    status = live.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    seen = int(status.get("observedGeneration") or 0) >= int(live.get("metadata", {}).get("generation") or 0)
    deleting = bool(live.get("metadata", {}).get("deletionTimestamp"))
    ready_condition = conditions.get("Ready", {}).get("status") == "True"
    applications, deployments, messages = _applications(status)
    ready = ready_condition and not deleting and all(said == "RUNNING" for said in applications.values())
    waiting: list[str] = []
    restarts: Mapping[str, int] = {}
    if not ready and not deleting:
        if said := conditions.get("Ready", {}).get("message"):
            waiting.append(str(said))
        waiting += messages
        pods = _pods(kubectl)
        waiting += waiting_pods(pods)
        restarts = backing_off(pods)
        if not pods:
            waiting.append("its pods do not exist yet")
    return State(
        name, namespace, exists=True, ready=ready, deleting=deleting, applications=applications, deployments=deployments,
        endpoints=int(status.get("numServeEndpoints") or 0), waiting_for=waiting, restarts=restarts,
        generation_seen=seen,
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
