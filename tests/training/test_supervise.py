"""Supervising: what leads to a next attempt, what does not, and that all of it is told. No test waits."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from config.load import ROOT, load
from config.problems import Refused, Unreachable
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from training import cluster as clusters
from training import follow as following
from training import jobs, keeping, layout, record, reproduce, run, supervise
from training.supervise import Decision, Limits, Supervisor, Verdict

READY = clusters.State("skyrl-visgym", "training", exists=True, head_ready=True, workers_ready=3, workers_wanted=3, gpus=6)
AWAY = clusters.State("skyrl-visgym", "training", exists=True, head_ready=True, workers_ready=2, workers_wanted=3, gpus=6)


class Time(clusters.Clock):
    """A clock that passes only when somebody sleeps, and a little at each look."""

    def __init__(self) -> None:
        object.__setattr__(self, "seconds", 0.0)
        object.__setattr__(self, "slept", [])
        object.__setattr__(self, "now", self._now)
        object.__setattr__(self, "sleep", self._sleep)

    def _now(self) -> float:
        object.__setattr__(self, "seconds", self.seconds + 0.01)  # type: ignore[attr-defined]
        return self.seconds  # type: ignore[attr-defined,no-any-return]

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)  # type: ignore[attr-defined]
        object.__setattr__(self, "seconds", self.seconds + seconds)  # type: ignore[attr-defined]


@dataclass
class Scripted(FakeRay):
    """Each job that is submitted takes the next line of the script: (log, status, message)."""

    script: list[tuple[str, str, str]] = field(default_factory=list)

    def submit_job(self, **job: Any) -> str:
        name = super().submit_job(**job)
        log, status, message = self.script.pop(0)
        self.logs[name] = log
        if status == "RUNNING":
            self.jobs[name].status = status
        else:
            self.end(name, status, message)
        return name


def failed(last: int, message: str = "exit code 1; its log ends with: CUDA error 77 at 0x7f12") -> tuple[str, str, str]:
    return run_folder.log(range(last + 1)), "FAILED", message


DONE = (run_folder.log(range(6)), "SUCCEEDED", "")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    return tmp_path / "runs" / "maze-1"


def specification() -> run.Specification:
    return run.specify(load("reference"), run_id="maze-1", code=run.Code("a" * 40, dirty=False))


def supervisor(
    ray: FakeRay, *, time: Time | None = None, cluster: Callable[[], clusters.State] = lambda: READY, limits: Limits | None = None
) -> Supervisor:
    time, link = time or Time(), connection(ray)

    def watch(link: Any, attempt: jobs.Attempt) -> Iterator[Any]:
        return following.watch(link, attempt, log=following.Log(link, attempt, sleep=time.sleep, now=time.now))

    keeper = keeping.Keeper(link, "maze-1", now=time.now)
    return Supervisor(link, "maze-1", specification, cluster, keeper, limits=limits or Limits(), clock=time, watch=watch)


def supervised(ray: FakeRay, **given: Any) -> tuple[list[Any], Verdict]:
    events = list(supervisor(ray, **given).run())
    assert isinstance(events[-1], Verdict)
    return events[:-1], events[-1]


def start(ray: Scripted, *script: tuple[str, str, str]) -> None:
    ray.script = list(script)
    jobs.submit(connection(ray), specification())


def kinds(events: Sequence[Any]) -> list[str]:
    return [event.kind for event in events if isinstance(event, Decision)]


def test_a_run_that_succeeds_is_only_watched(shared: Path) -> None:
    ray = Scripted()
    start(ray, DONE)
    events, verdict = supervised(ray)
    assert (verdict.succeeded, verdict.attempts) == (True, 1)
    assert [event.step for event in events if isinstance(event, following.StepSeen)] == list(range(6))
    assert kinds(events) == []
    kept = record.read(shared)
    assert kept is not None
    assert (kept.status, kept.events) == ("SUCCEEDED", ())


def test_after_a_failure_the_next_attempt_waits_for_all_gpus(shared: Path) -> None:
    ray, time = Scripted(), Time()
    start(ray, failed(3), DONE)
    states = [AWAY, AWAY, READY]
    submitted_at: list[int] = []

    def cluster() -> clusters.State:
        submitted_at.append(len(ray.jobs))
        return states.pop(0)

    events, verdict = supervised(ray, time=time, cluster=cluster)
    assert verdict.succeeded
    assert (verdict.attempts, verdict.reason) == (2, "attempt 2 succeeded")
    assert kinds(events) == ["failed", "waiting", "waiting", "ready", "submitted"]
    assert submitted_at == [1, 1, 1]  # nothing was submitted before all were ready
    assert time.slept[0] == 30  # type: ignore[attr-defined]
    texts = [event.text for event in events if isinstance(event, Decision)]
    assert "attempt 1 failed after step 3: exit code 1" in texts[0]
    assert "2 of 3 workers ready" in texts[2]
    kept = record.read(shared)
    assert kept is not None
    assert [(event.kind, event.text) for event in kept.events] == [(e.kind, e.text) for e in events if isinstance(e, Decision)]
    assert [(a.number, a.status) for a in kept.attempts] == [(1, "FAILED"), (2, "SUCCEEDED")]


def test_the_same_error_at_the_same_step_twice_ends_it() -> None:
    ray = Scripted()
    start(ray, failed(3), failed(3, "exit code 1; its log ends with: CUDA error 78 at 0x9999"), DONE)
    events, verdict = supervised(ray)
    assert not verdict.succeeded
    assert "the same error came twice at step 3" in verdict.reason
    assert kinds(events)[-2:] == ["failed", "given-up"]
    assert len(ray.jobs) == 2


@pytest.mark.parametrize("second", [failed(4), failed(3, "out of memory")], ids=["another step", "another error"])
def test_another_failure_is_no_reason_to_give_up(second: tuple[str, str, str]) -> None:
    ray = Scripted()
    start(ray, failed(3), second, DONE)
    assert supervised(ray)[1] == Verdict("maze-1", True, 3, "attempt 3 succeeded")


def test_the_budget_of_attempts() -> None:
    ray, time = Scripted(), Time()
    start(ray, failed(1), failed(2), failed(3), DONE)
    events, verdict = supervised(ray, time=time, limits=Limits(attempts=3))
    assert (verdict.succeeded, verdict.attempts, len(ray.jobs)) == (False, 3, 3)
    assert "3 attempts were made, which is the limit" in verdict.reason
    assert [seconds for seconds in time.slept if seconds >= 30] == [30, 60]  # type: ignore[attr-defined]
    assert kinds(events)[-1] == "given-up"


def test_a_run_that_somebody_stopped_stays_stopped() -> None:
    ray = Scripted()
    start(ray, (run_folder.log(range(3)), "STOPPED", ""), DONE)
    _, verdict = supervised(ray)
    assert not verdict.succeeded
    assert "somebody stopped it" in verdict.reason
    assert len(ray.jobs) == 1


@pytest.mark.parametrize(
    ("log", "limits", "after"),
    [
        (run_folder.log(range(6)), Limits(hang_factor=10, hang_minimum=900), 900),  # steps of 2.3 s: the minimum counts
        (run_folder.log(range(6)), Limits(hang_factor=1000, hang_minimum=900), 2300),
        ("loading\n", Limits(first_step=1234), 1234),
    ],
    ids=["minimum", "factor", "first step"],
)
def test_a_hang_is_stopped_and_tried_again_but_not_too_early(log: str, limits: Limits, after: float) -> None:
    ray, time = Scripted(), Time()
    start(ray, (log, "RUNNING", ""), DONE)
    stopped_at: list[float] = []
    stop = ray.stop_job

    def stop_job(name: str) -> bool:
        stopped_at.append(time.seconds)  # type: ignore[attr-defined]
        return stop(name)

    ray.stop_job = stop_job  # type: ignore[method-assign]
    events, verdict = supervised(ray, time=time, limits=limits)
    assert verdict.succeeded
    assert kinds(events)[:2] == ["hung", "stopped"]
    assert len(stopped_at) == 1
    assert after <= stopped_at[0] <= after + 60
    assert ray.jobs["maze-1-a1"].status == "STOPPED"


def test_a_hang_that_cannot_be_stopped() -> None:
    ray = Scripted()
    start(ray, ("loading\n", "RUNNING", ""), DONE)
    ray.stop_job = lambda name: True  # type: ignore[method-assign]
    events, verdict = supervised(ray)
    assert kinds(events) == ["hung", "stop-failed", "stop-failed", "stop-failed"]
    assert "could not be stopped" in verdict.reason
    assert len(ray.jobs) == 1


@pytest.mark.parametrize("visible", [True, False], ids=["record", "no record"])
def test_a_lost_head_leads_to_the_next_number(visible: bool, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not visible:
        monkeypatch.setenv(layout.SHARED_VARIABLE, str(shared / "not-mounted"))
    ray = Scripted()
    start(ray, (run_folder.log(range(3)), "RUNNING", ""), DONE)
    seen = 0
    events = []
    for event in supervisor(ray).run():
        events.append(event)
        seen += isinstance(event, following.StepSeen)
        if seen == 3 and "maze-1-a1" in ray.jobs:
            ray.jobs.clear()  # the head died, and its job table with it
    assert events[-1] == Verdict("maze-1", True, 2, "attempt 2 succeeded")
    assert kinds(events)[0] == "lost"
    assert list(ray.jobs) == ["maze-1-a2"]
    if visible:
        kept = record.read(shared)
        assert kept is not None
        assert [(a.number, a.status) for a in kept.attempts] == [(1, "LOST"), (2, "SUCCEEDED")]


def test_begun_after_the_head_was_lost(shared: Path) -> None:
    ray = Scripted()
    start(ray, (run_folder.log(range(3)), "RUNNING", ""), DONE)
    keeping.history(load("reference"), "maze-1", connection=connection(ray))
    ray.jobs.clear()
    events, verdict = supervised(ray)
    assert verdict.succeeded
    assert kinds(events)[0] == "lost"
    assert list(ray.jobs) == ["maze-1-a2"]


def test_begun_again_it_knows_the_failure_before(shared: Path) -> None:
    ray = Scripted()
    start(ray, failed(3), failed(3), DONE)
    keeping.history(load("reference"), "maze-1", connection=connection(ray))
    jobs.submit(connection(ray), specification())
    _, verdict = supervised(ray)
    assert "the same error came twice at step 3" in verdict.reason
    assert len(ray.jobs) == 2


def test_a_cluster_that_does_not_come_back(shared: Path) -> None:
    ray, time = Scripted(), Time()
    start(ray, failed(3), DONE)
    with pytest.raises(Unreachable, match=r"did not come back within 120 min.*2 of 3 workers"):
        supervised(ray, time=time, cluster=lambda: AWAY)
    assert len(ray.jobs) == 1
    kept = record.read(shared)
    assert kept is not None
    assert kept.events[-1].kind == "given-up"


def test_a_kubernetes_api_that_does_not_answer_is_asked_again() -> None:
    ray, answers = Scripted(), [Unreachable("nobody answers"), READY]
    start(ray, failed(3), DONE)

    def cluster() -> clusters.State:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    events, verdict = supervised(ray, cluster=cluster)
    assert verdict.succeeded
    assert any("nobody answers" in event.text for event in events if isinstance(event, Decision))


def test_out_of_reach_for_long_and_still_running_costs_no_attempt() -> None:
    ray = Scripted()
    start(ray, (run_folder.log(range(3)), "RUNNING", ""))
    one = supervisor(ray, limits=Limits(attempts=1))
    real, calls = one.watch, [0]

    def watch(link: Any, attempt: jobs.Attempt) -> Iterator[Any]:
        calls[0] += 1
        if calls[0] == 1:
            raise Unreachable("nothing answered for 30 min")
        ray.end("maze-1-a1", "SUCCEEDED")
        return real(link, attempt)

    one.watch = watch
    events = list(one.run())
    assert events[-1] == Verdict("maze-1", True, 1, "attempt 1 succeeded")
    assert kinds(events) == ["unreachable", "waiting", "ready", "reached"]
    assert len(ray.jobs) == 1


def test_a_next_attempt_that_is_refused() -> None:
    ray = Scripted()
    start(ray, failed(3), DONE)
    one = supervisor(ray)

    def refused() -> run.Specification:
        raise Refused(supervise_problem())

    one.specification = refused
    events = list(one.run())
    assert events[-1].succeeded is False
    assert "the image was moved" in events[-1].reason


def supervise_problem() -> Any:
    from config.problems import Problem

    return Problem("image", "x", "the image was moved")


def test_a_run_that_nobody_knows() -> None:
    with pytest.raises(Refused, match="knows no such run"):
        supervised(Scripted())


# --- the commands ---


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    fake = Scripted()

    @contextlib.contextmanager
    def connect(env: Any, **_: Any) -> Iterator[Any]:
        yield connection(fake, env)

    monkeypatch.setattr(jobs, "connect", connect)
    monkeypatch.setattr(following, "STATUS_SECONDS", 0.05)
    monkeypatch.setattr(clusters, "state", lambda kubectl: READY)
    monkeypatch.setattr(supervise, "Limits", functools.partial(Limits, backoff=0.0))
    return fake


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


# --- reproduce ---


@pytest.fixture
def own_environment(tmp_path: Path) -> Path:
    """An environment file outside of the repository."""
    path = tmp_path / "mine.yaml"
    path.write_text((ROOT / "environments/reference.yaml").read_text())
    return path


SETTINGS = (
    "trainer.epochs=7",
    "trainer.placement.colocate_all=false",
    "trainer.placement.policy_num_nodes=2",
    "generator.inference_engine.tensor_parallel_size=2",
    "trainer.micro_train_batch_size_per_gpu=2",
    "trainer.project_name='a b; $(x)'",
    "trainer.policy.optimizer_config.lr=1e-6",
)


@pytest.mark.parametrize("settings", [(), ("trainer.epochs=7", "trainer.project_name='a b; $(x)'"), SETTINGS], ids=len)
def test_the_printed_commands_submit_the_same_again(
    settings: tuple[str, ...], own_environment: Path, ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = load(str(own_environment))
    run_folder.attempt(_plain(ray), "", env=env, settings=settings)
    code, out, err = call(["--env", str(own_environment), "reproduce", "maze-1", "--as", "maze-2"], capsys)
    assert code == 0, err
    checkout, _, export, submit = out.splitlines()
    assert checkout == f"git checkout {'a' * 40}"
    assert export == f"export HYPERPOD_RL_ENV={own_environment}"
    words = shlex.split(submit)
    assert words[:4] == ["hyperpod-rl", "submit", "--run-id", "maze-2"]
    assert words.count("--set") == len(settings)
    again = run.specify(env, run_id="maze-2", settings=[word for before, word in itertools.pairwise(words) if before == "--set"])
    before = run.specify(env, run_id="maze-1", settings=settings)
    assert json.loads(json.dumps(dict(again.overrides)).replace("maze-2", "maze-1")) == before.overrides
    assert "named by a tag" in err
    assert "revision is main, no commit" in err


def _plain(ray: Scripted) -> Scripted:
    ray.script = [("", "SUCCEEDED", "")]
    return ray


def test_reproduce_from_the_record_when_the_cluster_is_gone(
    own_environment: Path, ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = load(str(own_environment))
    run_folder.attempt(_plain(ray), "", env=env, settings=("trainer.epochs=7",))
    keeping.history(env, "maze-1", connection=connection(ray, env))
    words = ["--env", str(own_environment), "reproduce", "maze-1", "--json"]
    with_cluster = json.loads(call(words, capsys)[1])

    def gone(*_: Any, **__: Any) -> Any:
        raise Unreachable("no such cluster")

    monkeypatch.setattr(jobs, "connect", gone)
    assert json.loads(call(words, capsys)[1]) == with_cluster
    assert json.loads(call([*words, "--offline"], capsys)[1]) == with_cluster
    assert with_cluster["commands"][-1] == "hyperpod-rl submit --run-id maze-1-again --set trainer.epochs=7"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code, out, err = call([*words], capsys)
    assert (code, out) == (2, "")
    return err


def test_what_cannot_be_reproduced_is_refused(
    own_environment: Path, ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = load(str(own_environment))
    words = ("--env", str(own_environment), "reproduce", "maze-1")
    assert "neither the Ray cluster nor a record" in refused(capsys, *words)
    run_folder.attempt(_plain(ray), "", env=env, dirty=True)
    assert "with uncommitted changes" in refused(capsys, *words)
    ray.jobs["maze-1-a1"].metadata["dirty"] = "false"  # type: ignore[index]
    assert "under the same run id" in refused(capsys, *words, "--as", "maze-1")
    data = yaml.safe_load(own_environment.read_text())
    data["training"]["base_model"] = "/shared/models/other"
    own_environment.write_text(yaml.safe_dump(data))
    assert "trainer.policy.model.path was" in refused(capsys, *words)
    assert "this checkout does not have it" in refused(capsys, "reproduce", "maze-1")
    ray.jobs["maze-1-a1"].metadata["commit"] = "unknown"  # type: ignore[index]
    assert "from outside of a git checkout" in refused(capsys, *words)


def test_the_environment_is_the_one_of_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        told = ("git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.com", *words)
        return subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()

    text = (ROOT / "environments/reference.yaml").read_text()
    file = tmp_path / "environments" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(text)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    ray = FakeRay()
    run_folder.attempt(ray, "", settings=("trainer.epochs=7",))
    ray.jobs["maze-1-a1"].metadata["commit"] = commit  # type: ignore[index]
    what = reproduce.submitted("maze-1", attempts=jobs.attempts(connection(ray), "maze-1"), record=None)
    assert what is not None
    file.write_text(text.replace("trainer.epochs: 20", "trainer.epochs: 3"))  # today's file is another one
    made = reproduce.reproduce(what, environment_name=str(file), new_run_id="maze-2", root=tmp_path)
    assert list(made.commands) == [
        f"git checkout {commit}", "make setup", "export HYPERPOD_RL_ENV=environments/mine.yaml",
        "hyperpod-rl submit --run-id maze-2 --set trainer.epochs=7",
    ]  # fmt: skip
