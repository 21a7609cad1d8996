"""A real Ray cluster of processes, reached as on HyperPod: unmodified `ray` and toolkit, EKS token, TLS, cookie, websocket."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local.kubernetes import kubeconfig
from local.kubernetes.cluster import Cluster, Clusters, Node
from local.kubernetes.server import Endpoint, serve
from local.ray import processes
from local.ray.runtime import Runtime
from tests.local.kubernetes.conftest import install_kuberay, ray_cluster
from tests.local.kubernetes.test_server import operator

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
# A bound, not a wait: it takes 10 s on two idle cores, and several minutes when ten others want them.
READY_SECONDS = 300.0


def until(condition: Callable[[], bool], seconds: float = READY_SECONDS) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.1)


@dataclass
class Running:
    cluster: Cluster
    clusters: Clusters
    runtime: Runtime
    state: Path
    environment: dict[str, str]

    def pods(self, kind: str) -> list[dict[str, Any]]:
        found = self.cluster.store.select(kind="Pod", namespace="default")
        return [pod for pod in found if pod["metadata"]["labels"].get("ray.io/node-type") == kind]

    def is_ready(self) -> bool:
        status = (self.cluster.get("RayCluster", "default", "skyrl-visgym") or {}).get("status", {})
        running = [pod for pod in (*self.pods("head"), *self.pods("worker")) if pod["status"]["phase"] == "Running"]
        return status.get("state") == "ready" and len(running) == 2

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "ray"), "job", *arguments]
        return subprocess.run(command, env=self.environment, cwd=self.state, capture_output=True, text=True, timeout=120)


def identity_of(cluster: str, namespace: str, account: str) -> dict[str, str]:
    return {"AWS_CONTAINER_AUTHORIZATION_TOKEN": f"{cluster}/{namespace}/{account}"}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    state = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))  # short: Ray's Unix sockets lie below
    (state / "shared").mkdir()
    runtime = Runtime(
        folder=state / "ray",
        shared=state / "shared",
        root=ROOT,
        environment={"FROM_DAEMON": "yes", "AWS_ACCESS_KEY_ID": "k"},
        identity_of=identity_of,
    )
    clusters = Clusters(ray=runtime)
    cluster = clusters.create("demo")
    cluster.set_nodes([Node(f"n{i}", capacity={"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}) for i in range(2)])
    install_kuberay(cluster)
    operator(cluster)
    up = threading.Event()
    holder: dict[str, Any] = {}

    def ready(endpoint: Endpoint) -> None:
        url, _ = endpoint.of("demo")
        content = kubeconfig.kubeconfig("demo", endpoint=url, authority_data=endpoint.files.authority_data, region="us-west-2")
        kubeconfig.write(state / "kubeconfig", content)
        holder["bundle"] = str(endpoint.files.bundle)
        up.set()

    async def work() -> None:
        holder["task"], holder["loop"] = asyncio.current_task(), asyncio.get_running_loop()
        ports = SimpleNamespace(kubernetes=processes.free_port("127.0.0.1"), dashboards=processes.free_port("127.0.0.1"))
        await serve(clusters, state=state, ports=ports, ready=ready, secret_of=lambda key: "local")

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(work())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert up.wait(30)
        environment = {
            **os.environ, "KUBECONFIG": str(state / "kubeconfig"), "REQUESTS_CA_BUNDLE": holder["bundle"],
            "SSL_CERT_FILE": holder["bundle"], "AWS_ACCESS_KEY_ID": "000000000000", "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_DEFAULT_REGION": "us-west-2", "AWS_EC2_METADATA_DISABLED": "true", "NO_COLOR": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        environment.pop("AWS_ENDPOINT_URL", None)
        found = Running(cluster, clusters, runtime, state, environment)
        value = ray_cluster(gpus=2, **{"access.sagemaker.amazonaws.com__enabled": "true"})
        cluster.apply([value], manager="000000000000")
        until(found.is_ready)
        yield found
    finally:
        holder["loop"].call_soon_threadsafe(holder["task"].cancel)
        thread.join(timeout=120)
        assert processes.marked(processes.FOLDER_MARK, str(state / "ray")) == []
        assert not (state / "ray").exists()
        shutil.rmtree(state, ignore_errors=True)


def test_a_job_through_the_unmodified_toolkit(running: Running) -> None:
    (running.state / "job").mkdir()
    (running.state / "job" / "job.py").write_text(
        "import os, ray\n"
        "ray.init()\n"
        "@ray.remote(num_gpus=1)\n"
        "def where(): return ray.get_runtime_context().get_accelerator_ids()['GPU'], os.environ['HYPERPOD_RL_SHARED']\n"
        "print('gpus', ray.cluster_resources()['GPU'], 'daemon', os.environ['FROM_DAEMON'])\n"
        "print('task', *ray.get(where.remote()), flush=True)\n"
        "print('identity', os.environ.get('AWS_ACCESS_KEY_ID'), os.environ['AWS_CONTAINER_AUTHORIZATION_TOKEN'])\n"
        "import local.ray\n"
    )
    address = "sagemaker_ray://skyrl-visgym/default"
    done = running.ray("submit", "--address", address, "--submission-id", "maze-a1", "--working-dir", "job", "--", "python", "job.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpus 2.0 daemon yes" in done.stdout  # from the websocket that tails the log
    assert f"task ['0'] {running.state / 'shared'}" in done.stdout or f"task ['1'] {running.state / 'shared'}" in done.stdout
    assert "identity None demo/default/default" in done.stdout
    assert "Job 'maze-a1' succeeded" in done.stdout
    failed = running.ray("submit", "--address", address, "--submission-id", "maze-a2", "--", "python", "-c", "raise SystemExit(3)")
    assert failed.returncode == 1
    assert "SUCCEEDED" in running.ray("list", "--address", address).stdout
    unknown = running.ray("list", "--address", "sagemaker_ray://other/default")
    assert unknown.returncode != 0
    assert "Verify the cluster name and namespace" in unknown.stderr + unknown.stdout


def test_a_worker_that_is_killed_comes_back(running: Running) -> None:
    worker = running.pods("worker")[0]
    pids = processes.marked(processes.POD_MARK, worker["metadata"]["uid"])
    raylet = next(pid for pid in pids if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(raylet, signal.SIGKILL)
    until(lambda: running.pods("worker")[0]["status"]["containerStatuses"][0]["restartCount"] >= 1)  # a busy machine may need more than one
    until(running.is_ready)
    assert running.pods("worker")[0]["metadata"]["uid"] == worker["metadata"]["uid"]
    assert running.pods("head")[0]["status"]["containerStatuses"][0]["restartCount"] == 0
    log = running.runtime.log_of(running.cluster, "default", worker["metadata"]["name"])
    assert log is not None
    assert "Ray runtime started" in log.read_text()
    said = [event["message"] for event in running.cluster.store.select(kind="Event", namespace="default") if event["reason"] == "BackOff"]
    assert any("raylet ended with exit code -9" in message for message in said), said


def test_a_head_that_is_killed_takes_its_workers_along_and_all_come_back(running: Running) -> None:
    head, restarts = running.pods("head")[0], running.pods("worker")[0]["status"]["containerStatuses"][0]["restartCount"]
    pids = processes.marked(processes.POD_MARK, head["metadata"]["uid"])
    gcs = next(pid for pid in pids if b"gcs_server" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(gcs, signal.SIGKILL)
    until(lambda: running.pods("worker")[0]["status"]["containerStatuses"][0]["restartCount"] == restarts + 1)
    until(running.is_ready)
    assert running.pods("head")[0]["status"]["containerStatuses"][0]["restartCount"] == 1
    # Jobs die with their head, and their records too.
    assert "maze-a1" not in running.ray("list", "--address", "sagemaker_ray://skyrl-visgym/default").stdout


def test_deleting_it_ends_every_process(running: Running) -> None:
    assert running.runtime.processes() != []
    running.cluster.delete([ray_cluster()])
    assert running.runtime.processes() == []
    assert list((running.state / "ray").iterdir()) == []
    assert running.runtime.dashboard(running.cluster, "default", "skyrl-visgym") is None
    assert running.pods("head") == running.pods("worker") == []
