"""Supervising: what leads to a next attempt, what does not, and that all of it is told. No test waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from config.load import load
from config.problems import Problem, Refused, Unreachable
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from tests.training.fixtures import shared
from tests.training.scripted import AWAY, DONE, READY, Scripted, Time, failed, specification, start
from training import cluster as clusters
from training import follow as following
from training import jobs, keeping, layout, record, run
from training.supervise import Decision, Limits, Supervisor, Verdict

__all__ = ["shared"]


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
    assert "3 attempts were made since attempt 1 was submitted, and the limit is 3" in verdict.reason
    assert [seconds for seconds in time.slept if seconds >= 30] == [30, 60]  # type: ignore[attr-defined]
    assert kinds(events)[-1] == "given-up"


@pytest.mark.parametrize("head", ["stays", "is lost each time"])
def test_the_budget_survives_a_supervisor_that_is_ended_at_every_decision(head: str, shared: Path) -> None:
    ray = Scripted()
    start(ray, failed(1), failed(2), failed(3), failed(4), DONE)
    told: list[str] = []
    for _ in range(40):  # a pod that is started again and again, as a node's upgrade or an eviction does
        events = supervisor(ray, limits=Limits(attempts=3)).run()
        decided = next((event for event in events if isinstance(event, Decision | Verdict) and str(event) not in told), None)
        told.append(str(decided))
        if isinstance(decided, Verdict):
            break
        if isinstance(decided, Decision) and decided.kind == "submitted" and head != "stays":
            keeping.history(load("reference"), "maze-1", connection=connection(ray))
            ray.jobs.clear()
    assert isinstance(decided, Verdict)
    assert (decided.succeeded, decided.attempts) == (False, 3)
    assert len(ray.script) == 2  # three were made, whoever made them
    # Whoever submits it again has the whole budget.
    jobs.submit(connection(ray), specification())
    assert supervised(ray, limits=Limits(attempts=2))[1] == Verdict("maze-1", True, 2, "attempt 5 succeeded")


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
    return Problem("image", "x", "the image was moved")


class Returning(Scripted):
    """A head that has just come back: its dashboard answers, and for some calls with an error of its own."""

    errors: int = 0
    on: str = ""

    def _called(self, name: str) -> None:
        super()._called(name)
        if name == self.on and self.errors:
            self.errors -= 1
            raise RuntimeError("Request failed with status code 500: GCS is not up yet.")

    def submit_job(self, **job: Any) -> str:
        self._called("submit_job")
        return super().submit_job(**job)


@pytest.mark.parametrize("on", ["submit_job", "list"])
@pytest.mark.parametrize(("errors", "succeeds"), [(2, True), (99_999, False)], ids=["for a moment", "for ever"])
def test_a_head_that_answers_with_errors_of_its_own(on: str, errors: int, succeeds: bool) -> None:
    ray = Returning()
    start(ray, failed(3), DONE)
    one = supervisor(ray, limits=Limits(ready=300))
    specify = one.specification

    def due() -> run.Specification:
        ray.on, ray.errors = on, errors  # from now on, when the next attempt is due
        one.specification = specify
        return specify()

    one.specification = due
    if not succeeds and on == "list":
        with pytest.raises(Unreachable, match="does not tell its jobs: GCS is not up yet"):
            list(one.run())
        return
    events = list(one.run())
    assert events[-1].succeeded is succeeds
    assert kinds(events).count("submit-failed") == 2
    assert len(ray.jobs) == 1 + succeeds


def test_a_hung_attempt_whose_head_is_restarted_before_it_is_stopped(shared: Path) -> None:
    ray = Scripted()
    start(ray, ("loading\n", "RUNNING", ""), DONE)

    def stop(name: str) -> bool:
        ray.jobs.clear()
        raise ConnectionError("Remote end closed connection without response")

    ray.stop_job = stop  # type: ignore[method-assign]
    events, verdict = supervised(ray)
    assert verdict.succeeded, verdict
    assert kinds(events)[:3] == ["hung", "stop-failed", "stopped"]
    assert list(ray.jobs) == ["maze-1-a2"]


def test_a_run_that_nobody_knows() -> None:
    with pytest.raises(Refused, match="knows no such run"):
        supervised(Scripted())
