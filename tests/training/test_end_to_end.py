"""The launcher's commands through the unmodified SageMaker toolkit to a real Ray: submit, cut, fail, resume, stop."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.load import ROOT
from tests.training.ray_endpoint import Endpoint, endpoint, kubeconfig, real_ray

pytestmark = pytest.mark.ray
AWS = "http://127.0.0.1:9"  # nobody is there: with a kubeconfig at hand the launcher asks AWS nothing


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with real_ray() as dashboard, endpoint(dashboard, tmp_path_factory.mktemp("endpoint")) as state:
        yield state


class Launcher:
    """`hyperpod-rl` in a process of its own, as a user runs it."""

    def __init__(self, tmp_path: Path, state: Endpoint) -> None:
        data = yaml.safe_load((ROOT / "environments/local.yaml").read_text())
        data["name"] = "local-test"
        data["training"]["entrypoint"] = shlex.join(
            ["env", f"TINY_SHARED={tmp_path}/shared", sys.executable, f"{ROOT}/tests/training/tiny_trainer.py"]
        )
        data["training"]["overrides"] |= {"trainer.epochs": 20, "trainer.ckpt_interval": 4}
        self.file, self.state, self.folder = tmp_path / "local-test.yaml", state, tmp_path
        self.file.write_text(yaml.safe_dump(data))
        (tmp_path / "shared").mkdir()
        cache = tmp_path / "cache/local-test"
        cache.mkdir(parents=True)
        (cache / "kubeconfig").write_text(kubeconfig(state.kubernetes, aws_endpoint=AWS))
        self.variables = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "AWS_", "HYPERPOD_RL_"))} | {
            "AWS_ENDPOINT_URL": AWS, "HYPERPOD_RL_CACHE": str(tmp_path / "cache"),
            "HYPERPOD_RL_SHARED": str(tmp_path / "shared"), "HYPERPOD_RL_ENV": str(self.file),
            "REQUESTS_CA_BUNDLE": str(state.certificate), "SSL_CERT_FILE": str(state.certificate),
        }  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cli.main", *words]

        def heed_ctrl_c() -> None:  # a shell that runs the tests in the background has told its children to ignore it
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=self.variables, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_ctrl_c)

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def json(self, *words: str) -> Any:
        _, out, _ = self.run(*words, "--json")
        return json.loads(out)

    def wait_for_step(self, process: subprocess.Popen[str], number: int) -> list[dict[str, Any]]:
        """Events of `follow --json` up to this step."""
        events: list[dict[str, Any]] = []
        for line in process.stdout or ():
            events.append(json.loads(line))
            if events[-1].get("step") == number:
                return events
        raise AssertionError(f"no step {number}: {events} {process.stderr.read() if process.stderr else ''}")

    def marker(self, run: str) -> Path:
        return self.folder / f"shared/runs/{run}/checkpoints/latest_ckpt_global_step.txt"


@pytest.fixture
def launcher(tmp_path: Path, reached: Endpoint) -> Launcher:
    return Launcher(tmp_path, reached)


def steps(events: list[dict[str, Any]]) -> list[int]:
    return [event["step"] for event in events if event["event"] == "step"]


def waits(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, at: int) -> Path:
    """Let the trainer of the next submit wait at a step, by the environment file's entrypoint."""
    go = launcher.folder / "go"
    data = yaml.safe_load(launcher.file.read_text())
    words = shlex.split(data["training"]["entrypoint"])
    data["training"]["entrypoint"] = shlex.join(["env", f"TINY_WAIT_AT={at}", f"TINY_GO={go}", *words])
    launcher.file.write_text(yaml.safe_dump(data))
    return go


