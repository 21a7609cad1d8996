"""`preflight` as a person and as a program see it, and what `submit` makes of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cli import main
from config.environment import Environment
from config.problems import Problem
from tests.training.fakes import connection
from tests.training.preflight.test_cluster_rules import Dashboard
from training import jobs
from training.kubernetes import Kubectl
from training.preflight import cluster as remote
from training.preflight.findings import Finding

TOO_MUCH = ("--set", "trainer.micro_train_batch_size_per_gpu=8")


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Dashboard:
    fake = Dashboard()
    fake.date = ""
    fake.log = 'PREFLIGHT {"module": true, "mount": true}\n'

    @contextlib.contextmanager
    def connect(env: Environment, **_: Any) -> Iterator[Any]:
        yield connection(fake, env)

    monkeypatch.setattr(jobs, "connect", connect)
    monkeypatch.setattr(Kubectl, "list", lambda self, kind, *, namespace, selector="": [])
    monkeypatch.setattr(remote.probe, "__kwdefaults__", {**(remote.probe.__kwdefaults__ or {}), "sleep": lambda seconds: None})
    return fake


def test_the_reference_passes_and_the_arithmetic_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(["preflight", "--offline", "--plan", "--run-id", "maze-1"], capsys)
    assert (code, err) == (0, "")
    assert "5.5 weights (4 bytes x parameters / 6 GPUs)" in out
    assert "36.5 GB a checkpoint" in out
    assert "conversations of 9216 tokens" in out
    assert "inferred" in out
    assert "4 is the largest that fits" in out
    assert out.splitlines()[-1] == "nothing refuses this run"


def test_all_problems_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["preflight", "--offline", "--run-id", "a b", "--set", "x=1", "--set", "generator.batched=true", *TOO_MUCH, "--json"]
    code, out, err = call(words, capsys)
    document = json.loads(out)
    assert (code, err, document["exit_code"], document["passed"]) == (2, "", 2, False)
    rules = {finding["rule"] for finding in document["findings"]}
    assert rules >= {"configuration", "vlm-batched", "training-step-fits-gpu"}
    assert {finding["field"] for finding in document["findings"]} >= {"run id", "--set x", "generator.batched"}
    assert all(finding["fix"] and finding["message"] for finding in document["findings"])


def test_a_value_out_of_range_stops_the_arithmetic_only(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(["preflight", "--offline", "--plan", "--set", "trainer.train_batch_size=0", "--run-id", "r"], capsys)
    assert code == 2
    assert "range:trainer.train_batch_size" in out


@pytest.mark.parametrize("words", [["submit", "--dry-run"], ["submit"]], ids=" ".join)
def test_submit_refuses_what_does_not_fit(words: list[str], dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call([*words, "--run-id", "maze-1", *TOO_MUCH], capsys)
    assert (code, out) == (2, "")
    assert "the largest that fits is trainer.micro_train_batch_size_per_gpu=4" in err
    assert dashboard.jobs == {}


def test_submit_refuses_a_cluster_without_its_gpus(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.gpus = (2, 2)
    code, _, err = call(["submit", "--run-id", "maze-1"], capsys)
    assert code == 2
    assert "run maze-1 reserves 6" in err
    assert dashboard.jobs == {}
    dashboard.gpus = (2, 2, 2)
    assert call(["submit", "--run-id", "maze-1"], capsys)[0] == 0


def test_submit_refuses_to_resume_with_another_adapter(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["submit", "--run-id", "maze-1"], capsys)[0] == 0
    dashboard.end("maze-1-a1", "FAILED")
    code, _, err = call(["submit", "--run-id", "maze-1", "--set", "trainer.policy.model.lora.rank=16"], capsys)
    assert code == 2
    assert "the checkpoint's adapter has another shape" in err
    assert list(dashboard.jobs) == ["maze-1-a1"]
    code, _, err = call(["submit", "--run-id", "maze-1", "--set", "trainer.epochs=30"], capsys)
    assert code == 0
    assert "20 in the last attempt, 30 here" in err
    assert list(dashboard.jobs) == ["maze-1-a1", "maze-1-a2"]


def test_preflight_runs_a_task_on_a_worker_and_submits_nothing(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(["preflight", "--run-id", "maze-1"], capsys)
    assert code == 0
    assert "Ray 2.57.0, 6 GPUs" in out
    assert "a task on a worker: imports examples, writes /shared" in out
    assert [name.startswith("preflight-maze-1-") for name in dashboard.jobs] == [True]
    dashboard.log = 'PREFLIGHT {"module": false, "mount": true}\n'
    code, out, _ = call(["preflight", "--run-id", "maze-1"], capsys)
    assert code == 2
    assert "would fail at its first rollout" in out


def test_offline_reaches_nothing(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["preflight", "--offline"], capsys)[0] == 0
    assert dashboard.calls == []
    assert dashboard.jobs == {}


def test_a_cluster_that_is_not_there_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(["preflight", "--run-id", "r", "--address", "http://127.0.0.1:9"], capsys)
    assert code == 0
    assert "warning [cluster-answers]" in out
    assert call(["preflight", "--address", "ftp://x"], capsys)[0] == 2


def test_a_password_in_a_value_is_masked_in_every_part_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["preflight", "--offline", "--run-id", "maze-1", "--set", "trainer.resume_mode=https://me:secret@example.com/x", "--json"]
    code, out, _ = call(words, capsys)
    assert code == 2
    assert "secret" not in out
    assert "https://***@example.com/x" in out


def test_rule_and_fix_of_a_finding_are_masked() -> None:
    problem = Problem("address", "x", "https://me:secret@a.b/ does not answer", "try https://me:secret@a.b/c")
    document = Finding("any", "error", problem).document()
    assert "secret" not in json.dumps(document)
    assert document["fix"] == "try https://***@a.b/c"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--env", "local", "preflight"], "a stand-in without a GPU"),
        (["preflight", "--set", "trainer.train_batch_size=0"], "out of its range"),
    ],
)
def test_why_there_is_no_plan(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    main.run([*words, "--offline", "--plan"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("plan ")]
    assert line.startswith("plan       none: ")
    assert reason in line
