"""What only the running cluster can say: its Ray version, its GPUs, its clock, and whether a worker can do the run's work."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from config import names
from config.environment import Environment
from config.problems import Problem, Unreachable, without_password
from training import artifacts, layout
from training.connection import Answered, Connection
from training.kubernetes import Kubectl
from training.preflight.findings import Finding
from training.run import Specification

# AWS refuses signatures that are more than 5 minutes off (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html).
SKEW_ERROR_SECONDS, SKEW_WARNING_SECONDS = 300.0, 30.0
PROBE_TIMEOUT_SECONDS, REMOVE_TIMEOUT_SECONDS = 180.0, 20.0
_TERMINAL: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class Cluster:
    """What the Ray dashboard says. `gpus` and `skew_seconds` are None where it does not say."""

    ray_version: str
    gpus: int | None
    skew_seconds: float | None


def look(connection: Connection, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Cluster:
    """Ask the cluster. Raises Unreachable if the dashboard does not answer at all."""
    try:
        answer = connection.call(lambda client: client._do_request("GET", "/api/version"))
        said = answer.json()
    except Answered as error:
        raise Unreachable(f"the Ray cluster does not tell its version: {error}") from None
    except ValueError:
        raise Unreachable(f"what answers at {without_password(connection.address)} is no Ray dashboard") from None
    version = str(said.get("ray_version", "")) if isinstance(said, dict) else ""
    return Cluster(ray_version=version, gpus=_gpus(connection), skew_seconds=_ahead(answer.headers.get("Date"), now()))


def _ahead(date: str | None, now: datetime) -> float | None:
    """Seconds by which an HTTP date is ahead of this machine's clock; None where it is no date."""
    try:
        told = parsedate_to_datetime(date or "")
    except (ValueError, TypeError, IndexError):
        return None
    return ((told if told.tzinfo else told.replace(tzinfo=UTC)) - now).total_seconds()


def _gpus(connection: Connection) -> int | None:
    """GPUs of the nodes that are alive (Ray's state API, ray/dashboard/state_aggregator.py)."""
    try:
        said = connection.call(lambda client: client._do_request("GET", "/api/v0/nodes?detail=1&limit=10000").json())
        nodes = said["data"]["result"]["result"]
        return int(sum(float(node["resources_total"].get("GPU", 0)) for node in nodes if node["state"] == "ALIVE"))
    except (Answered, Unreachable, KeyError, TypeError, ValueError, AttributeError):
        return None


def judge(cluster: Cluster, specification: Specification, *, ray: str, wanted_gpus: int) -> list[Finding]:
    """What is wrong with the cluster for this run; `ray` is the version set's, `wanted_gpus` what the run reserves."""
    return [
        Finding(name, level, problem)  # type: ignore[arg-type]
        for name, level, problem in (
            *_version(cluster, ray), *_too_few(cluster, specification, wanted_gpus), *_skew(cluster),
        )
    ]  # fmt: skip


def _version(cluster: Cluster, ray: str) -> Iterator[tuple[str, str, Problem]]:
    if cluster.ray_version and cluster.ray_version != ray:
        level = "warning" if cluster.ray_version.split(".")[:2] == ray.split(".")[:2] else "error"
        rule = f"the version set has Ray {ray}: the cluster runs another image than the environment names"
        problem = Problem("Ray", cluster.ray_version, rule, "hyperpod-rl cluster up, with the image that image build made")
        yield "cluster-runs-the-version-set", level, problem


def _too_few(cluster: Cluster, specification: Specification, wanted: int) -> Iterator[tuple[str, str, Problem]]:
    if cluster.gpus is not None and cluster.gpus < wanted:
        rule = f"run {specification.run_id} reserves {wanted} and would wait for them"
        yield "cluster-has-all-gpus", "error", Problem("GPUs of the Ray cluster", str(cluster.gpus), rule, "see hyperpod-rl cluster status")
    if cluster.gpus is None:
        rule = "the Ray dashboard does not tell its nodes, so GPUs were not counted"
        yield "cluster-has-all-gpus", "warning", Problem("GPUs of the Ray cluster", "", rule, "see hyperpod-rl cluster status")


