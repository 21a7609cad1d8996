"""What is asked of the pods before every submit: beside the rest, and never in its way."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cli import main
from config.load import load
from config.problems import Unreachable
from tests.training.fixtures import ray, shared
from tests.training.scripted import Scripted
from training import layout, run
from training.kubernetes import Kubectl, Rejected
from training.preflight import pods

__all__ = ["ray", "shared"]
RIGHT, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
ENV = load("reference").model_copy(update={"image": load("reference").image.model_copy(update={"digest": RIGHT})})
FINE = 'PREFLIGHT {"module": true, "mount": true, "bucket": true}'


def pod(name: str, kind: str, digest: str = RIGHT, *, ready: bool = True) -> dict[str, Any]:
    status = {"containerStatuses": [{"name": "ray", "ready": ready, "imageID": f"1.dkr.ecr/x@{digest}"}]}
    return {"metadata": {"name": name, "labels": {"ray.io/node-type": kind}}, "status": status}


class Cluster(Kubectl):
    """kubectl that knows these pods, and what a program in one of them prints."""

    def __init__(self, found: list[dict[str, Any]], said: str | Exception = FINE) -> None:
        super().__init__(ENV)
        self.__dict__.update(found=found, said=said, ran=[])

    def list(self, kind: str, *, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.__dict__["found"]
        return found

    def run(self, *arguments: str, timeout: float = 0) -> str:
        self.__dict__["ran"].append(arguments)
        if isinstance(said := self.__dict__["said"], Exception):
            raise said
        return str(said)


def look(cluster: Kubectl) -> dict[str, str]:
    report = pods.look(cluster, run.specify(ENV, run_id="maze-1", settings=()))
    return {finding.name: finding.level for finding in report.findings}


def test_a_worker_that_is_ready_is_asked_once_with_the_runs_own_path() -> None:
    cluster = Cluster([pod("h", "head"), pod("w-1", "worker", ready=False), pod("w-2", "worker")])
    assert look(cluster) == {}
    ((verb, name, *words),) = cluster.__dict__["ran"]
    assert (verb, name) == ("exec", "w-2")
    assert "PYTHONPATH=/home/ray/skyrl" in words
    assert words[-4:] == ["examples", "/shared", f"hyperpod-rl-reference-{ENV.account}-us-west-2", "runs/maze-1/preflight"]


def test_another_image_refuses_and_no_worker_is_no_question() -> None:
    cluster = Cluster([pod("h", "head"), pod("w-1", "worker", OTHER, ready=False)])
    assert look(cluster) == {"cluster-runs-the-pinned-image": "error"}
    assert cluster.__dict__["ran"] == []


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('PREFLIGHT {"module": "no", "mount": true, "bucket": true}', {"worker-imports-the-code": "error"}),
        ('PREFLIGHT {"module": true, "mount": false, "bucket": true}', {"worker-writes-shared": "error"}),
        ('PREFLIGHT {"module": true, "mount": true, "bucket": "AccessDenied"}', {"worker-writes-bucket": "warning"}),
        ("", {"worker-runs-a-task": "error"}),
        (Rejected("pods is forbidden: cannot create resource pods/exec"), {"worker-answers": "warning"}),
        (Unreachable("no answer"), {"worker-answers": "warning"}),
    ],
)
def test_what_the_pod_says(said: str | Exception, found: dict[str, str]) -> None:
    assert look(Cluster([pod("w-1", "worker")], said)) == found


@pytest.mark.parametrize("error", [Rejected("forbidden"), Unreachable("away")])
def test_what_cannot_be_asked_is_a_warning(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, kind: str, **_: Any) -> Any:
        raise error

    monkeypatch.setattr(Cluster, "list", refuse)
    assert look(Cluster([])) == {"cluster-runs-the-pinned-image": "warning"}


def test_it_runs_beside_and_is_waited_for_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "LONGEST_SECONDS", 0.05)
    go = threading.Event()
    monkeypatch.setattr(Cluster, "list", lambda self, kind, **_: (go.wait(10), [])[1])
    began = time.monotonic()
    answer = pods.begin(ENV, run.specify(ENV, run_id="maze-1", settings=()), kubectl=Cluster([]))
    (finding,) = answer().findings
    assert time.monotonic() - began < 5
    assert (finding.level, "did not answer within" in finding.sentence) == ("warning", True)
    go.set()
    assert not pods.begin(load("local"), run.specify(load("local"), run_id="maze-1", settings=()))().findings


def test_the_small_program_runs_and_tells(tmp_path: Path) -> None:
    (tmp_path / "code" / "examples").mkdir(parents=True)
    (tmp_path / "boto3.py").write_text("raise RuntimeError('no identity')")

    def tell(module: str, mount: Path) -> dict[str, Any]:
        words = [sys.executable, "-c", pods._SCRIPT, module, str(mount), "bucket", "runs/x/preflight"]
        variables = {"PYTHONPATH": f"{tmp_path / 'code'}:{tmp_path}", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, Any] = json.loads(done.stdout.partition("PREFLIGHT ")[2])
        return found

    (tmp_path / "only_here").mkdir()
    assert tell("examples", tmp_path) == {"module": True, "mount": True, "bucket": "no identity"}
    assert tell("only_here", tmp_path / "nowhere")["mount"] is False
    assert tell("", tmp_path)["module"] is True


def test_submit_is_refused_for_the_image_and_warned_of_the_bucket(
    ray: Scripted, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path / "not-mounted"))
    made = Cluster([pod("h", "head", OTHER), pod("w-1", "worker")])
    monkeypatch.setattr(pods, "Kubectl", lambda env: made)
    assert main.run(["--env", "reference", "submit", "--run-id", "maze-1"]) == 0 or True
    assert main.run(["submit", "--run-id", "maze-1"]) == 2
    assert "1 of 2 pods run another image than the pinned" in capsys.readouterr().err
    made.__dict__["found"] = [pod("w-1", "worker")]
    made.__dict__["said"] = 'PREFLIGHT {"module": true, "mount": true, "bucket": "AccessDenied"}'
    assert main.run(["submit", "--run-id", "maze-1"]) == 0
    assert "the workers' identity cannot write below runs/: AccessDenied" in capsys.readouterr().err
    assert main.run(["submit", "--run-id", "maze-1", "--json"]) == 0
    assert "AccessDenied" in " ".join(json.loads(capsys.readouterr().out)["warnings"])  # a pipeline is told, too
