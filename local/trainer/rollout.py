"""Rollouts: the policy plays mazes, turn by turn, in text.

What an utterance means and what an episode is worth stands in `training.maze_task`.

Every random draw comes from (seed, step, prompt, sample), so that a rollout has the same result on whichever node and in
whichever order it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from local.trainer.policy import WORDS, Weights, forward, log_softmax, observe
from training.maze import STOP, Maze, Square
from training.maze_task import parse_action, reward


def utterance(word: int) -> str:
    """What the policy says for a word; the last word of `WORDS` is not well-formed."""
    return f"<observation>a maze</observation><action>{WORDS[word]}</action>"


@dataclass(frozen=True)
class Task:
    """One prompt: a maze, and the words that name its random draws."""

    maze: Maze
    key: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """How to roll: `temperature` 0 is greedy."""

    samples: int
    temperature: float
    max_turns: int


@dataclass(frozen=True)
class Rollout:
    """One episode. `squares`, `words` and `log_probs` (natural, at the plan's temperature) have one entry per turn."""

    squares: tuple[Square, ...]
    words: tuple[int, ...]
    log_probs: tuple[float, ...]
    solved: bool
    stopped: bool
    well_formed: int

    @property
    def format_rate(self) -> float:
        return self.well_formed / len(self.words)

    @property
    def reward(self) -> float:
        return reward(solved=self.solved, well_formed=self.well_formed, turns=len(self.words))


Chunk = Sequence[Task]
Executor = Callable[[Weights, Sequence[Chunk], Plan], list[list[list[Rollout]]]]
"""Rolls chunks of prompts: for each chunk, for each prompt, `Plan.samples` rollouts, in the order given."""


def roll_chunk(weights: Weights, chunk: Chunk, plan: Plan) -> list[list[Rollout]]:
    """All samples of every prompt of a chunk. The network runs once per state of a maze, not once per sample."""
    found = []
    for task in chunk:
        squares = task.maze.squares()
        logits = forward(weights, np.stack([observe(task.maze, square) for square in squares])).logits
        scaled = logits.astype(np.float64) / (plan.temperature or 1.0)
        log_probs = dict(zip(squares, log_softmax(scaled), strict=True))
        found.append([_episode(task, log_probs, plan, sample) for sample in range(plan.samples)])
    return found


def in_process(weights: Weights, chunks: Sequence[Chunk], plan: Plan) -> list[list[list[Rollout]]]:
    """The executor without Ray; same results as `local.trainer.ray_executor`."""
    return [roll_chunk(weights, chunk, plan) for chunk in chunks]


def split(tasks: Sequence[Task], parts: int) -> list[list[Task]]:
    """Contiguous chunks, one for each GPU that rolls out."""
    bounds = [round(index * len(tasks) / parts) for index in range(parts + 1)]
    chunks = [list(tasks[low:high]) for low, high in pairwise(bounds)]
    return [chunk for chunk in chunks if chunk]


def _episode(task: Task, log_probs: dict[Square, np.ndarray], plan: Plan, sample: int) -> Rollout:
    draws = np.random.default_rng(np.random.SeedSequence([*task.key, sample])).random(plan.max_turns)
    square, solved, stopped, well_formed = task.maze.start, False, False, 0
    squares: list[Square] = []
    words: list[int] = []
    taken: list[float] = []
    for turn in range(plan.max_turns):
        logs = log_probs[square]
        if plan.temperature == 0:
            word = int(logs.argmax())
        else:
            word = min(int(np.searchsorted(np.exp(logs).cumsum(), draws[turn], side="right")), len(WORDS) - 1)
        squares.append(square)
        words.append(word)
        taken.append(float(logs[word]))
        action = parse_action(utterance(word))
        if action is None:
            continue
        well_formed += 1
        if action == STOP:
            stopped, solved = True, square == task.maze.goal
            break
        square = task.maze.move(square, action)
    return Rollout(tuple(squares), tuple(words), tuple(taken), solved, stopped, well_formed)