def _skew(cluster: Cluster) -> Iterator[tuple[str, str, Problem]]:
    if cluster.skew_seconds is None or abs(cluster.skew_seconds) <= SKEW_WARNING_SECONDS:
        return
    level = "error" if abs(cluster.skew_seconds) > SKEW_ERROR_SECONDS else "warning"
    rule = "this machine's clock and the cluster's differ; AWS refuses signatures that are 300 s off"
    yield "clocks-agree", level, Problem("clock", f"{cluster.skew_seconds:+.0f} s", rule, "synchronise this machine's clock (chrony, ntpd)")


def images(kubectl: Kubectl) -> list[Finding]:
    """Whether every Ray pod runs the image that the environment pins, and all of them the same; nothing where Kubernetes does not say."""
    return of_images(kubectl.environment, ray_pods(kubectl))


def ray_pods(kubectl: Kubectl) -> dict[str, Mapping[str, Any]]:
    """The pods of the RayCluster by their names. Raises Rejected, Unreachable, Refused."""
    env = kubectl.environment
    pods = kubectl.list("pods", namespace=env.ray_cluster.namespace, selector=f"ray.io/cluster={env.ray_cluster.name}")
    return {str(pod["metadata"]["name"]): pod for pod in pods}


def of_images(env: Environment, pods: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """What `images` finds in these pods."""
    running: dict[str, str] = {}
    for name, pod in pods.items():
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            # `repository@sha256:…`, as the node pulled it (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/).
            digest = str(container.get("imageID") or "").rpartition("@")[2]
            if container.get("name") == "ray" and digest.startswith("sha256:"):
                running[name] = digest
    pinned, found = env.image.digest, sorted(set(running.values()))
    wrong = sorted(name for name, digest in running.items() if pinned is not None and digest != pinned)
    if wrong:
        rule = f"{len(wrong)} of {len(running)} pods run another image than the pinned {pinned}, for example {wrong[0]}"
        problem = Problem("image", running[wrong[0]], rule, "hyperpod-rl cluster up, which replaces the pods")
        return [Finding("cluster-runs-the-pinned-image", "error", problem)]
    if len(found) > 1:
        rule = f"the pods run {len(found)} different images: a tag was moved between their starts"
        problem = Problem("image", ", ".join(found), rule, "pin image.digest, then hyperpod-rl cluster up")
        return [Finding("cluster-runs-one-image", "error", problem)]
    return []


# Source of a function that says whether an object can be put and removed: True, or why not.
STORES: Final = """\
def stores(bucket, key):
    if bucket is None:
        return True
    try:
        import boto3
        from botocore.config import Config
        client = boto3.client("s3", config=Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2}))
        client.put_object(Bucket=bucket, Key=key, Body=b"")
        client.delete_object(Bucket=bucket, Key=key)
        return True
    except Exception as error:
        return " ".join(str(error).split())[:200]
"""
_PROBE: Final = (
    """\
import importlib.util, json, os, ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
"""
    + STORES
    + """\
@ray.remote(num_cpus=1, max_retries=0)
def look(module, mount, bucket, key):
    mount = os.environ.get(%(variable)r) or mount
    try:
        found = module is None or importlib.util.find_spec(module) is not None
    except Exception as error:
        found = repr(error)
    mounted = os.path.isdir(mount) and os.access(mount, os.W_OK)
    return {"module": found, "mount": mounted, "bucket": stores(bucket, key)}
print("PREFLIGHT " + json.dumps(ray.get(look.remote(%(module)r, %(mount)r, %(bucket)r, %(key)r), timeout=%(timeout)d)))
"""
)


def probe(
    connection: Connection, specification: Specification, *, module: str | None, sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> list[Finding]:  # fmt: skip
    """Run one task on a worker with the run's own variables: does it import the run's code, and write to the file system?

    Ray puts neither the script's folder nor the working directory on the workers' path, so a missing module would show at the first
    rollout only, after every model is loaded. Raises Unreachable if the job does not end in time; it is deleted either way.
    """
    env = connection.environment
    mount = env.storage.file_system.mount_path
    bucket = names.artifact_bucket(env) if not env.local or artifacts.there(env) else None
    script = _PROBE % {
        "module": module, "mount": mount, "bucket": bucket, "timeout": int(PROBE_TIMEOUT_SECONDS),
        "key": f"{names.RUNS_PREFIX}{specification.run_id}/preflight",  # the workers' role writes below the prefix of runs only
        "variable": layout.SHARED_VARIABLE if env.local else "",  # of the local cloud, whose /shared is a folder
    }  # fmt: skip
    # The end is no attempt's (`-a1`), so nobody takes it for a run's.
    job = f"preflight-{specification.run_id}-x{secrets.token_hex(4)}"
    limit = now() + PROBE_TIMEOUT_SECONDS
    try:
        _start(connection, job, f"python -c {shlex.quote(script)}", specification)
        while (status := _status(connection, job)) not in _TERMINAL:
            if now() > limit:
                raise Unreachable(f"the check on a worker did not end within {PROBE_TIMEOUT_SECONDS:.0f} s; are all workers busy?")
            sleep(0.3)
        log = str(connection.call(lambda client: client.get_job_logs(job)))
    finally:
        _remove(connection, job, sleep=sleep, now=now)
    return list(judged(log, status, module=module, mount=mount, bucket=bucket))


def _start(connection: Connection, job: str, command: str, specification: Specification) -> None:
    try:
        connection.call(lambda client: client.submit_job(
            entrypoint=command, submission_id=job, runtime_env={"env_vars": dict(specification.variables)}, metadata={},
        ))  # fmt: skip
    except Answered as error:
        if "already exists" not in str(error):  # then a first call had arrived whose answer was lost
            raise


def _status(connection: Connection, job: str) -> str:
    found = connection.call(lambda client: client.get_job_status(job))
    return str(getattr(found, "value", found))


def _remove(connection: Connection, job: str, *, sleep: Callable[[float], None], now: Callable[[], float]) -> None:
    """Leave no job behind: Ray deletes one only when it has ended, which takes some seconds after it was asked to stop.

    Ray's own watcher of the job looks once a second and may write its last status once more after that (`_monitor_job` in
    ray/dashboard/modules/job/job_manager.py), so the job counts as gone when it stays away for longer than that.
    """
    limit, stopped, absent = now() + REMOVE_TIMEOUT_SECONDS, False, 0
    while now() < limit:
        try:
            if _status(connection, job) in _TERMINAL:
                absent = 0
                connection.call(lambda client: client.delete_job(job))
            elif not stopped:
                stopped = True
                connection.call(lambda client: client.stop_job(job))
        except Unreachable:
            break
        except Answered as error:
            absent += "does not exist" in str(error)
            if absent == 4:
                return
        sleep(0.5)
    connection.note(f"the job {job} may still be there; ray job delete {job} removes it once it has ended")


def judged(log: str, status: str, *, module: str | None, mount: str, bucket: str | None) -> Iterator[Finding]:
    """What the small program's line says; `status` is how it ended."""
    # Ray repeats the entrypoint, which holds the word too, at the head of the log.
    line = next((line for line in log.splitlines() if line.startswith("PREFLIGHT {")), None)
    said: Mapping[str, Any] = {}
    with contextlib.suppress(ValueError):
        said = json.loads((line or "").partition("PREFLIGHT ")[2])
    if not {"module", "mount"} <= set(said):
        last = [text for text in log.splitlines() if text.strip()][-1:]
        rule = f"the check on a worker ended {status.lower()} and told nothing: {' '.join(last)[:200]}"
        yield Finding("worker-runs-a-task", "error", Problem("worker", "", rule, "see hyperpod-rl cluster status"))
        return
    if said["module"] is not True:
        why = f" ({said['module']})" if isinstance(said["module"], str) else ""
        rule = f"a worker cannot import it{why}: the run would fail at its first rollout"
        yield Finding("worker-imports-the-code", "error", Problem("module", str(module), rule, "set training.code_path, or mend the image"))
    if not said["mount"]:
        rule = "a worker cannot write there, and checkpoints go there"
        yield Finding("worker-writes-shared", "error", Problem("file system", mount, rule, "see the PersistentVolumeClaim of the workers"))
    if (why := said.get("bucket", True)) is not True:
        rule = f"the workers' identity cannot write below {names.RUNS_PREFIX}: {why}"
        fix = "see the Pod Identity association of the training service account, and hyperpod-rl doctor"
        yield Finding("worker-writes-bucket", "warning", Problem("artifact bucket", str(bucket), rule, fix))


def module_of(entrypoint: str) -> str | None:
    """The module or package that workers import for an entrypoint: `python -m a.b` gives a.b, `python x/y/z.py` gives x."""
    words = entrypoint.split()
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    script = next((word for word in words if word.endswith(".py")), None)
    return script.split("/")[0] if script is not None and "/" in script and not script.startswith(("/", ".")) else None
