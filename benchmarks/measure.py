"""Wall time of commands, the best of several runs, and a ratio against a budget."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds(command: Sequence[str], *, times: int = 3) -> float:
    """Best wall time of a command over some runs, in seconds (the best one holds the least of the machine's other work).

    Raises CalledProcessError if the command fails.
    """
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begin)
    return best


def compare(name: str, measured: float, against: float, *, budget: float) -> list[str]:
    """Print measured / against with its budget; the sentence of a missed budget, or nothing."""
    ratio = measured / against
    line = f"{name}: {measured:.2f} s / {against:.2f} s = {ratio:.2f} x (budget {budget} x)"
    print(line)
    return [] if ratio <= budget else [line]
