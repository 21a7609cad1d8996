"""What a run left in its folder: eval dumps maze by maze, sizes and digests. Nothing is written here, and nothing need be there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config.environment import Environment
from training import solve_rate
from training.solve_rate import Bound, SolveRate

_DUMP: Final = re.compile(r"^global_step_(\d{1,9})_evals$")
# A dataset of mazes is some kilobytes; a file beyond this is not read only to name its digest.
LARGEST_FILE: Final = 256 * 1024 * 1024


@dataclass(frozen=True)
class Maze:
    """One maze of one evaluation. `seed` is None where the dump tells none; `row` is its place in the dump, from 0.

    `format_rate`, the share of well-formed turns, follows from the reward: 0.8 for solving, up to 0.2 for format.
    """

    row: int
    seed: int | None
    solved: bool
    stop_reason: str
    format_rate: float | None = None


def mazes(folder: Path) -> tuple[Maze, ...]:
    """Results of one eval dump in the order of seed and row; empty if it is not there or not whole.

    Rows as SkyRL writes them: `score` (last element: the terminal reward), `stop_reason`, `env_extras.seed`.
    """
    found: list[Maze] = []
    if not (folder / solve_rate.AGGREGATED).is_file():
        return ()  # written after the rows: still being written
    try:
        for path in sorted(folder.glob("*.jsonl")):
            if path.name == solve_rate.AGGREGATED:
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                score = row.get("score")
                last = score[-1] if isinstance(score, list) and score else score
                extras = row.get("env_extras")
                seed = extras.get("seed") if isinstance(extras, dict) else None
                solved = isinstance(last, (int, float)) and last >= solve_rate.SOLVED_FROM
                reason = row.get("stop_reason")
                form = min(1.0, max(0.0, round((last - 0.8 * solved) / 0.2, 6))) if isinstance(last, (int, float)) else None
                found.append(
                    Maze(len(found), seed if isinstance(seed, int) else None, solved, reason if isinstance(reason, str) else "", form)
                )
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(sorted(found, key=lambda maze: (maze.seed is None, maze.seed or 0, maze.row)))


def dumps(run: Path) -> Iterator[tuple[int, Path]]:
    """Eval dumps in a run's folder: (step, folder), rising."""
    try:
        matches = [(match, path) for path in (run / "exports" / "dumped_evals").iterdir() if (match := _DUMP.match(path.name))]
        found = [(int(match[1]), path) for match, path in matches if path.is_dir()]
    except OSError:
        return
    yield from sorted(found)


def dump(env: Environment, run: Path | None, step: int, *, max_turns: object) -> tuple[SolveRate, tuple[Maze, ...]] | None:
    """Solve rate and mazes of one step's eval dump; None if it is not there or not whole. The rate knows no `pass_at_1`."""
    if run is None:
        return None
    folder = run / "exports" / "dumped_evals" / f"global_step_{step}_evals"
    whole, results = solve_rate.from_dump(folder), mazes(folder)
    if whole is None or not results:
        return None
    solved, tried, stated = whole
    bound = Bound(stated, "eval dump") if stated is not None else solve_rate.environment_bound(env, max_turns)
    return SolveRate(solved / tried, solved, tried, "eval dump", None, bound), results


def size(folder: Path) -> int:
    """Bytes of all files below a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal; None if it is not there, too large to read for this, or unreadable."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
