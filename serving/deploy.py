"""The endpoint: its RayService applied from `dist/`, waited for, told about, and taken down again."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from config import capacity, ingress, names
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused
from serving.ingress import KEYS_VARIABLE, api_keys
from serving.store import Conflict, Store
from training import cluster as training_cluster
from training import manifests as files
from training.kubernetes import Kubectl, Rejected
from training.manifests import Manifests
from training.waiting import CLOCK, UNSEEN_SECONDS, Clock, Note, backing_off, left_pods, members, until, waiting_pods

KIND: Final = files.RESOURCES["RayService"]
_GPU: Final = "nvidia.com/gpu"
# Reasons of the condition Ready (ray-operator, apis/ray/v1/rayservice_types.go).
_TIMED_OUT, _INVALID = "InitializingTimeout", "ValidationFailed"
# What KubeRay leaves out of the digest by which it tells one cluster from another (GenerateHashWithoutReplicasAndWorkersToDelete).
_PASSED_OVER: Final = re.compile(r"\.(replicas|minReplicas|maxReplicas)$|\.tolerations(\[|$)")


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
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    given_up: str = ""
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


def check(kubectl: Kubectl, made: Manifests) -> None:
    """What must hold in the cluster before the endpoint is applied: GPUs, the Secret of its keys, and that KubeRay will heed it.

    Raises Refused with all.
    """
    found = [*_sharing(kubectl), *_gpus(kubectl), *_keys(kubectl), *_heeded(kubectl, made)]
    if found:
        raise Refused(found)


def _heeded(kubectl: Kubectl, made: Manifests) -> Iterator[Problem]:
    """A change that KubeRay passes over in silence: `serve up` would tell of a ready endpoint, and the old one would answer.

    KubeRay compares the clusters without replicas and tolerations, and with the strategy None builds no other one at all
    (ray-operator 1.7.0, rayservice_controller.go: shouldPrepareNewCluster, shouldUpdateCluster, isInitializingTimeout).
    """
    env = kubectl.environment
    where, again = f"RayService {env.serving.namespace}/{env.serving.name}", "run `serve down`, then `serve up`"
    live = kubectl.get(KIND, namespace=env.serving.namespace, name=env.serving.name)
    if live is None or live.get("metadata", {}).get("deletionTimestamp"):
        return
    if (_ready(live).get("reason") or "") == _TIMED_OUT:
        yield Problem(where, "", f"KubeRay has given it up and looks at no change of it ({_said(_ready(live))})", again)
        return
    wanted = made.ray.get("spec", {})
    changed = [each for each in files.changed_fields(live.get("spec"), wanted, "spec") if each.startswith("spec.rayClusterConfig")]
    builds_anew = (wanted.get("upgradeStrategy") or {}).get("type", "NewCluster") != "None"
    if changed and not (builds_anew and any(not _PASSED_OVER.search(each) for each in changed)):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        rule = f"KubeRay leaves the pods of an endpoint that is there as they are, and this would change {', '.join(changed[:3])}{more}"
        yield Problem(where, "", rule, again)


def _ready(live: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (live.get("status") or {}).get("conditions") or ()
    found: Mapping[str, Any] = next((each for each in conditions if each.get("type") == "Ready"), {})
    return found


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
    """Whether the entry is there and the endpoint would start with it; what is in it is not told."""
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
        return
    try:
        api_keys({KEYS_VARIABLE: os.fsdecode(base64.b64decode(secret["data"][entry]))})
    except (RuntimeError, ValueError) as error:
        fix = "write one key a line into the file, and make the Secret anew"
        yield Problem(f"secret {env.serving.namespace}/{name}", entry, str(error).replace(KEYS_VARIABLE, "it"), fix)


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
    check(kubectl, found)
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
    condition = _ready(live)
    seen = int(status.get("observedGeneration") or 0) >= int(live.get("metadata", {}).get("generation") or 0)
    deleting = bool(live.get("metadata", {}).get("deletionTimestamp"))
    ready_condition = condition.get("status") == "True"
    applications, deployments, messages = _applications(status)
    ready = ready_condition and not deleting and all(said == "RUNNING" for said in applications.values())
    waiting: list[str] = []
    pods: Sequence[dict[str, Any]] = ()
    given_up = ""
    if not ready and not deleting:
        if said := condition.get("message"):
            waiting.append(str(said))
        waiting += messages
        pods = _pods(kubectl)
        waiting += waiting_pods(pods)
        given_up = _given_up(condition, applications, messages)
        if not pods:
            waiting.append("its pods do not exist yet")
    return State(
        name, namespace, exists=True, ready=ready, deleting=deleting, applications=applications, deployments=deployments,
        endpoints=int(status.get("numServeEndpoints") or 0), waiting_for=waiting, restarts=backing_off(pods), members=members(pods),
        given_up=given_up, generation_seen=seen,
    )  # fmt: skip


def _said(condition: Mapping[str, Any]) -> str:
    return " ".join(str(condition.get("message") or condition.get("reason") or "it does not say why").split()).rstrip(".")


def _given_up(condition: Mapping[str, Any], applications: Mapping[str, str], messages: Sequence[str]) -> str:
    """Where KubeRay or Serve tries no further: neither of them starts again before what is applied changes."""
    if condition.get("reason") == _TIMED_OUT:
        return f"KubeRay has given it up ({_said(condition)}), and starts again only after `serve down`"
    if condition.get("reason") == _INVALID:
        return f"KubeRay does not accept it ({_said(condition)})"
    failed = [name for name, said in applications.items() if said == "DEPLOY_FAILED"]
    if failed:
        why = "; ".join(messages) or "Serve does not say why"
        return f"Serve has given up application {' and '.join(failed)} and tries it again only after `serve down` or a change of it. {why}"
    return ""


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
