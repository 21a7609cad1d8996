"""The record and the series beside it: true, whole, and still there when the Ray cluster is not."""

from __future__ import annotations

import errno
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli import main
from config import prices
from config.load import load
from config.problems import Failed
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from training import follow as following
from training import jobs, keeping, layout, provenance, record, recording, series
from training.solve_rate import SolveRate

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared file system that this machine sees; returns the folder of run maze-1, which does not exist yet."""
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    return tmp_path / "runs" / "maze-1"


@pytest.fixture
def ray() -> FakeRay:
    """Attempt 1 failed at step 10, after checkpoint 8; attempt 2 went on from there to step 12."""
    fake = FakeRay()
    run_folder.attempt(fake, run_folder.log(range(11)), status="FAILED", message="a node went away")
    run_folder.attempt(fake, run_folder.log(range(9, 13), resumed_at=8, reward_from=1.0), minutes=30)
    return fake


def history(ray: FakeRay) -> keeping.History:
    env = load("reference")
    found = keeping.history(env, "maze-1", connection=connection(ray, env))
    assert found is not None
    return found


def test_the_record_says_what_the_run_was_and_what_became_of_it(ray: FakeRay, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SUBMITTER", "ada")
    run_folder.checkpoint(shared, 8)
    run_folder.dump(shared, 0, range(28))
    run_folder.dump(shared, 12, range(45))
    run_folder.attempt(ray, run_folder.log(range(13, 17), resumed_at=12), settings=("trainer.epochs=9",), minutes=60)
    env = load("reference")
    history(ray)
    got = json.loads((shared / record.FILE).read_text())
    assert (got["run_id"], got["status"], got["environment"], got["environment_matches"]) == ("maze-1", "SUCCEEDED", "reference", True)
    assert got["code"] == {"commit": "a" * 40, "dirty": False}
    assert got["overrides"]["trainer.epochs"] == 9
    assert got["overrides"]["trainer.ckpt_path"] == "/shared/runs/maze-1/checkpoints"
    assert got["model"]["path"] == env.training.base_model
    assert got["model"]["revision"] == env.training.base_model_revision
    assert got["versions"]["ray"] == env.version_set.training.ray
    assert got["nodes"]["gpus"] == 6
    assert [(a["number"], a["status"], a["reason"]) for a in got["attempts"]] == [
        (1, "FAILED", "a node went away"), (2, "SUCCEEDED", ""), (3, "SUCCEEDED", ""),
    ]  # fmt: skip
    assert [(a["first_step"], a["last_step"], a["steps_lost"]) for a in got["attempts"]] == [(0, 10, 2), (8, 12, 0), (12, 16, 0)]
    assert got["attempts"][2]["submitted_by"] == "ada"
    assert got["usage"]["gpu_hours"] == 2.5 * 6
    worker, head = (prices.INSTANCES[name].usd_per_hour for name in ("ml.g7e.12xlarge", "ml.r5d.16xlarge"))
    assert got["usage"]["cost_usd"] == pytest.approx(2.5 * (3 * worker + head), abs=0.01)  # the nodes, not the GPUs alone
    assert "idle nodes, storage and the rest are not in it" in got["usage"]["cost_note"]
    assert [(c["step"], c["path"], c["size_bytes"], c["latest"]) for c in got["checkpoints"]] == [
        (8, "/shared/runs/maze-1/checkpoints/global_step_8", 1000, True)
    ]
    assert [e["step"] for e in got["exports"]] == [8]
    by_step = {e["step"]: e for e in got["evaluations"]}
    assert sorted(by_step) == [0, 4, 8, 12, 16]
    assert (by_step[0]["solved"], by_step[0]["mazes"], by_step[0]["source"]) == (28, 64, "eval dump")
    assert by_step[12]["rate"] == 45 / 64
    assert by_step[12]["results"][3] == {"row": 3, "seed": 3, "solved": True, "stop_reason": "length", "format_rate": 1.0}
    assert by_step[12]["results"][63] == {"row": 63, "seed": 63, "solved": False, "stop_reason": "stop", "format_rate": 1.0}
    assert by_step[4]["source"] == "log formula"
    assert by_step[4]["results"] == []


def test_the_same_run_gives_the_same_bytes_and_an_unchanged_one_is_not_written_again(ray: FakeRay, shared: Path) -> None:
    first = history(ray).record
    text = (shared / record.FILE).read_bytes()
    written = (shared / record.FILE).stat().st_mtime_ns
    history(ray)
    assert (shared / record.FILE).stat().st_mtime_ns == written
    shutil.rmtree(shared)
    again = history(ray).record
    assert again.model_copy(update={"updated": first.updated}) == first
    assert list(json.loads(text)) == list(record.Record.model_fields)


def test_what_the_record_held_outlives_the_ray_cluster_and_old_checkpoints(ray: FakeRay, shared: Path) -> None:
    run_folder.checkpoint(shared, 8)
    run_folder.attempt(ray, run_folder.log(range(13, 15), resumed_at=12), status="RUNNING", settings=("trainer.epochs=9",))
    before = history(ray)
    shutil.rmtree(shared / "checkpoints")
    ray.jobs.clear()
    after = history(ray)
    assert [(a.number, a.status) for a in after.record.attempts] == [(1, "FAILED"), (2, "SUCCEEDED"), (3, "LOST")]
    assert "no longer knows it" in after.record.attempts[2].reason
    assert after.record.overrides == before.record.overrides
    assert after.series == before.series
    assert [(c.step, c.on_disk, c.latest) for c in after.record.checkpoints] == [(8, False, False)]
    assert not after.record.usage.complete
    offline = keeping.history(load("reference"), "maze-1", connection=None)
    assert offline is not None
    assert (offline.record, offline.series, offline.source) == (after.record, after.series, "saved copy")


def test_an_attempt_that_only_left_its_start(shared: Path) -> None:
    (shared / "attempts").mkdir(parents=True)
    (shared / "attempts" / "1").write_text("2026-11-29T10:00:00Z\n")
    got = recording.update(load("reference"), "maze-1", folder=shared, attempts=[], now=NOW)
    assert [(a.number, a.status, a.started) for a in got.attempts] == [(1, "LOST", "2026-11-29T10:00:00+00:00")]


@pytest.mark.parametrize("told", [True, False], ids=["told with the job", "by an older launcher"])
def test_the_record_tells_what_was_submitted_not_what_the_environment_file_says_today(told: bool, shared: Path) -> None:
    ray, today = FakeRay(), load("reference")
    then = today.model_copy(update={"training": today.training.model_copy(update={"base_model_revision": "b" * 40})})
    run_folder.attempt(ray, run_folder.log(range(2)), env=then)
    if not told:
        ray.jobs["maze-1-a1"].metadata = {k: v for k, v in ray.jobs["maze-1-a1"].metadata.items() if k != provenance.KEY}
    marker = shared.parents[1] / today.training.base_model.removeprefix("/shared/") / ".complete"
    marker.parent.mkdir(parents=True)
    marker.write_text(json.dumps({"repository": "x", "revision": "main", "commit": "c" * 40}))
    got = history(ray).record
    assert got.environment_matches is False
    assert (got.model.path, got.model.commit) == (then.training.base_model, "c" * 40)  # what lies there, whatever was asked for
    if told:
        assert got.model.revision == "b" * 40
        assert (got.versions["ray"], got.nodes.gpus) == (then.version_set.training.ray, 6)
    else:  # not known is not today's
        assert (got.model.revision, got.versions, got.nodes) == ("", {}, record.Nodes())
    again = keeping.history(then, "maze-1", connection=connection(ray, then))
    assert again is not None
    assert (again.record.environment_matches, again.record.model) == (True, got.model)


def test_running_gpu_hours_count_until_now() -> None:
    ray = FakeRay()
    run_folder.attempt(ray, "", status="RUNNING")
    attempts = jobs.attempts(connection(ray), "maze-1")
    start = datetime.fromtimestamp(attempts[0].start or 0, UTC)
    got = recording.build(load("reference"), "maze-1", attempts=attempts, rows=[], now=start.replace(hour=(start.hour + 1) % 24))
    assert got.usage.gpu_hours == 6.0
    assert got.usage.complete


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_record_whole(call: str, ray: FakeRay, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history(ray)
    text = (shared / record.FILE).read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    changed = record.Record(run_id="maze-1", environment="reference", status="x")
    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(record.Record, "text", full)
        elif call == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            record.write(shared, changed)
    assert (shared / record.FILE).read_bytes() == text
    assert not list(shared.glob("*.tmp"))
    assert not list(shared.glob(".*.tmp"))


def test_a_file_that_is_no_record_is_not_overwritten(ray: FakeRay, shared: Path) -> None:
    shared.mkdir(parents=True)
    (shared / record.FILE).write_text("{half")
    with pytest.raises(Failed, match="move it away"):
        history(ray)
    assert (shared / record.FILE).read_text() == "{half"


@pytest.mark.parametrize("time", ["yesterday", "2026-11-29T10:00:00", 7])
def test_a_record_with_a_time_that_is_none_is_no_record(time: object, ray: FakeRay, shared: Path) -> None:
    history(ray)
    told = json.loads((shared / record.FILE).read_text())
    told["attempts"][0]["started"] = time
    (shared / record.FILE).write_text(json.dumps(told))
    with pytest.raises(Failed, match="is no record of a run"):
        history(ray)


@pytest.mark.parametrize("value", [-1, None, "x", {"a": 1}])
def test_settings_of_any_shape_in_a_record(value: object, ray: FakeRay, shared: Path) -> None:
    history(ray)
    told = json.loads((shared / record.FILE).read_text())
    told["overrides"]["data.train_data"] = value
    (shared / record.FILE).write_text(json.dumps(told))
    assert [each.purpose for each in history(ray).record.datasets] == ["evaluation"]


def test_what_a_killed_writer_left_goes_in_time(shared: Path) -> None:
    shared.mkdir(parents=True)
    old, young = shared / ".record.json.1.tmp", shared / ".record.json.2.tmp"
    for path in (old, young):
        path.write_text("{half")
    os.utime(old, (0, 0))
    record.write(shared, record.Record(run_id="maze-1", environment="reference"))
    assert (old.exists(), young.exists()) == (False, True)


# --- the series ---


def test_the_series_has_no_gap_and_no_double_over_attempts(ray: FakeRay, shared: Path) -> None:
    found = history(ray).series
    assert [row.step for row in found] == list(range(13))
    assert [row.attempt for row in found] == [1] * 9 + [2] * 4
    assert found[8].reward == 0.08  # attempt 2 only evaluated step 8 again; who trained it tells its reward
    assert found[9].reward == 1.09  # trained twice: the later attempt's
    assert series.gaps(found) == []


def test_steps_beyond_where_a_running_attempt_is_are_not_shown() -> None:
    ray = FakeRay()
    run_folder.attempt(ray, run_folder.log(range(11)), status="FAILED")
    run_folder.attempt(ray, run_folder.log(range(5, 7)), status="RUNNING")
    assert [row.step for row in history(ray).series] == list(range(7))


def test_a_gap_is_told() -> None:
    rows = [series.Row(1, step, reward=0.0) for step in (0, 1, 2)] + [series.Row(2, step, reward=0.0) for step in (6, 7)]
    assert series.gaps(series.joined(rows)) == [(3, 5)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=6))
def test_any_attempts_that_resume_where_something_was_give_each_step_once(spans: list[tuple[int, int]]) -> None:
    rows, reached = [], -1
    for number, (start, length) in enumerate(spans, 1):
        first = min(start, reached + 1)
        rows += [series.Row(number, step, reward=float(number)) for step in range(first, first + length)]
        reached = first + length - 1 if length else reached
    got = [row.step for row in series.joined(rows)]
    assert got == list(range(got[0], got[0] + len(got))) if got else not rows
    assert series.joined(reversed(rows)) == series.joined(rows)


def test_the_kept_steps_survive_a_torn_line_and_are_written_once(tmp_path: Path) -> None:
    rows = [series.Row(1, step, reward=step / 10, metrics={"a": "ü\n", "n": 1}) for step in range(5)]
    saved = series.Saved(tmp_path)
    assert saved.append(rows[:3]) == 3
    assert saved.append(rows[:3]) == 0
    path = tmp_path / series.FILE
    path.write_bytes(path.read_bytes()[:-7])  # the last line torn in the middle
    assert [row.step for row in series.read(tmp_path)] == [0, 1]
    assert series.Saved(tmp_path).append(rows) == 3
    assert series.read(tmp_path) == rows


def test_two_followers_at_once_do_no_harm(tmp_path: Path) -> None:
    first, second = series.Saved(tmp_path), series.Saved(tmp_path)
    rows = [series.Row(1, step) for step in range(3)]
    first.append(rows)
    second.append(rows)
    assert series.read(tmp_path) == rows


def test_a_rate_from_the_dump_replaces_one_from_the_log_and_not_the_other_way(tmp_path: Path) -> None:
    said, read = (SolveRate(0.5, 32, 64, source) for source in ("log formula", "eval dump"))  # type: ignore[arg-type]
    for order in ((said, read), (read, said)):
        folder = tmp_path / str(order[0].source)
        for rate in order:
            series.Saved(folder).append([series.Row(1, 0, solve_rate=rate)])
        assert series.read(folder)[0].solve_rate == read


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_whatever_lies_in_the_file_nothing_is_raised(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / series.FILE).write_bytes(data)
        series.read(Path(folder))
        series.Saved(Path(folder)).append([series.Row(7, 7)])
        assert (7, 7) in [(row.attempt, row.step) for row in series.read(Path(folder))]


# --- kept by `follow` ---


def test_follow_keeps_steps_and_record(
    ray: FakeRay, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import contextlib

    @contextlib.contextmanager
    def connect(env: Any, **_: Any) -> Any:
        yield connection(ray, env)

    monkeypatch.setattr(jobs, "connect", connect)
    monkeypatch.setattr(following, "STATUS_SECONDS", 0.05)
    for _ in range(2):
        assert main.run(["follow", "maze-1", "--json"]) == 0
    capsys.readouterr()
    assert [(row.attempt, row.step) for row in series.read(shared)] == [(2, step) for step in range(8, 13)]
    assert len((shared / series.FILE).read_text().splitlines()) == 5
    kept = record.read(shared)
    assert kept is not None
    assert (kept.status, kept.last_step) == ("SUCCEEDED", 12)


def test_follow_goes_on_where_nothing_can_be_kept(ray: FakeRay, shared: Path) -> None:
    shared.parent.mkdir()
    shared.write_text("a file where the run's folder should be")
    link, notes = connection(ray), []
    attempt = jobs.newest(link, "maze-1")
    events = list(keeping.kept(following.follow(link, attempt), keeping.Keeper(link, "maze-1", note=notes.append)))
    assert [event.step for event in events if isinstance(event, following.StepSeen)] == list(range(8, 13))
    assert len(notes) == 1
    assert "cannot be kept" in notes[0]


def test_nothing_is_kept_where_the_shared_file_system_is_not_visible(ray: FakeRay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path / "not-mounted"))
    found = history(ray)
    assert found.source == "Ray cluster"
    assert [row.step for row in found.series] == list(range(13))
    assert not (tmp_path / "not-mounted").exists()
