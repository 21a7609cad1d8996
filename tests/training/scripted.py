"""A run whose attempts follow a script, in Ray's job table and in a time that passes only when somebody sleeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from config.load import load
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from training import cluster as clusters
from training import jobs, run
from training.waiting import Clock

READY = clusters.State("skyrl-visgym", "training", exists=True, head_ready=True, workers_ready=3, workers_wanted=3, gpus=6)
AWAY = clusters.State("skyrl-visgym", "training", exists=True, head_ready=True, workers_ready=2, workers_wanted=3, gpus=6)


class Time(Clock):
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


def specification() -> run.Specification:
    return run.specify(load("reference"), run_id="maze-1", code=run.Code("a" * 40, dirty=False))


def start(ray: Scripted, *script: tuple[str, str, str]) -> None:
    ray.script = list(script)
    jobs.submit(connection(ray), specification())
