from __future__ import annotations

import numpy as np
import pytest

from local.trainer import grpo
from local.trainer.optimizer import Adam
from local.trainer.policy import (
    SHAPES,
    Lora,
    adapter_gradient,
    backward,
    forward,
    initial_adapter,
    initial_weights,
    log_softmax,
    merged,
    observe,
)
from local.trainer.rollout import Plan, Rollout, Task, in_process, parse_action, split, utterance
from training.maze import maze

LORA = Lora(4, 8)


def _double(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = {name: weight.astype(np.float64) for name, weight in initial_weights(rng).items()}
    return {name: weight + 0.1 * rng.standard_normal(weight.shape) for name, weight in weights.items()}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_gradient_is_the_slope_of_the_loss(name: str) -> None:
    rng = np.random.default_rng(1)
    weights = _double(3)
    inputs = np.stack([observe(maze(3), square) for square in maze(3).squares()]).astype(np.float64)
    by_logits = rng.standard_normal((len(inputs), 6))
    by_maps = rng.standard_normal((3, len(inputs), 9, 9)) * 0.1

    def loss(changed: np.ndarray) -> float:
        trace = forward({**weights, name: changed}, inputs)
        return float((trace.logits * by_logits).sum() + (trace.maps * by_maps).sum())

    found = backward(weights, forward(weights, inputs), by_logits, by_maps)[name]
    direction = rng.standard_normal(found.shape)
    step = 1e-6 * direction
    slope = (loss(weights[name] + step) - loss(weights[name] - step)) / 2e-6
    assert float((found * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_adapter_gradient_is_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(2)
    base = _double(5)
    adapter = {name: rng.standard_normal(value.shape) * 0.1 for name, value in initial_adapter(LORA, rng).items()}
    inputs = np.stack([observe(maze(4), square) for square in maze(4).squares()[:8]]).astype(np.float64)
    by_logits = rng.standard_normal((8, 6))
    weights = merged(base, adapter, LORA)
    found = adapter_gradient(backward(weights, forward(weights, inputs), by_logits), adapter, LORA)
    direction = {name: rng.standard_normal(value.shape) for name, value in adapter.items()}

    def loss(size: float) -> float:
        moved = {name: value + size * direction[name] for name, value in adapter.items()}
        return float((forward(merged(base, moved, LORA), inputs).logits * by_logits).sum())

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert sum(float((found[name] * direction[name]).sum()) for name in found) == pytest.approx(slope, rel=1e-4)


def test_a_fresh_adapter_changes_nothing() -> None:
    base = initial_weights(np.random.default_rng(0))
    weights = merged(base, initial_adapter(LORA, np.random.default_rng(1)), LORA)
    assert all(np.array_equal(weights[name], base[name]) for name in base)


def test_advantages_compare_within_the_group() -> None:
    scores = grpo.advantages(np.array([[1.0, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2]]), by_std=True)
    assert scores[0, 0] > 1
    assert (scores[0, 1:] < 0).all()
    assert scores[0].sum() == pytest.approx(0)
    assert (scores[1] == 0).all()


def test_one_step_makes_rewarded_actions_likelier() -> None:
    base = initial_weights(np.random.default_rng(0))
    adapter = initial_adapter(LORA, np.random.default_rng(1))
    task = Task(maze(100), (9,))
    plan = Plan(samples=4, temperature=1.0, max_turns=6)
    group = in_process(merged(base, adapter, LORA), [[task]], plan)[0][0]
    scores = np.array([[1.0, -0.2, -0.3, -0.5]])

    def likelihood(rollout: Rollout) -> float:
        inputs = np.stack([observe(task.maze, square) for square in rollout.squares])
        logs = log_softmax(forward(merged(base, adapter, LORA), inputs).logits.astype(np.float64))
        return float(sum(log[word] for log, word in zip(logs, rollout.words, strict=True)))

    before = likelihood(group[0])
    assert before == pytest.approx(sum(group[0].log_probs), abs=1e-4)  # rollouts and training see the same policy
    found = grpo.update(base, adapter, LORA, tasks=[task], groups=[group], scores=scores, loss=grpo.Loss(temperature=1.0))
    changed, _ = Adam(lr=1e-3).update(adapter, found.gradient)
    adapter.update(changed)
    assert likelihood(group[0]) > before


def test_no_reward_difference_no_gradient() -> None:
    base = initial_weights(np.random.default_rng(0))
    adapter = initial_adapter(LORA, np.random.default_rng(1))
    task = Task(maze(100), (9,))
    group = in_process(base, [[task]], Plan(4, 1.0, 6))[0][0]
    found = grpo.update(base, adapter, LORA, tasks=[task], groups=[group], scores=np.zeros((1, 4)), loss=grpo.Loss(temperature=1.0))
    assert all(not value.any() for value in found.gradient.values())


def test_reward_is_the_environments() -> None:
    square = (1, 1)
    solved = Rollout((square,) * 4, (0, 5, 0, 4), (0.0,) * 4, solved=True, stopped=True, well_formed=3)
    assert solved.reward == pytest.approx(0.8 + 0.2 * 0.75)
    stopped_at_once = Rollout((square,), (4,), (0.0,), solved=False, stopped=True, well_formed=1)
    assert stopped_at_once.reward == pytest.approx(0.2)  # what SkyRL's pass_at_1 counts as a pass


def test_only_well_formed_utterances_are_parsed() -> None:
    assert [parse_action(utterance(word)) for word in range(6)] == [0, 1, 2, 3, 4, None]
    assert parse_action("<action>('move', 0)</action>") is None


def test_rollouts_do_not_depend_on_how_prompts_are_chunked() -> None:
    weights = initial_weights(np.random.default_rng(0))
    tasks = [Task(maze(200 + index), (1, index)) for index in range(5)]
    plan = Plan(2, 1.0, 8)
    whole = in_process(weights, split(tasks, 1), plan)
    parts = in_process(weights, split(tasks, 3), plan)
    assert [group for chunk in whole for group in chunk] == [group for chunk in parts for group in chunk]
    assert [len(chunk) for chunk in split(tasks, 3)] == [2, 1, 2]
