"""Which mazes an evaluation plays: VisGym's, in the very environment that SkyRL trains with, or the ones built in here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from config.problems import Problem, Refused
from training.results import TaskName
from training.solve_rate import SOLVED_FROM

if TYPE_CHECKING:
    from config.environment import Environment

Message = dict[str, Any]
VISGYM_ENVIRONMENT = "examples.train.visgym.env_sft"


class Episode(Protocol):
    """One maze being played in words."""

    @property
    def done(self) -> bool: ...
    @property
    def solved(self) -> bool: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def turns(self) -> int: ...
    @property
    def formed(self) -> int: ...
    def begin(self) -> Message:
        """The first message."""
        ...

    def step(self, text: str) -> Message | None:
        """Take what the model said; the next message, None at the end."""
        ...


Start = Callable[[int], Episode]


@dataclass(frozen=True)
class Task:
    """Starts the episode of a seed; `bound` tells the best solve rate that any policy can reach over seeds, None if unknown."""

    name: TaskName
    start: Start
    bound: Callable[[Sequence[int]], float | None]


def task(env: Environment, name: TaskName | None, *, max_turns: int) -> Task:
    """The task that is asked for, the environment's own by default. Raises Refused where VisGym is not installed here."""
    chosen = name or env.training.evaluation_task
    if chosen == "built-in":
        from training import maze_task

        return Task(
            "built-in",
            lambda seed: maze_task.episode(seed, max_turns=max_turns),
            lambda seeds: maze_task.oracle_bound(tuple(seeds), max_turns=max_turns),
        )
    environment = _visgym()
    return Task(
        "visgym",
        lambda seed: VisGym(environment({}, {"visgym_env_id": env.training.maze, "seed": seed, "max_turns": max_turns})),
        lambda seeds: visgym_bound(env, seeds, max_turns=max_turns),
    )


def _visgym() -> Callable[..., Any]:
    try:
        return importlib.import_module(VISGYM_ENVIRONMENT).VisGymEnv  # type: ignore[no-any-return]
    except ImportError as error:
        rule = f"SkyRL's maze environment cannot be imported here ({error})"
        fix = "run this where the training image runs, with PYTHONPATH set to its SkyRL folder, or choose --task built-in"
        raise Refused(Problem("--task", "visgym", rule, fix)) from None


def visgym_bound(env: Environment, seeds: Sequence[int], *, max_turns: int) -> float | None:
    """Share of the mazes whose shortest path and one stop fit into `max_turns`, by VisGym's own solver."""
    import gymnasium  # type: ignore[import-not-found,unused-ignore]

    solvable = 0
    for seed in seeds:
        maze = gymnasium.make(env.training.maze)
        maze.reset(seed=seed)
        moves = [action for action in maze.unwrapped.solve() if "stop" not in action]  # it says stop twice
        solvable += len(moves) + 1 <= max_turns
        maze.close()
    return solvable / len(seeds) if seeds else None


@dataclass
class VisGym:
    """SkyRL's `VisGymEnv` (examples/train/visgym/env_sft.py), played as an episode."""

    environment: Any
    turns: int = 0
    done: bool = False
    stopped: bool = False
    reward: float = 0.0
    formed: int = field(default=0)

    @property
    def solved(self) -> bool:
        return self.done and self.reward >= SOLVED_FROM

    def begin(self) -> Message:
        messages, _ = self.environment.init([])
        first: Message = messages[0]
        return first

    def step(self, text: str) -> Message | None:
        told = self.environment.step(text)
        # SkyRL's step output is a mapping in its newer versions and an object in its older ones.
        observations, reward, done, metadata = (_part(told, name) for name in ("observations", "reward", "done", "metadata"))
        self.turns += 1
        self.done, self.reward = bool(done), float(reward)
        self.stopped = bool((metadata or {}).get("terminated"))
        self.formed = int(self.environment.format_successes)
        if self.done:
            self.environment.close()
            return None
        following: Message = observations[0]
        return following


def _part(told: Any, name: str) -> Any:
    return told[name] if isinstance(told, dict) else getattr(told, name)
