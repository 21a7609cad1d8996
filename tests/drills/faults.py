"""Faults at exact places of a run, worked by files in a control folder: the stand-in trainer itself knows nothing of them.

`hold-step-N`, `hold-rollout-N`, `hold-save-N-K`: while the file is there, the run waits before step N, in the rollout of step N,
before the K-th write of the checkpoint of step N; `at-…` appears when it has come there. `full` holds a number K: the device is
full at the K-th write of the second checkpoint of an attempt; half of the file is written, the number is raised (somebody frees
space, and it fills up again later), and the write fails as the kernel says it. Beyond the last write nothing fails any more.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local.trainer import checkpoint, shared
from local.trainer.settings import Settings
from local.trainer.train import Run

CONTROL = "DRILL_CONTROL"
HELD_SECONDS = 300.0  # a drill that went wrong must not hold a trainer for ever


def task_with_faults(control: str) -> Callable[[Settings], None]:
    """The task that trains, with the faults in place. Its name stands before every line of the log."""

    def visgym_entrypoint(settings: Settings) -> None:
        from local.trainer import cluster
        from tests.drills import faults

        faults.install(Path(control))
        cluster.visgym_entrypoint(settings)

    visgym_entrypoint.__qualname__ = "visgym_entrypoint"
    return visgym_entrypoint


def install(control: Path) -> None:
    step, roll, save, write = Run._step, Run._roll, checkpoint.save, shared._write_and_sync
    saved: list[int] = []  # steps of this attempt's checkpoints
    writes = [0]

    def held(what: str) -> None:
        if (control / f"hold-{what}").exists():
            (control / f"at-{what}").touch()
            limit = time.monotonic() + HELD_SECONDS
            while (control / f"hold-{what}").exists() and time.monotonic() < limit:
                time.sleep(0.02)

    def slow_step(self: Run, base: Any, state: Any) -> None:
        held(f"step-{state.step + 1}")
        step(self, base, state)

    def slow_roll(self: Run, base: Any, state: Any, tasks: Any, plan: Any) -> Any:
        held(f"rollout-{state.step + 1}")
        return roll(self, base, state, tasks, plan)

    def counted_save(folder: Path, state: Any, **given: Any) -> Path:
        saved.append(state.step)
        writes[0] = 0
        try:
            return save(folder, state, **given)
        finally:
            writes[0] = -1

    def bounded_write(path: Path, content: bytes) -> None:
        if saved and writes[0] >= 0:
            writes[0] += 1
            held(f"save-{saved[-1]}-{writes[0]}")
            full = control / "full"
            if len(saved) == 2 and full.exists() and int(full.read_text()) == writes[0]:
                full.write_text(str(writes[0] + 1))
                write(path, content[: len(content) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    Run._step, Run._roll = slow_step, slow_roll  # type: ignore[method-assign]
    checkpoint.save, shared._write_and_sync = counted_save, bounded_write


def writes_of_a_checkpoint(world: int) -> int:
    """How many files one checkpoint has, the marker included: digests, state, data, 4 small ones, 3 a rank."""
    return 8 + 3 * world


def main(arguments: list[str]) -> int:
    """`python -m tests.drills.faults key=value …`: the stand-in's command, with the faults in the task that trains."""
    from local.trainer import __main__ as command
    from local.trainer import cluster

    cluster.visgym_entrypoint = task_with_faults(os.environ[CONTROL])
    return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
