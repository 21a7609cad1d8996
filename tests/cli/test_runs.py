"""`follow`, `status`, `logs`, `stop`, `list` as a person and as a program see them; the cluster is a job table in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from cli import live, main
from config.environment import Environment
from config.load import load
from config.problems import Problem, Unreachable
from tests.training import run_folder
from tests.training.console_text import step, training_log
from tests.training.fakes import FakeRay, connection, reached
from training import cluster as clusters
from training import follow as following
from training import jobs, keeping, layout, manifests, run
from training.manifests import Manifests


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    reached(fake, monkeypatch)
    monkeypatch.setattr(following, "STATUS_SECONDS", 0.05)
    return fake


def submitted(ray: FakeRay, capsys: pytest.CaptureFixture[str], *, status: str = "RUNNING", steps: int = 4, message: str = "") -> None:
    assert main.run(["submit", "--run-id", "maze-1"]) == 0
    capsys.readouterr()
    name = list(ray.jobs)[-1]
    ray.logs[name] = training_log(steps)
    ray.jobs[name].status, ray.jobs[name].message = status, message


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_submit_says_what_it_did_and_how_to_follow(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(["submit", "--run-id", "maze-1"], capsys)
    assert code == 0
    assert "attempt 1 (maze-1-a1)" in out
    assert "hyperpod-rl --env reference follow maze-1" in out
    code, out, _ = call(["submit", "--run-id", "maze-1", "--json"], capsys)
    assert (code, json.loads(out)["action"]) == (0, "attached")
    code, _, err = call(["submit", "--run-id", "maze-1", "--set", "trainer.epochs=3"], capsys)
    assert code == 2
    assert "20 there, 3 here" in err


def test_what_ray_has_forgotten_is_not_lost(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    monkeypatch.setattr("training.preflight.disk.free_bytes", lambda path: 10**15)
    submitted(ray, capsys, status="SUCCEEDED")
    assert call(["follow", "maze-1"], capsys)[0] == 0  # writes the record
    ray.jobs.clear()  # `cluster down`, `cluster up`
    code, out, _ = call(["list"], capsys)
    assert code == 0
    assert "maze-1  SUCCEEDED (kept)  1" in out
    assert json.loads(call(["list", "--json"], capsys)[1])["kept"] == [{"run_id": "maze-1", "status": "SUCCEEDED", "attempts": 1}]
    for word in ("follow", "stop"):
        code, _, err = call([word, "maze-1"], capsys)
        assert code == 2
        assert "hyperpod-rl report maze-1" in err
        assert "submitted again" not in err
    code, out, _ = call(["submit", "--run-id", "maze-1"], capsys)
    assert code == 0
    assert "has succeeded (attempt 1) with this specification; nothing was submitted" in out
    assert ray.jobs == {}
    assert "submitted as attempt 2" in call(["submit", "--run-id", "maze-1", "--set", "trainer.epochs=30"], capsys)[1]


@pytest.mark.parametrize(("status", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("RUNNING", 1)])
def test_status_and_logs_of_a_run_that_ray_has_forgotten(
    status: str, code: int, ray: FakeRay, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    monkeypatch.setattr("training.preflight.disk.free_bytes", lambda path: 10**15)
    submitted(ray, capsys, status=status, message="why it ended")
    keeping.history(load("reference"), "maze-1", connection=connection(ray))
    known = json.loads(call(["status", "maze-1", "--json"], capsys)[1])
    (tmp_path / "runs/maze-1/logs").mkdir()
    for number in (1, 2, 10):
        (tmp_path / f"runs/maze-1/logs/driver-a{number}.log").write_text(f"words of {number}\n")
    ray.jobs.clear()
    before = (tmp_path / "runs/maze-1/record.json").read_bytes()
    got, out, _ = call(["status", "maze-1"], capsys)
    word = "lost" if status == "RUNNING" else status.lower()  # nobody saw it end
    assert (got, out.splitlines()[0].startswith(f"run maze-1: {word}")) == (code, True)
    assert "last step 3" in out
    assert "solve rate" in out
    assert out.splitlines()[-1].startswith("Ray no longer knows this run")
    document = json.loads(call(["status", "maze-1", "--json"], capsys)[1])
    assert (document["status"], document["known_to_ray"], document["last_step"]) == (word.upper(), False, 3)
    # Whoever reads it need not know who told it.
    assert document | {"known_to_ray": True, "status": known["status"], "attempts": known["attempts"]} == known
    assert document["attempts"][0].keys() == known["attempts"][0].keys()
    assert (document["attempts"][0]["attempt"], document["attempts"][0]["started"]) == (1, known["attempts"][0]["started"])
    assert [each["attempt"] for each in document["attempts"]] == [1]
    assert (tmp_path / "runs/maze-1/record.json").read_bytes() == before
    got, out, err = call(["logs", "maze-1"], capsys)
    assert (got, out, "driver-a10.log" in err) == (0, "words of 10\n", True)
    assert call(["logs", "maze-1", "--attempt", "2"], capsys)[1] == "words of 2\n"
    assert json.loads(call(["logs", "maze-1", "--json"], capsys)[1])["log"] == "words of 10\n"
    assert call(["logs", "maze-1", "--attempt", "7"], capsys)[0] == 2
    assert ("submitted again it goes on" in call(["stop", "maze-1"], capsys)[2]) == (status != "SUCCEEDED")


@pytest.mark.parametrize(
    ("status", "code", "word"), [("SUCCEEDED", 0, "succeeded"), ("FAILED", 1, "failed"), ("STOPPED", 1, "was stopped")]
)
def test_the_exit_code_of_follow_is_the_jobs(status: str, code: int, word: str, ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(ray, capsys, status=status, message="why it ended")
    got, out, _ = call(["follow", "maze-1"], capsys)
    assert got == code
    lines = out.splitlines()
    assert [f"step {number:>4}" in line for number, line in enumerate(lines[:4])] == [True] * 4
    assert "of 0.781 reachable" in lines[0]
    assert f"run maze-1 {word} (attempt 1) after step 3" in lines[-1]
    assert ("why it ended" in lines[-1]) == (code == 1)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (None, "it wrote no checkpoint, so the next attempt begins at step 0"),
        (20, "the next attempt goes on from its checkpoint of step 20"),
        ("unseen", "goes on from its last checkpoint if it wrote one, else from step 0"),
    ],
)
def test_what_comes_after_a_stop_is_what_lies_on_the_disk(
    step: int | str | None, said: str, ray: FakeRay, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(ray, capsys)
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path / "absent" if step == "unseen" else tmp_path))
    if isinstance(step, int):
        run_folder.checkpoint(tmp_path / "runs/maze-1", step)
    would = call(["stop", "maze-1", "--dry-run"], capsys)[1]
    assert "attempt 1 is running and would be stopped; " in would
    assert said in would
    assert call(["status", "maze-1"], capsys)[1].count("RUNNING") == 1
    assert said in call(["stop", "maze-1"], capsys)[1]
    code, _, err = call(["follow", "maze-1"], capsys)
    assert (code, said in err) == (1, True)


def test_follow_in_json_is_a_line_an_event(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(ray, capsys, status="FAILED")
    code, out, err = call(["follow", "maze-1", "--json"], capsys)
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert err == ""
    assert [event["step"] for event in events if event["event"] == "step"] == [0, 1, 2, 3]
    assert events[0]["solve_rate"]["oracle_bound"] == 0.78125
    assert events[0]["solve_rate"]["skyrl_pass_at_1"] == 0.95
    assert events[-1]["event"] == "end"
    assert events[-1]["exit_code"] == 1


def test_ctrl_c_leaves_the_job_running_and_says_how_to_return(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(ray, capsys)

    def interrupted(*_: object, **__: object) -> Iterator[following.Seen]:
        yield following.Changed("attempt 1 is running")
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "follow", interrupted)
    code, _, err = call(["follow", "maze-1"], capsys)
    assert code == 130
    assert "run maze-1 goes on. Return with: hyperpod-rl --env reference follow maze-1" in err
    assert ray.jobs["maze-1-a1"].status == "RUNNING"
    assert "stop" not in ray.calls


def test_status_of_a_run(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(ray, capsys, status="FAILED", message="the node went away")
    submitted(ray, capsys)
    code, out, _ = call(["status", "maze-1", "--json"], capsys)
    document = json.loads(out)
    assert code == 0
    assert [attempt["status"] for attempt in document["attempts"]] == ["FAILED", "RUNNING"]
    assert document["step"]["step"] == 3
    assert document["evaluation"]["step"] == 2
    ray.end("maze-1-a2", "FAILED", "no space")
    code, out, _ = call(["status", "maze-1"], capsys)
    assert code == 1
    assert "no space" in out


def test_logs(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(ray, capsys, status="FAILED")
    ray.logs["maze-1-a1"] = "first attempt\n"
    submitted(ray, capsys, status="SUCCEEDED")
    ray.logs["maze-1-a2"] = "second attempt\n"
    assert call(["logs", "maze-1"], capsys)[1] == "second attempt\n"
    assert call(["logs", "maze-1", "--follow"], capsys)[1] == "second attempt\n"
    assert call(["logs", "maze-1", "--attempt", "1"], capsys)[1] == "first attempt\n"
    assert json.loads(call(["logs", "maze-1", "--json"], capsys)[1])["log"] == "second attempt\n"
    code, _, err = call(["logs", "maze-1", "--attempt", "7"], capsys)
    assert code == 2
    assert "it has 1, 2" in err


def test_stop_and_list(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["list"], capsys)[1] == "no runs\n"
    submitted(ray, capsys)
    assert "RUNNING" in call(["list"], capsys)[1]
    assert "attempt 1 is stopped" in call(["stop", "maze-1"], capsys)[1]
    assert "was not running" in call(["stop", "maze-1"], capsys)[1]
    assert json.loads(call(["list", "--json"], capsys)[1])["runs"][0]["status"] == "STOPPED"


def test_an_unknown_run(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("follow", "status", "logs", "stop"):
        code, out, err = call([command, "nope"], capsys)
        assert (code, out) == (2, "")
        assert "the Ray cluster knows no such run" in err


def test_the_live_view(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(ray, capsys, status="SUCCEEDED", steps=40)
    link = connection(ray, load("reference"))
    attempt = jobs.newest(link, "maze-1")
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    ended = live.show(following.follow(link, attempt), attempt, console)
    assert ended.succeeded
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "best so far, step 0: solve rate 0.627" in shown
    assert "of 0.781 reachable" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_narrow_terminal_has_fewer_columns_and_none_cut_short(
    width: int, ray: FakeRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(ray, capsys, status="SUCCEEDED", steps=40)
    link = connection(ray, load("reference"))
    attempt = jobs.newest(link, "maze-1")
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=40)
    live.show(following.follow(link, attempt), attempt, console)
    shown = console.file.getvalue().rpartition("run maze-1, attempt 1")[2]  # type: ignore[attr-defined]
    table = shown[: shown.rindex("┘")] if "┘" in shown else shown
    assert "…" not in table
    assert "step" in table
    assert "reward" in table
    assert ("95 % interval" in table) is (width >= 60)
    assert ("source" in table) is (width >= 120)


def test_the_live_view_splits_the_time_and_says_what_is_left() -> None:
    metrics = {
        "trainer/tokens_per_second_per_gpu": 5700.0,
        "timing/generate": 60.0,
        "timing/policy_train": 50.0,
        "timing/sync_weights": 4.0,
    }
    ray, env = FakeRay(), load("reference")
    link = connection(ray, env)
    jobs.submit(link, run.specify(env, run_id="maze-1"))
    ray.logs["maze-1-a1"] = step(20, {**metrics, "timing/step": 120.0, "reward/avg_raw_reward": 0.5})
    ray.end("maze-1-a1", "STOPPED")
    attempt = jobs.newest(link, "maze-1")
    console = Console(file=io.StringIO(), force_terminal=True, width=140, height=40)
    live.show(following.follow(link, attempt), attempt, console, environment=env)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "rollout/train/sync" in shown
    assert "60.0/50.0/4.0" in shown
    assert "5700" in shown
    assert "step 20 of 200, about 6 h 0 min left" in shown  # 180 steps of 120 s


@pytest.mark.parametrize("words", [["cluster", "down"], ["cluster", "up"]], ids=" ".join)
def test_the_cluster_is_not_taken_from_under_a_run(
    words: list[str], ray: FakeRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(ray, capsys)
    ready = clusters.State("skyrl-visgym", "training", exists=True, head_ready=True, workers_ready=3, workers_wanted=3)
    done: list[str] = []
    monkeypatch.setattr(clusters, "state", lambda kubectl: ready)
    monkeypatch.setattr(clusters, "manifests", lambda env, name: Manifests(Path("x"), [], "sha256:0"))
    monkeypatch.setattr(manifests, "changes", lambda kubectl, found: ["spec.rayVersion"])
    monkeypatch.setattr(clusters, "check_sharing", lambda kubectl: None)
    monkeypatch.setattr("training.image.missing", lambda env, **_: None)

    def act(kubectl: object, *_: object, **__: object) -> clusters.State:
        done.append(words[1])
        return ready

    monkeypatch.setattr(clusters, words[1], act)
    code, _, err = call(words, capsys)
    assert code == 2
    assert "run maze-1 = attempt 1 is running" in err
    assert call([*words, "--dry-run"], capsys)[0] == 2, "a dry run refuses what the real one refuses"
    code, out, _ = call([*words, "--dry-run", "--force", "--json"], capsys)
    assert (code, json.loads(out)["dry_run"], json.loads(out)["exists"]) == (0, True, True)
    assert "would change spec.rayVersion" in call(["cluster", "up", "--dry-run", "--force"], capsys)[1]
    assert done == []
    assert call([*words, "--force"], capsys)[0] == 0
    ray.end("maze-1-a1", "SUCCEEDED")
    assert call(words, capsys)[0] == 0
    assert done == [words[1], words[1]]


def test_the_cluster_does_not_come_up_without_its_image(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    absent: list[Problem | Exception] = [Problem("image.tag", "2026.11", "ECR has no image of this tag", "run `image build` first")]

    def missing(env: Environment, **_: object) -> Problem:
        if isinstance(absent[0], Exception):
            raise absent[0]
        return absent[0]

    def up(kubectl: object, *_: object, **__: object) -> clusters.State:
        done.append("up")
        return clusters.State("skyrl-visgym", "training", exists=True, head_ready=True, workers_ready=3, workers_wanted=3)

    monkeypatch.setattr("training.image.missing", missing)
    monkeypatch.setattr(clusters, "manifests", lambda env, name: Manifests(Path("x"), [], "sha256:0"))
    monkeypatch.setattr(clusters, "check_sharing", lambda kubectl: None)
    monkeypatch.setattr(clusters, "up", up)
    code, _, err = call(["cluster", "up", "--force"], capsys)
    assert code == 2
    assert "image.tag = 2026.11: ECR has no image of this tag; run `image build` first." in err
    assert done == []
    absent[0] = Unreachable("ECR does not answer")
    code, _, err = call(["cluster", "up", "--force"], capsys)
    assert code == 0
    assert "it is not known whether the image is there: ECR does not answer" in err
    assert done == ["up"]
