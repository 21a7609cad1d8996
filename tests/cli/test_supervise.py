"""`supervise`, and `submit --supervise`, as a person and as a program see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import main
from config.load import load
from tests.training import run_folder
from tests.training.fakes import connection
from tests.training.fixtures import ray, shared
from tests.training.scripted import DONE, Scripted, failed, start
from training import jobs, layout, run
from training.supervise import Decision, Supervisor

__all__ = ["ray", "shared"]


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("script", "code"), [((failed(3), DONE), 0), ((failed(3), failed(3)), 1)], ids=["done", "given up"])
def test_the_command_and_its_exit_code(
    script: tuple[Any, ...], code: int, ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(ray, *script)
    got, out, err = call(["supervise", "maze-1"], capsys)
    assert got == code, err
    assert "attempt 1  step    3" in out
    assert "-- attempt 1 failed after step 3" in out
    assert ("run maze-1 succeeded: attempt 2 succeeded" in out) == (code == 0)
    assert ("the same error came twice" in out) == (code == 1)


def test_the_command_in_json_is_a_line_an_event(ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(ray, failed(3), DONE)
    code, out, err = call(["supervise", "maze-1", "--json"], capsys)
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert events[-1] == {"event": "end", "exit_code": 0, "run_id": "maze-1", "attempts": 2, "reason": "attempt 2 succeeded"}
    told = [event["event"] for event in events]
    assert [word for word in told if word not in ("step", "status", "connection")] == ["failed", "waiting", "ready", "submitted", "end"]
    assert [event["step"] for event in events if event["event"] == "step"] == [*range(4), *range(6)]


def test_submit_and_stay(ray: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Not visible: this machine's disk is none of a cluster's, and preflight would say so.
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path / "not-mounted"))
    ray.script = [failed(3), DONE]
    code, out, err = call(["submit", "--run-id", "maze-1", "--supervise", "--json"], capsys)
    assert (code, err) == (0, ""), out + err
    events = [json.loads(line) for line in out.splitlines()]
    assert (events[0]["event"], events[0]["action"], events[0]["attempt"]) == ("submit", "submitted", 1)
    assert (events[-1]["event"], events[-1]["attempts"]) == ("end", 2)
    assert [job.status for job in ray.jobs.values()] == ["FAILED", "SUCCEEDED"]


def test_an_environment_that_has_changed_is_refused_before_anything_fails(
    ray: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    ray.script = [(run_folder.log(range(3)), "RUNNING", "")]
    env = load("reference")
    changed = env.model_copy(update={"training": env.training.model_copy(update={"base_model": "/shared/models/other"})})
    jobs.submit(connection(ray, changed), run.specify(changed, run_id="maze-1"))
    code, out, err = call(["supervise", "maze-1"], capsys)
    assert (code, out) == (2, "")
    assert 'trainer.policy.model.path was "/shared/models/other" at attempt 1' in err


def test_ctrl_c_leaves_the_run_running(
    ray: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    start(ray, (run_folder.log(range(3)), "RUNNING", ""))

    def interrupted(self: Supervisor) -> Iterator[Any]:
        yield Decision("waiting", "waiting", 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, "run", interrupted)
    code, _, err = call(["supervise", "maze-1"], capsys)
    assert code == 130
    assert "run maze-1 goes on. Return with: hyperpod-rl --env reference supervise maze-1" in err
    assert "stop" not in ray.calls


@pytest.mark.parametrize("word", ["nan", "inf", "0", "-1", "ten"])
@pytest.mark.parametrize("option", ["--hang-factor", "--ready"])
def test_a_limit_is_a_number_above_zero(option: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(["supervise", "maze-1", option, word], capsys)
    assert code == 2
    assert option in err
    assert word in err
