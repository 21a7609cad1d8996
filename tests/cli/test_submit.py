"""`submit` as a person and as a program see it, over several attempts of one run; the cluster is a job table in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main
from config.load import load
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection, reached
from training import jobs, keeping, layout, record, reproduce, run
from training.preflight import disk


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    reached(fake, monkeypatch)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10**15)  # not this machine's disk
    monkeypatch.setattr(run, "current_code", lambda: run.Code("a" * 40, dirty=False))
    return fake


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    run_folder.checkpoint(tmp_path / "runs/old", 30)
    return tmp_path


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("told_by", ["ray", "record"])
def test_a_run_begins_again_where_it_began(told_by: str, ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["submit", "--run-id", "new", "--from-run", "old@30"], capsys)[0] == 0
    code, out, _ = call(["stop", "new"], capsys)
    assert (code, "it wrote no checkpoint, so the next attempt begins with checkpoint old@30" in out) == (0, True)
    if told_by == "record":
        keeping.history(load("reference"), "new", connection=connection(ray))
        ray.jobs.clear()
    code, out, err = call(["submit", "--run-id", "new"], capsys)
    assert code == 0, err
    assert "run new began with checkpoint old@30, and does so again while it has none of its own" in err
    assert "changed" not in out
    job = ray.jobs["new-a2"]
    assert job.metadata["from_run"] == "old@30"
    assert "trainer.resume_path=/shared/runs/old/checkpoints/global_step_30" in job.entrypoint
    assert "attached" in call(["submit", "--run-id", "new", "--json"], capsys)[1]


def test_where_it_began_must_still_be_there_until_it_has_a_checkpoint(
    ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["submit", "--run-id", "new", "--from-run", "old@30"], capsys)[0] == 0
    ray.end("new-a1", "FAILED")
    (shared / "runs/old/checkpoints/global_step_30").rename(shared / "gone")
    code, _, err = call(["submit", "--run-id", "new"], capsys)
    assert (code, "run old has no such checkpoint" in err) == (2, True)
    run_folder.checkpoint(shared / "runs/new", 40)
    assert call(["submit", "--run-id", "new"], capsys)[0] == 0


def test_the_record_keeps_where_a_run_began(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env, link = load("reference"), connection(ray)
    call(["submit", "--run-id", "new", "--from-run", "old@30"], capsys)
    ray.end("new-a1", "FAILED")
    keeping.history(env, "new", connection=link)
    # An attempt that does not name the beginning again, and a head that remembers only it.
    jobs.submit(link, run.specify(env, run_id="new"))
    ray.end("new-a2", "SUCCEEDED")
    del ray.jobs["new-a1"]
    history = keeping.history(env, "new", connection=link)
    assert history is not None
    assert history.record.from_run == "old@30"
    known = record.read(shared / "runs/new")
    assert known is not None
    assert (known.from_run, [each.number for each in known.attempts]) == ("old@30", [1, 2])
    what = reproduce.submitted("new", attempts=jobs.attempts(link, "new"), record=known)
    assert what is not None
    assert str(reproduce.again(env, what).origin) == "old@30"


def test_a_dirty_checkout_is_said_before_anything_is_submitted(
    ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "the working tree has uncommitted changes, so `reproduce` will refuse this run; commit first"
    assert said not in call(["submit", "--run-id", "clean"], capsys)[2]
    ray.jobs.clear()
    monkeypatch.setattr(run, "current_code", lambda: run.Code("a" * 40, dirty=True))
    assert said in call(["submit", "--run-id", "new"], capsys)[2]
    assert said in json.loads(call(["submit", "--run-id", "new", "--json"], capsys)[1])["warnings"]
    monkeypatch.setattr(run, "current_code", lambda: run.Code("unknown", dirty=True))
    assert "no git checkout" in call(["submit", "--run-id", "new", "--dry-run"], capsys)[2]


def test_dry_run_counts_the_attempts_that_nobody_followed(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dry = ["submit", "--run-id", "new", "--dry-run"]
    code, out, _ = call(dry, capsys)
    assert (code, "no earlier attempt of this run is known here" in out, "new-a1 " in out) == (0, True, True)
    (shared / "runs/new/attempts").mkdir(parents=True)
    (shared / "runs/new/attempts/1").write_text("2026-01-01T00:00:00Z\n")
    out = call(dry, capsys)[1]
    assert "attempt 1 has begun, and no record here tells with what" in out
    assert "submission id  new-a2 " in out
    document = json.loads(call([*dry, "--json"], capsys)[1])
    assert (document["last_attempt"], document["job"]["submission_id"]) == (1, "new-a2")


def test_a_run_id_without_its_option_is_understood(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(["submit", "mazerun", "--dry-run"], capsys)
    assert (code, "did you mean --run-id mazerun" in err) == (2, True)
    assert "no such option" in call(["submit", "--runid", "x"], capsys)[2].lower()


def test_another_run_that_is_not_there_is_called_so(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(["submit", "--run-id", "new", "--from-run", "odl"], capsys)
    assert (code, "there is no such run" in err, "did you mean old" in err) == (2, True, True)
    assert ray.jobs == {}
