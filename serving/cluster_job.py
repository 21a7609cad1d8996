"""`gate` and `promote` where the shared file system is mounted: a Kubernetes Job with the training image and this very code.

The code travels as a ConfigMap: a zip of the packages that the command needs, which Python imports from as it is. Its name is its
digest, so that a Job never runs other code than it was started with.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import shlex
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from config import gpu_rules, names
from config.load import ROOT, path_of
from config.problems import Failed, Problem, Refused
from serving.store import BUCKET_VARIABLE

if TYPE_CHECKING:
    from config.environment import Environment
    from training.kubernetes import Kubectl

PACKAGES: Final = ("config", "training", "serving", "cli")
LARGEST: Final = 900_000  # of the zip: a ConfigMap holds 1 MiB, and base64 takes a third more
MOUNT: Final = "/opt/hyperpod-rl"
KIND: Final = "jobs.batch"
LABEL: Final = "app.kubernetes.io/component"
USER: Final = 1000  # `ray` of the training image
MINUTES: Final = 60.0
_OWN_CODES: Final = (1, 2, 3)  # what `hyperpod-rl` itself ends with: it has printed why
Json = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is applied: the code's ConfigMap and the Job, and the name of both."""

    name: str
    namespace: str
    objects: tuple[Json, ...]

    def text(self) -> str:
        """As YAML."""
        return yaml.safe_dump_all(self.objects, sort_keys=False, width=1000)


@dataclass(frozen=True)
class Ended:
    """What the command printed, and its exit code."""

    printed: str
    exit_code: int


def bundle(root: Path = ROOT) -> bytes:
    """The packages as a zip, the same bytes every time. Raises Refused where it is too large for a ConfigMap."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                file.writestr(entry, path.read_bytes())
    if len(found := content.getvalue()) > LARGEST // 4 * 3:
        raise Refused(Problem("code", f"{len(found)} bytes", "the zip does not fit into a ConfigMap", "run the command where /shared is"))
    return found


def job(env: Environment, *, environment_name: str, words: Sequence[str], gpus: int = 0, by: str, code: bytes | None = None) -> Job:
    """The Job that runs `hyperpod-rl WORDS`. With GPUs it stands on a worker, else on the system nodes or the head.

    `words` are the command and its arguments, without `--env`; raises Refused for an environment that has no file.
    """
    zipped = bundle() if code is None else code
    files = {"environment.yaml": path_of(environment_name).read_text(encoding="utf-8")}
    group = env.workers if gpus else next((group for group in env.groups("system") if group.count), env.head)
    command = ["python", "-m", "cli.main", "--env", f"{MOUNT}/environment.yaml", *words]
    variables = {
        "PYTHONPATH": ":".join([f"{MOUNT}/code.zip", *([env.training.code_path] if env.training.code_path else [])]),
        "HYPERPOD_RL_SUBMITTER": by, BUCKET_VARIABLE: names.artifact_bucket(env), "AWS_REGION": env.region, "HOME": "/tmp",  # noqa: S108
    }  # fmt: skip
    amounts = {"cpu": "4" if gpus else "2", "memory": "64Gi" if gpus else "8Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    labels = {"app.kubernetes.io/managed-by": "hyperpod-rl", "app.kubernetes.io/instance": env.name, LABEL: "releases"}
    mount = env.storage.file_system.mount_path
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "serviceAccountName": names.RELEASE_SERVICE_ACCOUNT,
        "nodeSelector": {gpu_rules.INSTANCE_GROUP: group.name},
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "command",
                "image": names.image_uri(env),
                "command": command,
                "workingDir": "/tmp",  # noqa: S108
                "env": [{"name": name, "value": value} for name, value in sorted(variables.items())],
                "resources": {"requests": amounts, "limits": dict(amounts)},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "shared", "mountPath": mount}, {"name": "code", "mountPath": MOUNT, "readOnly": True}],
            }
        ],
    }
    pod["tolerations"] = [
        {"key": taint.key, "operator": "Equal" if taint.value else "Exists", "effect": taint.effect}
        | ({"value": taint.value} if taint.value else {})
        for taint in group.taints
    ]
    spec: Json = {
        # A gate that says no, or a refusal, says the same the next time.
        "backoffLimit": 0, "activeDeadlineSeconds": round(MINUTES * 60), "ttlSecondsAfterFinished": 86400,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }  # fmt: skip
    total = hashlib.sha256(zipped + json.dumps([files, spec], sort_keys=True).encode() + str(time.time_ns()).encode())
    name = f"{words[0]}-{total.hexdigest()[:10]}"
    pod["volumes"] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": names.SHARED_CLAIM}},
        {"name": "code", "configMap": {"name": name}},
    ]
    place = {"name": name, "namespace": env.ray_cluster.namespace, "labels": labels}
    configuration: Json = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": dict(place), "immutable": True,
        "binaryData": {"code.zip": base64.b64encode(zipped).decode()}, "data": files,
    }  # fmt: skip
    return Job(name, env.ray_cluster.namespace, (configuration, {"apiVersion": "batch/v1", "kind": "Job", "metadata": place, "spec": spec}))


def run(
    kubectl: Kubectl, wanted: Job, *, note: Callable[[str], None], minutes: float = MINUTES, sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Ended:  # fmt: skip
    """Apply the Job, wait for its end, and return what the command printed and how it ended. The Job goes by itself after a day.

    Its code goes with it, or here when the command has ended: whoever interrupts this does not take it away from a pod that still
    starts. Raises Failed where the Job ended without the command (no image, no time), or did not end in time; Unreachable.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(wanted.text(), encoding="utf-8")
        kubectl.apply(Path(folder))
    _bind(kubectl, wanted)
    note(f"Job {wanted.name} runs in namespace {wanted.namespace}")
    ended = _ended(kubectl, wanted, note=note, minutes=minutes, sleep=sleep, now=now)
    kubectl.delete("configmaps", namespace=wanted.namespace, name=wanted.name)
    return ended


