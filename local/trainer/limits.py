"""What SkyRL could do and the stand-in cannot. Asked before every submit (`training.checks`), so nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from config.problems import Problem
from local.trainer.shared import on_this_machine
from training.skyrl import Value, with_defaults

TRAINING_ROWS: Final = 256
"""Prompts per epoch, as in the article's data set. The stand-in draws mazes from seeds and does not read data.train_data."""

PATHS: Final = ("trainer.policy.model.path", "trainer.ckpt_path", "trainer.export_path")
_ONLY: Final[Mapping[str, Value]] = {
    "environment.env_class": "visgym",
    "generator.vision_language_generator": True,
    "generator.eval_n_samples_per_prompt": 1,
    "generator.step_wise_trajectories": False,
    "trainer.algorithm.advantage_estimator": "grpo",
    "trainer.algorithm.policy_loss_type": "regular",
    "trainer.algorithm.loss_reduction": "token_mean",
    "trainer.algorithm.use_kl_in_reward": False,
    "trainer.fully_async.enabled": False,
    "trainer.placement.colocate_all": True,
    "trainer.logger": "console",
    "trainer.strategy": "fsdp",
}


def cannot(values: Mapping[str, Value]) -> list[Problem]:
    """Every key whose value the stand-in does not follow, and every path that it may not touch."""
    full = with_defaults(values)
    found = [
        Problem(name, str(full[name]), "the stand-in trainer does not do this", f"set {name}={str(only).lower()}")
        for name, only in _ONLY.items()
        if full[name] != only
    ]
    if full["trainer.policy.model.lora.rank"] == 0:
        found.append(Problem("trainer.policy.model.lora.rank", "0", "the stand-in trains an adapter only", "set it to 8"))
    if full["trainer.policy.model.lora.dropout"] != 0:
        found.append(Problem("trainer.policy.model.lora.dropout", str(full["trainer.policy.model.lora.dropout"]),
                             "the stand-in has no dropout", "set it to 0"))  # fmt: skip
    batch = full["trainer.train_batch_size"]
    if isinstance(batch, int) and batch > TRAINING_ROWS:
        found.append(Problem("trainer.train_batch_size", str(batch), f"an epoch has {TRAINING_ROWS} prompts", "lower it"))
    paths = [*PATHS, *(["trainer.resume_path"] if full["trainer.resume_mode"] == "from_path" else [])]
    return found + [problem for name in paths if (problem := _path_problem(name, full[name], on_this_machine)) is not None]


def _path_problem(name: str, value: Value, resolve: Callable[[str], Path]) -> Problem | None:
    try:
        resolve(str(value))
    except ValueError:
        return Problem(name, str(value), "the stand-in reads and writes below /shared only", f"set {name}=/shared/...")
    return None
