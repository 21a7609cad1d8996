"""A new run that begins with another run's checkpoint, on purpose: what is submitted, what is refused, what the next attempt does."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from cli import main
from config.load import load
from config.problems import Refused
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from training import checkpoints, entrypoint, jobs, keeping, layout, reproduce, run
from training.preflight import checks, disk
from training.preflight.findings import Subject


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    for step in (10, 20):
        run_folder.checkpoint(tmp_path / "runs/old", step)
    return tmp_path


def specify(text: str = "old@10", run_id: str = "new") -> run.Specification:
    env = load("reference")
    return run.specify(env, run_id=run_id, code=run.Code("a" * 40, dirty=False), origin=checkpoints.origin(env, text))


def test_the_step_is_the_newest_checkpoint_unless_it_is_named(shared: Path) -> None:
    assert str(specify("old").origin) == "old@20"
    assert str(specify("old@10").origin) == "old@10"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("old@15", "it has 10, 20"), ("old@x", "the step of a checkpoint"), ("Old@10", "--from-run = Old"), ("none", "it has none"),
        ("old@", "the step of a checkpoint"),
    ],
)  # fmt: skip
def test_what_is_no_checkpoint_is_refused(text: str, word: str, shared: Path) -> None:
    (shared / "runs/none/checkpoints").mkdir(parents=True)
    with pytest.raises(Refused, match=word):
        specify(text)


def test_a_run_does_not_begin_with_itself(shared: Path) -> None:
    with pytest.raises(Refused, match="goes on from its own checkpoints by itself"):
        specify("old@10", run_id="old")


def test_without_the_file_system_the_step_must_be_named(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(shared / "not-mounted"))
    assert str(specify("old@7").origin) == "old@7"
    with pytest.raises(Refused, match="name the step: --from-run old@STEP"):
        specify("old")


@pytest.mark.parametrize("own", [False, True], ids=["first attempt", "with a checkpoint of its own"])
def test_what_the_job_really_runs(own: bool, shared: Path, tmp_path: Path) -> None:
    local = load("local")
    env = local.model_copy(update={"training": local.training.model_copy(update={"entrypoint": "trainer"})})
    specification = run.specify(env, run_id="new", origin=checkpoints.Origin("old", 10))
    if own:
        run_folder.checkpoint(shared / "runs/new", 12)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/trainer").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n')
    (tmp_path / "bin/trainer").chmod(stat.S_IRWXU)
    variables = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HYPERPOD_RL_ATTEMPT": "1"}
    done = subprocess.run(specification.entrypoint, shell=True, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "arguments").read_text().splitlines()
    assert ("trainer.resume_mode=latest" in words) == own
    assert ("trainer.resume_path=/shared/runs/old/checkpoints/global_step_10" in words) == (not own)
    assert "trainer.ckpt_path=/shared/runs/new/checkpoints" in words


def test_what_a_checkpoint_holds_may_not_change(shared: Path) -> None:
    ray, env = FakeRay(), load("reference")
    run_folder.attempt(ray, "", run_id="old")
    keeping.history(env, "old", connection=connection(ray))  # its record tells what it was submitted with
    origin = checkpoints.origin(env, "old")
    specification = run.specify(env, run_id="new", settings=("trainer.policy.model.lora.rank=16",), origin=origin)
    report = checks.laptop(checks.subject_of(env, specification))
    assert "trainer.policy.model.lora.rank" in {finding.problem.field for finding in report.errors}
    same = checks.laptop(Subject(env, specify("old").overrides, "new", origin))
    assert "resume-keeps-what-checkpoints-hold" not in {finding.name for finding in same.errors}


def test_it_is_part_of_the_specification_and_of_what_is_reproduced(shared: Path) -> None:
    ray, env = FakeRay(), load("reference")
    link = connection(ray)
    assert jobs.submit(link, specify()).action == "submitted"
    assert jobs.submit(link, specify()).action == "attached"
    plain = run.specify(env, run_id="new")
    with pytest.raises(Refused, match="--from-run: old@10 there, nothing here"):
        jobs.submit(link, plain)
    what = reproduce.submitted("new", attempts=jobs.attempts(link, "new"), record=None)
    assert what is not None
    assert what.origin == checkpoints.Origin("old", 10)
    assert reproduce.again(env, what).digest == specify().digest
    assert [change.lines for change in reproduce.changes(what, plain)] == [["- from_run=old@10"]]
    ray.end("new-a1", "FAILED")
    kept = keeping.history(env, "new", connection=link)
    assert kept is not None
    assert kept.record.from_run == "old@10"


def test_dry_run_shows_what_differs_from_the_last_attempt(
    shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10**15)  # not this machine's disk
    ray, env = FakeRay(), load("reference")
    words = ["submit", "--run-id", "maze-1", "--dry-run"]
    shared.joinpath("runs/maze-1").mkdir(parents=True)
    assert "no earlier attempt" in _out(words, capsys)
    run_folder.attempt(ray, "", status="FAILED")
    keeping.history(env, "maze-1", connection=connection(ray))
    assert "against attempt 1: nothing differs" in _out(words, capsys)
    out = _out([*words, "--set", "trainer.epochs=30"], capsys)
    assert "against attempt 1: 1 differ\n- trainer.epochs=20\n+ trainer.epochs=30\n" in out
    document = json.loads(_out([*words, "--set", "trainer.epochs=30", "--json"], capsys))
    assert document["changes"] == [{"key": "trainer.epochs", "before": "20", "after": "30"}]
    assert document["last_attempt"] == 1


def _out(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main.run(words)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_the_script_of_an_ordinary_run_knows_no_other(shared: Path) -> None:
    script = shlex.split(run.specify(load("reference"), run_id="new").entrypoint)[-1]
    assert "from_path" not in script
    assert entrypoint.checkpoints.MARKER not in script