def test_submit_follow_and_the_rest(launcher: Launcher) -> None:
    code, out, err = launcher.run("submit", "--run-id", "whole")
    assert code == 0, err
    assert "attempt 1 (whole-a1)" in out
    code, out, err = launcher.run("follow", "whole", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0, err
    assert steps(events) == list(range(20))
    evaluated = [event for event in events if event.get("solve_rate")]
    assert [event["solve_rate"]["solved"] for event in evaluated] == [0, 5, 10, 15]  # by the dump, although pass_at_1 says 1.0
    assert {event["solve_rate"]["source"] for event in evaluated} == {"eval dump"}
    assert evaluated[0]["solve_rate"]["oracle_bound"] == 0.75
    assert launcher.json("status", "whole")["status"] == "SUCCEEDED"
    assert launcher.json("submit", "--run-id", "whole")["action"] == "done"
    assert "whole" in launcher.run("list")[1]
    assert "Training done!" in launcher.run("logs", "whole")[1]
    assert launcher.state.identities[0] == "Bearer k8s-aws-v1.test"


def test_plain_ray_through_the_toolkit_sees_the_same_job(launcher: Launcher) -> None:
    variables = {**launcher.variables, "KUBECONFIG": str(launcher.folder / "cache/local-test/kubeconfig")}
    command = [str(Path(sys.executable).parent / "ray"), "job", "submit", "--address", "sagemaker_ray://skyrl-visgym/training",
               "--submission-id", "by-hand-a1", "--", "echo", "hello"]  # fmt: skip
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert launcher.json("status", "by-hand")["status"] == "SUCCEEDED"


def test_killed_in_the_middle_and_resumed(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(launcher, monkeypatch, at=11)
    assert launcher.run("submit", "--run-id", "killed")[0] == 0
    following = launcher.start("follow", "killed", "--json")
    launcher.wait_for_step(following, 10)
    os.kill(int((launcher.folder / "shared/runs/killed/checkpoints/pid").read_text()), signal.SIGKILL)
    out, _ = following.communicate(timeout=60)
    assert following.returncode == 1
    assert json.loads(out.splitlines()[-1])["status"] == "FAILED"
    (launcher.folder / "go").touch()
    assert launcher.marker("killed").read_text() == "8"
    code, out, _ = launcher.run("submit", "--run-id", "killed", "--json")
    assert (code, json.loads(out)["attempt"]) == (0, 2)
    code, out, _ = launcher.run("follow", "killed", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert steps(events) == list(range(9, 20))  # nothing before the last checkpoint again, nothing after it left out
    assert {event["attempt"] for event in events if event["event"] == "step"} == {2}


def test_a_follower_whose_connection_is_cut_and_whose_session_expires(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    go = waits(launcher, monkeypatch, at=10)
    assert launcher.run("submit", "--run-id", "cut")[0] == 0
    following = launcher.start("follow", "cut", "--json")
    events = launcher.wait_for_step(following, 9)
    before = launcher.state.connections
    launcher.state.expire()
    assert launcher.state.cut() >= 1
    deadline = time.monotonic() + 60
    while not launcher.state.sockets or launcher.state.connections == before:
        assert time.monotonic() < deadline, "the follower did not come back"
        time.sleep(0.05)
    go.touch()
    out, err = following.communicate(timeout=60)
    events += [json.loads(line) for line in out.splitlines()]
    assert following.returncode == 0, err
    assert steps(events) == list(range(20))
    assert any(event["event"] == "connection" for event in events)
    assert launcher.state.connections > before


def test_pressed_twice_at_once_then_stopped_while_somebody_follows(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(launcher, monkeypatch, at=6)
    both = [launcher.start("submit", "--run-id", "twice", "--json") for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert sorted(answer["action"] for answer in answers) == ["attached", "submitted"]
    following = launcher.start("follow", "twice", "--json")
    launcher.wait_for_step(following, 5)
    code, _, err = launcher.run("submit", "--run-id", "twice", "--set", "trainer.epochs=30")
    assert code == 2
    assert "trainer.epochs: 20 there, 30 here" in err
    code, _, err = launcher.run("submit", "--run-id", "other")
    assert code == 2
    assert "hyperpod-rl stop twice" in err
    interrupted = launcher.start("follow", "twice", "--json")
    launcher.wait_for_step(interrupted, 5)
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(30) == 130
    assert launcher.json("status", "twice")["status"] == "RUNNING"
    assert launcher.json("stop", "twice")["status"] == "STOPPED"
    out, _ = following.communicate(timeout=60)
    assert following.returncode == 1
    assert json.loads(out.splitlines()[-1])["status"] == "STOPPED"