def _bind(kubectl: Kubectl, wanted: Job) -> None:
    """Make the Job the owner of its code, so that Kubernetes removes both, whatever becomes of this process."""
    from training.kubernetes import Rejected

    found = kubectl.get(KIND, namespace=wanted.namespace, name=wanted.name)
    if found is None:
        return
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": wanted.name, "uid": found["metadata"]["uid"]}
    change = json.dumps({"metadata": {"ownerReferences": [owner]}})
    with contextlib.suppress(Rejected):  # who may not patch it has it removed at the end all the same
        kubectl.run("patch", "configmaps", wanted.name, "--namespace", wanted.namespace, "--type", "merge", "--patch", change)


def _ended(
    kubectl: Kubectl, wanted: Job, *, note: Callable[[str], None], minutes: float, sleep: Callable[[float], None], now: Callable[[], float]
) -> Ended:  # fmt: skip
    deadline, told = now() + 60 * minutes, ""
    while now() < deadline:
        found = kubectl.get(KIND, namespace=wanted.namespace, name=wanted.name)
        if found is None:
            raise Failed(f"Job {wanted.name} is gone from namespace {wanted.namespace}")
        status = found.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or [] if c.get("status") == "True"}
        if "Complete" in conditions:
            return Ended(_log(kubectl, wanted), 0)
        if failed := conditions.get("Failed"):
            code = _exit_code(kubectl, wanted)
            if code in _OWN_CODES:
                return Ended(_log(kubectl, wanted), code)
            why = failed.get("message") or failed.get("reason") or "no reason given"
            logs = shlex.join(("kubectl", "-n", wanted.namespace, "logs", f"job/{wanted.name}"))
            raise Failed(f"Job {wanted.name} failed: {why}{f' (exit code {code})' if code is not None else ''}; {logs} says more")
        state = "running" if status.get("ready") else f"waiting: {shlex.join(('kubectl', '-n', wanted.namespace, 'get', 'pods'))} says why"
        if state != told:
            told = state
            note(f"Job {wanted.name} is {state}")
        sleep(2)
    raise Failed(f"Job {wanted.name} did not end within {minutes:.0f} minutes; it goes on in namespace {wanted.namespace}")


def _exit_code(kubectl: Kubectl, wanted: Job) -> int | None:
    """Of the command in the Job's pod; None where it did not end by itself."""
    for pod in kubectl.list("pods", namespace=wanted.namespace, selector=f"batch.kubernetes.io/job-name={wanted.name}"):
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            ended = (status.get("state") or {}).get("terminated")
            if ended is not None:
                return int(ended.get("exitCode", 1))
    return None


def _log(kubectl: Kubectl, wanted: Job) -> str:
    return kubectl.run("logs", f"job/{wanted.name}", "--namespace", wanted.namespace)
