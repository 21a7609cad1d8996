"""The solve rate, honestly: mazes really solved / mazes tried, with its interval, beside the best that any policy can reach.

SkyRL's `pass_at_1` counts an episode whose last reward is above 0, and the maze environment pays 0.2 for format alone: an agent
that stops at once passes every maze and solves none (skyrl/train/generators/utils.py, examples/train/visgym/env_sft.py). It is
shown beside the solve rate only, under its own name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from config.environment import Environment
from training import layout
from training.skyrl import solve_rate_from_log

# The terminal reward of a solved maze is 0.8 and up to 0.2 for format (examples/train/visgym/env_sft.py).
SOLVED_FROM: Final = 0.8
NORMAL_95: Final = 1.959963984540054
AGGREGATED: Final = "aggregated_results.jsonl"
Source = Literal["eval dump", "log formula"]


@dataclass(frozen=True)
class Bound:
    """The oracle bound: the best solve rate that any policy can reach within `max_turns`, and where it was read."""

    rate: float
    source: str


@dataclass(frozen=True)
class SolveRate:
    """Solve rate of one evaluation. `solved` is a whole number of mazes where the dump was read, else an estimate."""

    rate: float
    solved: float
    mazes: int
    source: Source
    pass_at_1: float | None = None
    bound: Bound | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval."""
        return wilson(self.solved, self.mazes)

    @property
    def of_bound(self) -> float | None:
        """Share of the oracle bound; None if there is no bound or it is 0."""
        return self.rate / self.bound.rate if self.bound is not None and self.bound.rate > 0 else None

    def sentence(self) -> str:
        """For people: `solve rate 0.641 [0.518, 0.747] (41/64, eval dump) of 0.781 reachable`."""
        low, high = self.interval
        count = f"{self.solved:.0f}/{self.mazes}" if self.source == "eval dump" else f"about {self.solved:.0f}/{self.mazes}"
        bound = f" of {self.bound.rate:.3f} reachable ({self.bound.source})" if self.bound is not None else ", oracle bound unknown"
        return f"solve rate {self.rate:.3f} [{low:.3f}, {high:.3f}] ({count}, {self.source}){bound}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        low, high = self.interval
        return {
            "rate": self.rate, "low": low, "high": high, "solved": self.solved, "mazes": self.mazes, "source": self.source,
            "oracle_bound": self.bound.rate if self.bound else None, "bound_source": self.bound.source if self.bound else None,
            "of_bound": self.of_bound, "skyrl_pass_at_1": self.pass_at_1,
        }  # fmt: skip


def wilson(successes: float, tries: int, z: float = NORMAL_95) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson, JASA 22, 1927); (0, 1) for no tries."""
    if tries <= 0:
        return 0.0, 1.0
    share = successes / tries
    spread = 1 + z * z / tries
    middle = (share + z * z / (2 * tries)) / spread
    half = z / spread * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    # At the ends the formula is exact and rounding is not.
    return (0.0 if successes == 0 else max(0.0, middle - half)), (1.0 if successes == tries else min(1.0, middle + half))


def from_dump(folder: Path) -> tuple[int, int, float | None] | None:
    """Read one eval dump: (mazes solved, mazes tried, oracle bound if the dump tells one); None if it is not there or not whole.

    A maze is solved when its terminal reward, the last element of the row's `score`, is at least 0.8.
    """
    solved = tried = 0
    bound: float | None = None
    try:
        # `aggregated_results.jsonl` is written after the rows, so a dump without it is still being written.
        for line in (folder / AGGREGATED).read_text(encoding="utf-8").splitlines():
            value = json.loads(line).get("oracle_bound") if line.strip() else None
            bound = float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else bound
        for path in sorted(folder.glob("*.jsonl")):
            if path.name == AGGREGATED:
                continue
            with path.open(encoding="utf-8") as rows:
                for row in rows:
                    score = json.loads(row).get("score")
                    last = score[-1] if isinstance(score, list) and score else score
                    tried += 1
                    solved += isinstance(last, (int, float)) and last >= SOLVED_FROM
    except (OSError, ValueError, AttributeError):
        return None
    return (solved, tried, bound) if tried else None


def environment_bound(env: Environment, max_turns: object) -> Bound | None:
    """The oracle bound that the environment file states for this `max_turns`; None if it states none."""
    rate = env.training.oracle_bounds.get(str(max_turns))
    return Bound(rate, f"environment, max_turns={max_turns}") if rate is not None else None


def of_step(env: Environment, run_id: str, *, step: int, metrics: Mapping[str, object], max_turns: object) -> SolveRate | None:
    """Solve rate of one step: from the eval dump where the shared file system is visible, else from the log; None without evaluation."""
    passed = _number(metrics.get("eval/all/pass_at_1"))
    bound = environment_bound(env, max_turns)
    folder = layout.here(env, layout.run_folder(env, run_id).evaluation(step))
    score = _number(metrics.get("eval/all/avg_score"))
    if score is None and passed is None:
        return None
    if folder is not None and (dump := from_dump(folder)) is not None:
        solved, tried, stated = dump
        return SolveRate(solved / tried, solved, tried, "eval dump", passed, Bound(stated, "eval dump") if stated is not None else bound)
    form = _number(metrics.get("eval/all/environment/avg_format_success_rate"))
    if score is None or form is None:
        return None
    rate = solve_rate_from_log(score, form)
    return SolveRate(rate, rate * env.training.eval_rows, env.training.eval_rows, "log formula", passed, bound)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
