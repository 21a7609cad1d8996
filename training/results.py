"""Result files of `hyperpod-rl evaluate`: one evaluation of one model over an OpenAI-compatible endpoint, maze by maze.

The gate compares them, the report shows them. They lie beside the run that they are about (`evaluations/` in its folder), or
wherever `--output` says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.problems import Failed
from training.solve_rate import wilson

FOLDER: Final = "evaluations"
MazeSet = Literal["held-out", "fresh", "other"]
TaskName = Literal["visgym", "built-in"]


class Part(BaseModel):
    """A frozen piece of a result; what a later version adds is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Played(Part):
    """One maze. `format_rate` is the share of well-formed turns; `stop_reason` is stop, turns or context; `releases` answered."""

    seed: int
    solved: bool
    turns: int
    format_rate: float
    stop_reason: Literal["stop", "turns", "context"]
    releases: tuple[str, ...] = ()


class Latency(Part):
    """Seconds from sending a request to having its whole answer, over all requests that were answered."""

    requests: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    longest: float = 0.0


class Result(Part):
    """Content of a result file. Times are UTC in ISO 8601, `seconds` is how long it took.

    `run_id`, `step` and `export_digest` say what was evaluated, where that is known; `tries` how often, this time included.
    """

    format: int = 1
    model: str
    endpoint: str
    task: TaskName
    maze_set: MazeSet
    max_turns: int
    temperature: float = 0.0
    max_tokens: int = 1024
    run_id: str | None = None
    step: int | None = None
    export_digest: str | None = None
    tries: int = Field(default=1, ge=1)
    started: str = ""
    seconds: float = 0.0
    concurrency: int = 1
    retries: int = 0
    latency: Latency = Latency()
    oracle_bound: float | None = Field(default=None, ge=0, le=1)
    mazes: tuple[Played, ...]

    @property
    def solved(self) -> int:
        """Mazes really solved."""
        return sum(maze.solved for maze in self.mazes)

    @property
    def rate(self) -> float:
        """Solve rate; 0 without mazes."""
        return self.solved / len(self.mazes) if self.mazes else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the solve rate."""
        return wilson(self.solved, len(self.mazes))

    @property
    def format_rate(self) -> float:
        """Mean over the mazes of the share of well-formed turns."""
        return sum(maze.format_rate for maze in self.mazes) / len(self.mazes) if self.mazes else 0.0

    @property
    def pass_at_1(self) -> float:
        """What SkyRL would call `pass_at_1`: the share of mazes whose reward is above 0, however little was solved."""
        return sum(maze.solved or maze.format_rate > 0 for maze in self.mazes) / len(self.mazes) if self.mazes else 0.0

    def text(self) -> str:
        """As it stands in the file."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"

    def sentence(self) -> str:
        """For people: `solve rate 0.797 [0.683, 0.877] (51/64) of 0.797 reachable, format 1.000`."""
        low, high = self.interval
        bound = f" of {self.oracle_bound:.3f} reachable" if self.oracle_bound is not None else ", oracle bound unknown"
        share = f"{self.solved}/{len(self.mazes)}"
        return f"solve rate {self.rate:.3f} [{low:.3f}, {high:.3f}] ({share}){bound}, format {self.format_rate:.3f}"


def file_name(step: int, maze_set: MazeSet) -> str:
    """Name of a result in a run's `evaluations` folder."""
    return f"step-{step}-{maze_set}.json"


def read(path: Path) -> Result:
    """One result file. Raises Failed where it is none, OSError where it cannot be read."""
    try:
        return Result.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise Failed(f"{path} is no result of `hyperpod-rl evaluate` ({error.error_count()} errors in it)") from None


def write(path: Path, result: Result) -> None:
    """Put the file there, whole or not at all. Raises OSError."""
    if path.exists() and not path.is_file():
        path.write_text(result.text(), encoding="utf-8")  # a device or a pipe, such as /dev/stdout: nothing may take its place
        return
    path = path.resolve()  # the file behind a link, not the link
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(result.text())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def counted(path: Path, result: Result) -> Result:
    """A result that is about to take the place of an earlier one of the same bytes on the same mazes, with the tries so far in it.

    Each try at the same mazes is another chance: the gate asks more of the second.
    """
    try:
        before = read(path)
    except (Failed, OSError):
        return result
    same = (before.run_id, before.step, before.maze_set) == (result.run_id, result.step, result.maze_set)
    if not same or (None not in (before.export_digest, result.export_digest) and before.export_digest != result.export_digest):
        return result
    return result.model_copy(update={"tries": before.tries + 1})


def of_run(folder: Path) -> Sequence[Result]:
    """All results in a run's folder, in the order of step and set; what is no result is passed over."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")) if (folder / FOLDER).is_dir() else ():
        try:
            found.append(read(path))
        except (Failed, OSError):
            continue
    return sorted(found, key=lambda result: (result.step if result.step is not None else -1, result.maze_set))
