"""The local cloud's real Ray cluster for drills: one head, two workers with a GPU each, pods that come back when they are killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from config.environment import Environment
from config.load import ROOT, parse
from local.kubernetes.cluster import Cluster, Clusters, Node
from local.ray import processes
from local.ray.runtime import Runtime
from local.trainer import shared as trainer_files
from tests.drills.faults import CONTROL
from tests.local.kubernetes.conftest import install_kuberay, ray_cluster
from training import cluster as clusters
from training.kubernetes import Kubectl

# In memory where that can be: a checkpoint of many small files waits for the disk at each of them.
_QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NAME, NAMESPACE = "skyrl-visgym", "training"
# A bound, not a wait: 10 s on two idle cores, minutes when ten others want them.
READY_SECONDS = 300.0
STEPS = 16
SETTINGS = {
    "trainer.epochs": 4, "trainer.train_batch_size": 8, "trainer.policy_mini_batch_size": 4, "trainer.max_training_steps": STEPS,
    "trainer.ckpt_interval": 1, "trainer.max_ckpts_to_keep": 2, "trainer.hf_save_interval": 8, "trainer.eval_interval": 8,
    "generator.n_samples_per_prompt": 2, "generator.max_turns": 6, "trainer.policy.model.lora.rank": 2,
    "trainer.policy.model.lora.alpha": 2,
}  # fmt: skip


def until(condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    """Wait for something that must come; a drill never waits for time alone."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"in {seconds:.0f} s not: {what}"
        time.sleep(0.05)


@dataclass
class Cloud:
    """The cluster, its environment, and the folder that stands for /shared."""

    kubernetes: Cluster
    runtime: Runtime
    environment: Environment
    folder: Path

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    @property
    def control(self) -> Path:
        return self.folder / "control"

    @property
    def address(self) -> str:
        """Of the dashboard; a head that is restarted keeps it."""
        found: list[str] = []

        def known() -> bool:
            url = self.runtime.dashboard(self.kubernetes, NAMESPACE, NAME)
            found.extend([url] if url else [])
            return bool(url)

        until(known, "the dashboard")
        return found[-1]

    def state(self) -> clusters.State:
        """As the launcher reads it from Kubernetes."""
        return clusters.state(_FromStore(self.environment, self.kubernetes))

    def kill(self, kind: str, process: str) -> None:
        """End one process of the first head or worker pod with SIGKILL, as a node that dies would."""
        pods = self.kubernetes.store.select(kind="Pod", namespace=NAMESPACE)
        pod = next(pod for pod in pods if pod["metadata"]["labels"]["ray.io/node-type"] == kind)
        before = pod["status"]["containerStatuses"][0]["restartCount"]
        for pid in processes.marked(processes.POD_MARK, pod["metadata"]["uid"]):
            with contextlib.suppress(OSError):
                if process.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

        def restarted() -> bool:
            found = self.kubernetes.get("Pod", NAMESPACE, pod["metadata"]["name"])
            return bool(found and found["status"]["containerStatuses"][0]["restartCount"] > before)

        until(restarted, f"the restart of the {kind}")

    def kill_driver(self, run_id: str) -> None:
        """End the job's own process."""
        for stat in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = stat.read_bytes().split(b"\0")
                own = f"/runs/{run_id}/".encode()
                if b"tests.drills.faults" in words and any(own in word for word in words) and words[0].endswith((b"python", b"python3")):
                    os.kill(int(stat.parent.name), signal.SIGKILL)

    def adapter(self, run_id: str) -> bytes:
        """The last export of a run."""
        return self.export(run_id, STEPS)

    def export(self, run_id: str, step: int) -> bytes:
        """The adapter of one export."""
        return (self.shared / f"runs/{run_id}/exports/global_step_{step}/policy/adapter_model.safetensors").read_bytes()


@dataclass(frozen=True)
class _FromStore(Kubectl):
    """What kubectl would print, from the API server's own store."""

    kubernetes: Any = None

    def __init__(self, environment: Environment, kubernetes: Cluster) -> None:
        object.__setattr__(self, "environment", environment)
        object.__setattr__(self, "kubernetes", kubernetes)

    def get(self, kind: str, *, namespace: str, name: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.kubernetes.get("RayCluster", namespace, name)
        return found

    def list(self, kind: str, *, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        if kind != "pods":
            return []
        found: list[dict[str, Any]] = self.kubernetes.store.select(kind="Pod", namespace=namespace)
        return found


def environment_data(control: Path) -> dict[str, Any]:
    """Environment local with a small run, and with the trainer whose faults a drill works."""
    data: dict[str, Any] = yaml.safe_load((ROOT / "environments/local.yaml").read_text())
    data["instance_groups"][2] |= {"instance_type": "ml.g7e.2xlarge", "count": 2}
    data["training"]["entrypoint"] = f"env {CONTROL}={control} python -m tests.drills.faults --env_variant sft"
    data["training"]["overrides"] |= SETTINGS
    return data


@contextlib.contextmanager
def cloud() -> Iterator[Cloud]:
    """Start it, and end every process of it."""
    folder = Path(tempfile.mkdtemp(prefix="hd-", dir="/tmp"))  # short: Ray's Unix sockets lie below
    for name in ("shared", "control"):
        (folder / name).mkdir()
    runtime = Runtime(folder=folder / "ray", shared=folder / "shared", root=ROOT)
    try:
        kubernetes = Clusters(ray=runtime).create("demo")
        kubernetes.set_nodes([Node(f"n{i}", capacity={"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}) for i in range(3)])
        install_kuberay(kubernetes)
        kubernetes.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}], manager="drill")
        wanted = ray_cluster(NAME, workers=2, gpus=1, namespace=NAMESPACE)
        limits = wanted["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]
        for amounts in limits.values():
            amounts["cpu"] = "2"
        kubernetes.apply([wanted], manager="drill")
        found = Cloud(kubernetes, runtime, parse(yaml.safe_dump(environment_data(folder / "control")), where="local"), folder)
        from local.trainer.pretrain import base_model

        before = os.environ.get(trainer_files.SHARED_VARIABLE)
        os.environ[trainer_files.SHARED_VARIABLE] = str(folder / "shared")
        try:
            base_model(trainer_files.on_this_machine(found.environment.training.base_model))
            until(lambda: found.state().ready, "the Ray cluster")
            yield found
        finally:
            os.environ.pop(trainer_files.SHARED_VARIABLE)
            if before is not None:
                os.environ[trainer_files.SHARED_VARIABLE] = before
    finally:
        runtime.stop()
        assert processes.marked(processes.FOLDER_MARK, str(folder / "ray")) == []
        shutil.rmtree(folder, ignore_errors=True)
