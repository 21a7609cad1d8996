"""`submit` killed (SIGKILL) at every moment at which something outside of it changes: nothing is lost and nothing is doubled."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import main
from tests.training.fakes import FakeRay, reached
from training import layout, record, run
from training.preflight import disk


class Kept(FakeRay):
    """A job table that outlives the process that asks it, as a head does. `moment` is called before and after each change."""

    file: Path
    moment: Callable[[], None] = staticmethod(lambda: None)

    def _called(self, name: str) -> None:
        super()._called(name)
        if name == "submit":
            self.file.write_bytes(pickle.dumps((self.jobs, self.logs)))
        self.moment()

    def submit_job(self, **job: Any) -> str:
        self.moment()
        return super().submit_job(**job)

    def again(self) -> None:
        self.jobs, self.logs = pickle.loads(self.file.read_bytes()) if self.file.exists() else ({}, {})


def killed_at(ray: Kept, number: int, folder: Path) -> bool:
    """Submit in a process of its own that is killed at the moment of this number; False if it ended before."""
    child = os.fork()
    if not child:
        seen = [0]

        def moment() -> None:
            seen[0] += 1
            if seen[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def changes(event: str, given: tuple[Any, ...]) -> None:
            writes = event in ("os.mkdir", "os.rename", "os.remove") or (event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR))
            if writes and str(given[0]).startswith(str(folder)):
                moment()

        ray.moment = moment
        sys.addaudithook(changes)
        os._exit(main.run(["submit", "--run-id", "maze-1"]))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def test_submit_killed_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    ray = Kept()
    reached(ray, monkeypatch)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10**15)
    monkeypatch.setattr(run, "current_code", lambda: run.Code("a" * 40, dirty=False))
    found: list[str] = []
    for number in range(1, 100):
        shared = tmp_path / str(number)
        shared.mkdir()
        monkeypatch.setenv(layout.SHARED_VARIABLE, str(shared))
        ray.file = tmp_path / f"jobs-{number}"
        ray.again()
        ended = not killed_at(ray, number, shared)
        ray.again()
        capfd.readouterr()
        assert main.run(["submit", "--run-id", "maze-1"]) == 0
        out, err = capfd.readouterr()
        found.append("there" if "is pending as attempt 1 with this specification; nothing was submitted" in out else "new")
        assert ("attempt 1 (maze-1-a1)" in out) is (found[-1] == "new")
        assert "cannot be kept" not in err
        assert list(ray.jobs) == ["maze-1-a1"]
        kept = record.read(shared / "runs/maze-1")
        assert kept is not None
        assert [(each.number, each.status) for each in kept.attempts] == [(1, "PENDING")]
        assert kept.overrides["trainer.epochs"] == 20
        if ended:
            break
    # Killed before the job was there, and after it: never a mixture.
    assert ended
    assert found == ["new"] * found.count("new") + ["there"] * found.count("there")
    assert found.count("new") >= 2
    assert found.count("there") >= 5
