"""Small stand-ins at the boundary: Ray's Jobs API as its client shows it, and kubectl as a process."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from config.environment import Environment
from config.load import load
from training import jobs
from training.connection import Connection


@dataclass
class Details:
    """What Ray's JobDetails tells."""

    submission_id: str
    entrypoint: str
    metadata: Mapping[str, str]
    runtime_env: Mapping[str, Any]
    status: str = "PENDING"
    message: str = ""
    start_time: int = 0
    end_time: int | None = None
    driver_exit_code: int | None = None


@dataclass
class FakeRay:
    """A Ray cluster's job table. `drop` calls fail as a lost connection before they arrive; `cuts` end log streams early."""

    jobs: dict[str, Details] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    drop: int = 0
    cuts: list[int] = field(default_factory=list)
    finish_after_tails: tuple[int, str] | None = None
    before_submit: Callable[[], None] | None = None
    tails: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.drop:
            self.drop -= 1
            raise ConnectionError("Remote end closed connection without response")

    def submit_job(self, *, entrypoint: str, submission_id: str, runtime_env: Any, metadata: Mapping[str, str]) -> str:
        if self.before_submit is not None:
            hook, self.before_submit = self.before_submit, None
            hook()
        with self.lock:
            if submission_id in self.jobs:
                text = f"Traceback (most recent call last):\n ValueError: Job with submission_id {submission_id} already exists."
                raise RuntimeError(f"Request failed with status code 500: {text}.")
            moment = 1_000_000 + len(self.jobs)
            self.jobs[submission_id] = Details(submission_id, entrypoint, dict(metadata), runtime_env, start_time=moment)
            self.logs.setdefault(submission_id, "")
        self._called("submit")  # after it arrived: the answer may be lost
        return submission_id

    def list_jobs(self) -> list[Details]:
        self._called("list")
        return list(self.jobs.values())

    def get_job_info(self, job_id: str) -> Details:
        self._called("info")
        if job_id not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")
        return self.jobs[job_id]

    def get_job_logs(self, job_id: str) -> str:
        self._called("logs")
        return self.logs[job_id]

    def stop_job(self, job_id: str) -> bool:
        self._called("stop")
        self.end(job_id, "STOPPED")
        return True

    async def tail_job_logs(self, job_id: str) -> AsyncGenerator[str, None]:
        """From the first character, as Ray does; cut where `cuts` says, as a websocket closed with 1006."""
        self.tails += 1
        text = self.logs[job_id]
        cut = self.cuts.pop(0) if self.cuts else None
        for start in range(0, len(text), 700):
            piece = text[start : start + 700]
            if cut is not None and start + len(piece) > cut:
                yield piece[: cut - start]
                raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")
            yield piece
            await asyncio.sleep(0)
        if self.finish_after_tails is not None and self.tails >= self.finish_after_tails[0]:
            self.end(job_id, self.finish_after_tails[1])

    def end(self, job_id: str, status: str, message: str = "") -> None:
        job = self.jobs[job_id]
        job.status, job.message, job.end_time = status, message, job.start_time + 1000


def connection(ray: FakeRay, env: Environment | None = None) -> Connection:
    """A connection whose every client is the fake."""
    return Connection(env or load("reference"), "http://127.0.0.1:1", factory=lambda _: ray)


def reached(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever connects to a Ray cluster from now on reaches the fake."""

    @contextlib.contextmanager
    def connect(env: Environment, **_: Any) -> Iterator[Connection]:
        yield connection(ray, env)

    monkeypatch.setattr(jobs, "connect", connect)


@dataclass
class FakeKubectl:
    """Stands for the process: answers by the first words of the command line, and remembers what it was asked."""

    answer: Callable[[Sequence[str]], str | tuple[int, str]]
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        words = [word for word in command[1:] if not word.startswith("--request-timeout")]
        words = words[2:] if words[:1] == ["--kubeconfig"] else words
        self.asked.append(words)
        said = self.answer(words)
        if isinstance(said, tuple):
            return subprocess.CompletedProcess(command, said[0], "", said[1])
        return subprocess.CompletedProcess(command, 0, said, "")
