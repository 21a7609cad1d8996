"""The supervised start: the base model that the adapter is trained on.

Demonstrations of the shortest path, with what a demonstration's `<observation>` names: where the agent is, where the goal
is, which squares are walls. Training stops on purpose at the first update at which the policy solves a fifth of what can be
solved of 64 validation mazes (neither training nor held-out mazes), so that reinforcement learning has something to do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from local.trainer import shared
from local.trainer.optimizer import Adam
from local.trainer.policy import SHAPES, Weights, backward, forward, initial_weights, log_softmax, observe
from local.trainer.rollout import Plan, Task, roll_chunk
from training.maze import SIDE, Maze, oracle_bound, training_maze

BASE_SEED: Final = 0
STOP_AT: Final = 0.2  # share of the validation mazes' oracle bound
MAX_TURNS: Final = 15
_DEMONSTRATIONS: Final = 256
_VALIDATION: Final = 64
_BATCH: Final = 4  # mazes per update
_UPDATES: Final = 600
_LR: Final = 0.0015
_WEIGHTS_FILE: Final = "model.safetensors"

Floats = NDArray[Any]


def supervised_start(seed: int) -> dict[str, Floats]:
    """Weights after the deliberately short supervised training. Deterministic in the seed; a few seconds on one core."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0]))
    weights = initial_weights(rng)
    optimizer = Adam(lr=_LR)
    mazes = [training_maze(seed, 1, index) for index in range(_DEMONSTRATIONS)]
    validation = [training_maze(seed, 2, index) for index in range(_VALIDATION)]
    goal = STOP_AT * oracle_bound(validation, max_turns=MAX_TURNS)
    for number in range(_UPDATES):
        batch = [mazes[index] for index in rng.integers(len(mazes), size=_BATCH)]
        updated, _ = optimizer.update(weights, _gradient(weights, batch))
        weights.update(updated)
        if number % 2 and _solved(weights, validation) >= goal:
            break
    return weights


def base_model(folder: Path, *, seed: int = BASE_SEED) -> tuple[dict[str, Floats], bool]:
    """The base model of a folder; trained and written there first when the folder is missing.

    Returns:
        the weights, and whether they were trained just now.

    Raises:
        ValueError: the folder holds something else.
    """
    if not folder.exists():
        weights = supervised_start(seed)
        config = {"architectures": ["StandInMazePolicy"], "model_type": "hyperpod-rl-stand-in", "seed": seed}
        shared.write_folder(folder, {_WEIGHTS_FILE: shared.tensors(weights), "config.json": shared.document(config)})
        return weights, True
    try:
        if "stand_in" not in json.loads((folder / "config.json").read_text()):
            raise ValueError("its config.json is not the stand-in's")
        weights = shared.read_tensors((folder / _WEIGHTS_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no base model of the stand-in trainer ({error})") from error
    if {name: weight.shape for name, weight in weights.items()} != dict(SHAPES):
        raise ValueError(f"{folder} holds a base model of other shapes; remove it to have it trained anew")
    return weights, False


def _gradient(weights: Weights, mazes: list[Maze]) -> dict[str, Floats]:
    inputs, words, agents, goals = [], [], [], []
    for maze in mazes:
        for square, action in maze.oracle().items():
            inputs.append(observe(maze, square))
            words.append(action)
            agents.append(square[0] * SIDE + square[1])
            goals.append(maze.goal[0] * SIDE + maze.goal[1])
    walls = np.stack([np.frombuffer(maze.walls, np.uint8).reshape(SIDE, SIDE) for maze in mazes for _ in maze.squares()])
    trace = forward(weights, np.stack(inputs))
    maps = np.empty_like(trace.maps)
    maps[0] = _cross_entropy(trace.maps[0].reshape(len(goals), -1), goals).reshape(maps[0].shape)
    maps[1] = (trace.propagation - (1 - walls)) / trace.maps[1].size
    maps[2] = _cross_entropy(trace.maps[2].reshape(len(agents), -1), agents).reshape(maps[2].shape)
    return backward(weights, trace, _cross_entropy(trace.logits, words), maps.astype(np.float32))


def _cross_entropy(logits: Floats, targets: list[int]) -> Floats:
    """Slope of the mean cross-entropy by the logits."""
    slope = np.exp(log_softmax(logits))
    slope[np.arange(len(targets)), targets] -= 1
    return np.asarray(slope / np.float32(len(targets)))


def _solved(weights: Weights, mazes: list[Maze]) -> int:
    groups = roll_chunk(weights, [Task(maze, (0,)) for maze in mazes], Plan(1, 0.0, MAX_TURNS))
    return sum(group[0].solved for group in groups)
