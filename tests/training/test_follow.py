"""Following: every step once, however often the connection is cut, and the verdict from the job's status."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.load import load
from config.problems import Unreachable
from tests.training.console_text import training_log
from tests.training.fakes import FakeRay, connection
from training import follow as following
from training import jobs, run


class Time:
    """A clock that passes only when somebody sleeps, and a little at each look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 0.01
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def started(ray: FakeRay, log: str) -> jobs.Attempt:
    env = load("reference")
    attempt = jobs.submit(connection(ray), run.specify(env, run_id="maze-1", code=run.Code("0" * 40, dirty=False))).attempt
    ray.logs[attempt.submission_id] = log
    ray.jobs[attempt.submission_id].status = "RUNNING"
    return attempt


def follow(ray: FakeRay, attempt: jobs.Attempt) -> list[following.Seen]:
    time = Time()
    link = connection(ray)
    return list(following.follow(link, attempt, log=following.Log(link, attempt, sleep=time.sleep, now=time.now)))


def steps(events: list[following.Seen]) -> list[int]:
    return [event.step for event in events if isinstance(event, following.StepSeen)]


def verdict(events: list[following.Seen]) -> following.Ended:
    (ended,) = [event for event in events if isinstance(event, following.Ended)]
    assert events[-1] is ended
    return ended


def test_a_run_from_its_first_step_to_its_verdict() -> None:
    ray = FakeRay(finish_after_tails=(1, "SUCCEEDED"))
    events = follow(ray, started(ray, training_log(6)))
    assert steps(events) == [0, 1, 2, 3, 4, 5]
    assert verdict(events).succeeded
    assert verdict(events).last_step == 5
    first = next(event for event in events if isinstance(event, following.StepSeen))
    assert first.solve_rate is not None
    assert first.solve_rate.bound is not None
    assert first.step_seconds == 2.5


def test_a_log_that_says_done_is_no_verdict() -> None:
    ray = FakeRay(finish_after_tails=(1, "FAILED"))
    events = follow(ray, started(ray, training_log(2) + "Training done!\n"))
    assert not verdict(events).succeeded


def test_a_stream_that_ends_is_no_verdict_while_the_job_runs() -> None:
    ray = FakeRay(finish_after_tails=(3, "SUCCEEDED"))
    events = follow(ray, started(ray, training_log(3)))
    assert steps(events) == [0, 1, 2]
    assert ray.tails == 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=20))
def test_cut_twenty_times_no_step_is_lost_or_doubled(cuts: list[int]) -> None:
    ray = FakeRay(cuts=list(cuts), finish_after_tails=(1, "SUCCEEDED"))
    events = follow(ray, started(ray, training_log(20)))
    assert steps(events) == list(range(20))
    assert verdict(events).succeeded


def test_a_job_that_ends_while_the_stream_is_cut() -> None:
    ray = FakeRay(cuts=[3000])
    attempt = started(ray, training_log(10))
    ray.end(attempt.submission_id, "FAILED", "the node went away")
    events = follow(ray, attempt)
    assert steps(events) == list(range(10))
    assert verdict(events).attempt.message == "the node went away"


def test_a_lost_connection_is_told_once_and_its_return_too() -> None:
    ray = FakeRay(cuts=[0, 0, 0, 500], finish_after_tails=(5, "SUCCEEDED"))
    texts = [event.text for event in follow(ray, started(ray, training_log(4))) if isinstance(event, following.Changed)]
    assert len([text for text in texts if "connection lost" in text]) <= 2
    assert "connected again" in texts


def test_a_head_that_forgot_the_job() -> None:
    ray = FakeRay()
    attempt = started(ray, "")
    ray.jobs.clear()
    with pytest.raises(jobs.Gone, match="was its head restarted"):
        follow(ray, attempt)


def test_nothing_answers_for_long() -> None:
    ray = FakeRay()
    attempt = started(ray, "")
    ray.drop = 10_000
    ray.cuts = [0] * 10_000
    with pytest.raises(Unreachable, match="the job goes on"):
        follow(ray, attempt)


def test_text_of_any_alphabet_is_counted_right() -> None:
    log = "模型 ✓ 😀\n" * 100 + training_log(5)
    ray = FakeRay(cuts=[350, 351, 900], finish_after_tails=(1, "SUCCEEDED"))
    assert steps(follow(ray, started(ray, log))) == [0, 1, 2, 3, 4]


def test_raw_log_has_every_character_once() -> None:
    ray = FakeRay(cuts=[10, 999, 4000], finish_after_tails=(4, "SUCCEEDED"))
    log = training_log(8)
    attempt = started(ray, log)
    time = Time()
    link = connection(ray)
    pieces = following.Log(link, attempt, sleep=time.sleep, now=time.now).stream()
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == log


@pytest.mark.parametrize("make", [lambda e: e.document(), lambda e: e.sentence()])
def test_numbers_that_are_none_are_shown(make: Callable[[following.StepSeen], object]) -> None:
    seen = following.StepSeen("r", 1, 0, None, None, None, {"a": float("nan")})
    assert "nan" not in str(make(seen)).lower()
