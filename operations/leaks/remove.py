"""Runs the printed commands: what is removed is removed by the very lines that were shown."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from operations.leaks.leak import Leak

# A load balancer lets go of its interfaces after a minute or two, and a group can go only then.
ROUNDS, PAUSE_SECONDS, COMMAND_SECONDS = 4, 30.0, 900
Execute = Callable[..., subprocess.CompletedProcess[str]]


def remove(
    leaks: Sequence[Leak], *, note: Callable[[str], None], execute: Execute = subprocess.run, sleep: Callable[[float], None] = time.sleep
) -> dict[Leak, str]:
    """Remove them in their order, and what did not go again after a pause. Returns what is left, with what AWS said."""
    left: dict[Leak, str] = dict.fromkeys(leaks, "")
    for number in range(ROUNDS):
        if number:
            note(f"{len(left)} did not go yet; trying again in {PAUSE_SECONDS:.0f} s")
            sleep(PAUSE_SECONDS)
        left = {leak: said for leak in left if (said := _remove(leak, note, execute)) is not None}
        if not left:
            break
    return left


def _remove(leak: Leak, note: Callable[[str], None], execute: Execute) -> str | None:
    for command in leak.commands:
        note(f"$ {command}")
        # Beside this Python lies the pinned AWS CLI.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        try:
            done = execute(["bash", "-c", command], env={**os.environ, "PATH": path, "AWS_PAGER": ""}, capture_output=True, text=True,
                           timeout=COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no end after {COMMAND_SECONDS} s"
        if done.returncode:
            said = " ".join((done.stderr or done.stdout or f"exit code {done.returncode}").split())[:300]
            if "NotFound" in said or "NoSuch" in said or "does not exist" in said:
                continue  # gone already
            note(f"  {said}")
            return said
    return None
