"""What the pods themselves say before every submit: which image they run, and what a worker's identity may write.

Asked of Kubernetes while Ray's client starts and Ray is asked, so that a submit takes no longer. The full check, a task that Ray
places on a worker, takes seconds and is for `preflight` alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from config import names
from config.environment import Environment
from config.problems import Failed, Problem, Refused, Unreachable
from training.kubernetes import Kubectl
from training.preflight import cluster
from training.preflight.findings import Finding, Report
from training.run import Specification

LONGEST_SECONDS: Final = 20.0
# With the interpreter of the image and the variables that the run would have.
_SCRIPT: Final = f"""\
import importlib.util, json, os, sys
sys.path = [path for path in sys.path if path]  # Ray's workers do not look where they were started
{cluster.STORES}
module, mount, bucket, key = sys.argv[1:]
try:
    found = not module or importlib.util.find_spec(module) is not None
except Exception as error:
    found = repr(error)
mounted = os.path.isdir(mount) and os.access(mount, os.W_OK)
print("PREFLIGHT " + json.dumps({{"module": found, "mount": mounted, "bucket": stores(bucket, key)}}))
"""


def begin(env: Environment, specification: Specification, *, kubectl: Kubectl | None = None) -> Callable[[], Report]:
    """Begin to ask, in a thread; what is returned waits for the answer. It never raises: what cannot be asked is a warning.

    The local cloud runs no containers, so there is nothing to ask.
    """
    if env.local:
        return Report
    told: list[Report] = []

    def work() -> None:
        told.append(look(kubectl or Kubectl(env), specification))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def answer() -> Report:
        thread.join(LONGEST_SECONDS)
        return told[0] if told else _unasked(f"Kubernetes did not answer within {LONGEST_SECONDS:.0f} s")

    return answer


def look(kubectl: Kubectl, specification: Specification) -> Report:
    """Images of the Ray pods, and one small program in a worker's pod. Raises nothing."""
    env = kubectl.environment
    try:
        pods = cluster.ray_pods(kubectl)
        found = cluster.of_images(env, pods)
    except (Failed, Unreachable, Refused) as error:
        return _unasked(str(error))
    checked = ["the images of the Ray pods"]
    worker = next((name for name in sorted(pods) if _is_ready_worker(pods[name])), None)
    if worker is None:
        return Report(found, checked=tuple(checked))  # Ray counts its GPUs, and says what is missing
    module, mount = cluster.module_of(env.training.entrypoint), env.storage.file_system.mount_path
    bucket, key = names.artifact_bucket(env), f"{names.RUNS_PREFIX}{specification.run_id}/preflight"
    path = specification.variables.get("PYTHONPATH")
    words = (*(("env", f"PYTHONPATH={path}") if path else ()), "python", "-c", _SCRIPT, module or "", mount, bucket, key)
    where = ("--namespace", env.ray_cluster.namespace, "--container", "ray")
    try:
        said = kubectl.run("exec", worker, *where, "--", *words, timeout=LONGEST_SECONDS - 5)
    except (Failed, Unreachable, Refused) as error:
        rule = f"nothing was learnt in pod {worker}: {str(error).rstrip('.')}"
        found.append(Finding("worker-answers", "warning", Problem("worker", "", rule, "hyperpod-rl preflight asks through Ray")))
    else:
        found += cluster.judged(said, "SUCCEEDED", module=module, mount=mount, bucket=bucket)
        checked.append(f"in pod {worker}: imports {module}, writes {mount} and the bucket")
    return Report(tuple(found), checked=tuple(checked))


def _is_ready_worker(pod: Mapping[str, Any]) -> bool:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return labels.get("ray.io/node-type") == "worker" and any(each.get("name") == "ray" and each.get("ready") for each in statuses)


def _unasked(reason: str) -> Report:
    rule = f"nothing was learnt of the Ray pods: {reason.rstrip('.')}"
    problem = Problem("image", "", rule, "see hyperpod-rl cluster status")
    return Report((Finding("cluster-runs-the-pinned-image", "warning", problem),))
