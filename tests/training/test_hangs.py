"""HyperPod's hang events: what they lead to, and that supervising goes on where they cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import names
from config.load import load
from config.names import Parameter
from config.problems import Unreachable
from tests.training import run_folder
from tests.training.fakes import connection
from tests.training.fixtures import shared
from tests.training.scripted import DONE, READY, Scripted, Time, specification, start
from training import deployed, follow, hangs, jobs, keeping
from training.supervise import Limits, Supervisor

__all__ = ["shared"]
EVENT = {"timestamp": 2_000_000, "message": "HANG_DETECTED job maze-1:\n no line for 30 min"}


class Logs:
    """CloudWatch Logs as boto3 shows it."""

    class exceptions:
        ResourceNotFoundException = KeyError

    def __init__(self, events: list[dict[str, Any]], missing: bool = False) -> None:
        self.events, self.missing, self.asked = events, missing, list[dict[str, Any]]()

    def get_paginator(self, name: str) -> Logs:
        assert name == "filter_log_events"
        return self

    def paginate(self, **given: Any) -> Iterator[dict[str, Any]]:
        self.asked.append(given)
        if self.missing:
            raise KeyError("no such group")
        yield {"events": [event for event in self.events if event["timestamp"] >= given["startTime"]]}


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    fake = Logs([EVENT])
    arn = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abc123"
    found = deployed.Deployed("reference", "111122223333", "us-west-2", {Parameter.HYPERPOD_ARN: arn})
    monkeypatch.setattr(deployed, "lookup", lambda env, aws=None: found)
    monkeypatch.setattr(deployed, "client", lambda env, service, aws=None: fake)
    return fake


def test_an_event_since_the_attempt_began(logs: Logs) -> None:
    clock = [5000.0]
    asking = hangs.Hangs(load("reference"), now=lambda: clock[0])
    assert asking(1990.0) == "HANG_DETECTED job maze-1: no line for 30 min"
    assert logs.asked[0]["logGroupName"] == "/aws/sagemaker/Clusters/hyperpod-rl-reference/abc123"
    assert asking(1990.0) is None  # not again within a minute
    clock[0] += 61
    assert asking(2001.0) is None  # older than the attempt
    assert len(logs.asked) == 2
    clock[0] -= 3600  # the clock was set back
    assert asking(1990.0) is not None


def test_a_log_group_that_is_not_there_yet(logs: Logs) -> None:
    logs.missing = True
    notes: list[str] = []
    assert hangs.Hangs(load("reference"), notes.append, now=lambda: 0.0)(0.0) is None
    assert notes == []


def test_no_access_is_said_once_and_asked_again_later(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(env: Any, aws: Any = None) -> Any:
        raise Unreachable("AWS refused GetParametersByPath: AccessDenied")

    there = deployed.lookup
    monkeypatch.setattr(deployed, "lookup", refused)
    clock, notes = [0.0], list[str]()
    asking = hangs.Hangs(load("reference"), notes.append, now=lambda: clock[0])
    for _ in range(13):
        assert asking(0.0) is None
        clock[0] += 100
    assert len(notes) == 1
    assert "AccessDenied" in notes[0]
    monkeypatch.setattr(deployed, "lookup", there)
    clock[0] += hangs.AFTER_FAILURE_SECONDS
    assert "HANG_DETECTED" in str(asking(1990.0))


def test_a_pod_is_told_the_log_group_and_looks_nothing_up(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "lookup", None)  # would be a TypeError
    monkeypatch.setenv(names.HANG_LOG_GROUP_VARIABLE, "/aws/sagemaker/Clusters/hyperpod-rl-reference/told")
    assert "HANG_DETECTED" in str(hangs.Hangs(load("reference"), now=lambda: 0.0)(1990.0))
    assert logs.asked[0]["logGroupName"].endswith("/told")


def test_the_local_cloud_is_not_asked() -> None:
    assert hangs.watcher(load("local"), print) is None


def test_the_supervisor_stops_what_hyperpod_calls_hung(shared: Path) -> None:
    ray, time = Scripted(), Time()
    start(ray, (run_folder.log(range(3)), "RUNNING", ""), DONE)
    link, words, asked = connection(ray), iter(["HANG_DETECTED rank 3"]), list[float]()

    def hang(since: float) -> str | None:
        asked.append(since)
        return next(words, None)

    def watch(link: Any, attempt: jobs.Attempt) -> Iterator[Any]:
        if attempt.number == 1:
            yield follow.Beat(attempt)
            return
        yield from follow.watch(link, attempt, log=follow.Log(link, attempt, sleep=time.sleep, now=time.now))

    one = Supervisor(
        link, "maze-1", specification, lambda: READY, keeping.Keeper(link, "maze-1", now=time.now), limits=Limits(), clock=time,
        watch=watch, hang=hang,
    )  # fmt: skip
    events = list(one.run())
    assert events[-1].succeeded
    texts = [event.text for event in events if hasattr(event, "text")]
    assert any("attempt 1 hangs before its first step: HyperPod says so: HANG_DETECTED rank 3" in text for text in texts)
    assert "stop" in ray.calls
    # Since the attempt began, not since somebody looked: a supervisor that was away for an hour has missed nothing.
    assert asked[0] == ray.jobs["maze-1-a1"].start_time / 1000
