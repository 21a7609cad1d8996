"""Group-relative policy optimization (https://arxiv.org/abs/2402.03300) as SkyRL configures it: advantages normalised within
the samples of one prompt, a clipped ratio, the mean over all turns of the mini batch (`loss_reduction=token_mean`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local.trainer.policy import Lora, Weights, adapter_gradient, backward, forward, log_softmax, merged, observe
from local.trainer.rollout import Rollout, Task
from training.maze import Square

Floats = NDArray[Any]


@dataclass(frozen=True)
class Loss:
    """Settings of the loss, under SkyRL's names."""

    temperature: float
    eps_clip_low: float = 0.2
    eps_clip_high: float = 0.2
    grpo_norm_by_std: bool = True
    kl_loss_coef: float = 0.0  # 0: no KL term


@dataclass(frozen=True)
class Update:
    """Gradient of one mini batch by the adapter, and what the log shows of it."""

    gradient: dict[str, Floats]
    loss: float
    clip_ratio: float
    entropy: float
    kl: float


def advantages(rewards: Floats, *, by_std: bool) -> Floats:
    """Prompts x samples rewards -> advantages. A group whose rewards are all equal teaches nothing and gets zeros."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if not by_std:
        return np.asarray(centred)
    spread = rewards.std(axis=1, ddof=1, keepdims=True) if rewards.shape[1] > 1 else np.ones_like(centred)
    return np.asarray(centred / (spread + 1e-6))


def update(
    base: Weights, adapter: Weights, lora: Lora, *, tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]],
    scores: Floats, loss: Loss,
) -> Update:  # fmt: skip
    """The gradient of the GRPO loss over one mini batch.

    Args:
        base: frozen weights.
        adapter: A and B matrices.
        tasks: the prompts of the mini batch.
        groups: their rollouts.
        scores: prompts x samples advantages.
    """
    weights = merged(base, adapter, lora)
    states: dict[tuple[int, Square], int] = {}
    turns: list[tuple[int, int, float, float]] = []  # state, word, old log-probability, advantage
    for prompt, group in enumerate(groups):
        for sample, rollout in enumerate(group):
            score = float(scores[prompt, sample])
            for square, word, log_prob in zip(rollout.squares, rollout.words, rollout.log_probs, strict=True):
                turns.append((states.setdefault((prompt, square), len(states)), word, log_prob, score))
    where, words = (np.array([turn[index] for turn in turns], np.intp) for index in (0, 1))
    old, advantage = (np.array([turn[index] for turn in turns], np.float64) for index in (2, 3))
    inputs = np.stack([observe(tasks[prompt].maze, square) for prompt, square in states]).astype(base["head"].dtype)
    trace = forward(weights, inputs)
    logs = log_softmax(trace.logits.astype(np.float64) / loss.temperature)
    chosen = logs[where, words]
    ratio = np.exp(chosen - old)
    clipped = np.clip(ratio, 1 - loss.eps_clip_low, 1 + loss.eps_clip_high)
    surrogate = np.minimum(ratio * advantage, clipped * advantage)
    active = ratio * advantage <= clipped * advantage
    by_chosen = -np.where(active, ratio * advantage, 0.0) / len(turns)
    divergence = 0.0
    if loss.kl_loss_coef:
        reference = log_softmax(forward(base, inputs).logits.astype(np.float64) / loss.temperature)[where, words]
        gap = reference - chosen
        divergence = float((np.exp(gap) - gap - 1).mean())  # the k3 estimator, http://joschu.net/blog/kl-approx.html
        by_chosen += loss.kl_loss_coef * (1 - np.exp(gap)) / len(turns)
    probabilities = np.exp(logs)
    slope = np.zeros_like(logs)
    np.add.at(slope, (where, words), by_chosen)
    total = np.bincount(where, weights=by_chosen, minlength=len(logs))
    slope = (slope - total[:, None] * probabilities) / loss.temperature
    gradient = adapter_gradient(backward(weights, trace, slope.astype(trace.logits.dtype)), adapter, lora)
    entropy = -(probabilities * logs).sum(axis=1)[where]
    value = float(-surrogate.mean()) + loss.kl_loss_coef * divergence
    return Update(gradient, value, float((~active).mean()), float(entropy.mean()), divergence)
