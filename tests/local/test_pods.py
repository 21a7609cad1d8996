"""The daemon's Ray pods: what they are in AWS, and that none outlives the daemon, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local import lifecycle, processes, state
from tests.local.cloud.conftest import Account, Template, get, group, hyperpod, manifest, ref, resource, role
from tests.local.kubernetes.conftest import ray_cluster

pytestmark = [pytest.mark.cloud, pytest.mark.ray]
# A bound, not a wait: it takes 10 s on two idle cores, and several minutes when ten others want them.
RAY_SECONDS = 300.0


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """A local cloud of its own; its folder is short, since Ray's Unix sockets lie below it."""
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    monkeypatch.setenv(state.FOLDER, str(folder))
    try:
        yield Account(str(lifecycle.up(node_delay=0.2).endpoint))
    finally:
        lifecycle.down(purge=True)
        shutil.rmtree(folder, ignore_errors=True)


def _platform() -> Template:
    """HyperPod, the KubeRay operator, a role for the pods, and a RayCluster of a head and a worker."""
    operator = resource(
        "Custom::AWSCDK-EKS-HelmChart",
        depends_on=["HyperPod"],
        ServiceToken="arn:aws:lambda:us-west-2:000000000000:function:none",
        ClusterName=ref("Eks"),
        Release="kuberay-operator",
        Chart="kuberay-operator",
        Version="1.7.1",
        Repository="https://ray-project.github.io/kuberay-helm/",
        Namespace="kuberay",
        CreateNamespace="true",
    )
    identity = resource(
        "AWS::EKS::PodIdentityAssociation", ClusterName=ref("Eks"), Namespace="default", ServiceAccount="default", RoleArn=get("Pod", "Arn")
    )
    return {
        **hyperpod(group("head", "ml.m5.4xlarge", 2)),
        "Operator": operator,
        "Pod": role("pods.eks.amazonaws.com"),
        "Identity": identity,
        "Ray": manifest(ref("Eks"), ray_cluster(), depends_on=["Operator", "Identity"]),
    }


def _until(condition: Callable[[], bool], seconds: float = RAY_SECONDS) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.2)


def _titles() -> list[str]:
    return [process.arguments[0].split(" ")[0] for process in processes.marked(state.folder())]


def _caller(pid: int) -> str:
    """Who a process with the environment of another one is, by its SDK's own way to credentials."""
    pairs = (Path(f"/proc/{pid}/environ").read_bytes()).split(b"\0")
    environment = dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)
    environment.pop(processes.MARK)
    assert "AWS_ACCESS_KEY_ID" not in environment
    code = "import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_pods_have_their_role_and_end_with_a_daemon_that_is_killed(account: Account) -> None:
    made = account.deploy("platform", _platform(), {"Role": get("Pod", "Arn")})
    _until(lambda: _titles().count("ray::RuntimeEnvAgent") == 2)
    raylet = next(p.pid for p in processes.marked(state.folder()) if "/raylet/raylet" in p.command)
    assert f":assumed-role/{made['Role'].rsplit('/', 1)[-1]}/" in _caller(raylet)
    running = lifecycle.status()
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)
    # Ray's agents outlive what started them: they are the last, without the environment that would name them.
    _until(lambda: "ray::RuntimeEnvAgent" in _titles() and not any("raylet/raylet" in title for title in _titles()), 60)
    before = {process.pid for process in processes.marked(state.folder())}
    assert before
    lifecycle.down()
    assert processes.marked(state.folder()) == []
    assert [pid for pid in before if state.start_time(pid) is not None] == []
    assert not state.ray_folder().exists()
