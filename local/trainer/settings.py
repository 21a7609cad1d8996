"""What the stand-in takes from SkyRL's overrides. Keys that steer GPUs and engines are accepted and have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config.problems import Refused
from local.trainer.grpo import Loss
from local.trainer.limits import PATHS, TRAINING_ROWS, cannot
from local.trainer.policy import Lora
from local.trainer.rollout import Plan
from local.trainer.shared import on_this_machine
from training.skyrl import Value, problems, with_defaults

_LR: Final = "trainer.policy.optimizer_config."


@dataclass(frozen=True)
class Settings:
    """The run. Steps count from 1; intervals below 1 switch off."""

    seed: int
    base_path: Path
    checkpoints: Path
    exports: Path
    resume_mode: str
    resume_path: Path | None
    lora: Lora
    lora_sync: Path | None
    loss: Loss
    rollouts: Plan
    evaluation: Plan
    batch: int
    mini_batch: int
    passes: int
    epochs: int
    max_steps: int | None
    eval_interval: int
    eval_before_train: bool
    dump_evaluations: bool
    ckpt_interval: int
    export_interval: int
    keep: int
    lr: float
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    gpus: int  # world size: ranks of the policy, and engines
    values: Mapping[str, Value]  # every override that was given
    base_seed: int = 0
    shuffle_rewards: bool = False  # for the benchmark's control only, no override of SkyRL

    @property
    def steps_per_epoch(self) -> int:
        return TRAINING_ROWS // self.batch  # SkyRL's loader drops the last, incomplete batch

    @property
    def total_steps(self) -> int:
        steps = self.epochs * self.steps_per_epoch
        return min(steps, self.max_steps) if self.max_steps else steps


def settings(values: Mapping[str, Value]) -> Settings:
    """Settings from parsed overrides.

    Raises:
        Refused: a rule of SkyRL is broken, or the stand-in cannot do what is asked.
    """
    found = problems(values) + cannot(values)
    if found:
        raise Refused(found)
    full: dict[str, Any] = with_defaults(values)
    path = {name: on_this_machine(full[name]) for name in PATHS}
    sync, resume = full["trainer.policy.model.lora.lora_sync_path"], full["trainer.resume_path"]
    kl = full["trainer.algorithm.kl_loss_coef"] if full["trainer.algorithm.use_kl_loss"] else 0.0
    turns = full["generator.max_turns"]
    return Settings(
        seed=full["trainer.seed"],
        base_path=path["trainer.policy.model.path"],
        checkpoints=path["trainer.ckpt_path"],
        exports=path["trainer.export_path"],
        resume_mode=full["trainer.resume_mode"] or "none",
        resume_path=on_this_machine(resume) if full["trainer.resume_mode"] == "from_path" else None,
        lora=Lora(full["trainer.policy.model.lora.rank"], full["trainer.policy.model.lora.alpha"]),
        lora_sync=on_this_machine(sync) if sync.startswith("/shared/") else None,
        loss=Loss(
            temperature=full["trainer.algorithm.temperature"],
            eps_clip_low=full["trainer.algorithm.eps_clip_low"],
            eps_clip_high=full["trainer.algorithm.eps_clip_high"],
            grpo_norm_by_std=full["trainer.algorithm.grpo_norm_by_std"],
            kl_loss_coef=kl,
        ),
        rollouts=Plan(full["generator.n_samples_per_prompt"], full["generator.sampling_params.temperature"], turns),
        evaluation=Plan(1, full["generator.eval_sampling_params.temperature"], turns),
        batch=full["trainer.train_batch_size"],
        mini_batch=full["trainer.policy_mini_batch_size"],
        passes=full["trainer.update_epochs_per_batch"],
        epochs=full["trainer.epochs"],
        max_steps=full["trainer.max_training_steps"],
        eval_interval=full["trainer.eval_interval"],
        eval_before_train=full["trainer.eval_before_train"],
        dump_evaluations=full["trainer.dump_eval_results"],
        ckpt_interval=full["trainer.ckpt_interval"],
        export_interval=full["trainer.hf_save_interval"],
        keep=full["trainer.max_ckpts_to_keep"],
        lr=full[_LR + "lr"],
        betas=tuple(full[_LR + "adam_betas"]),
        weight_decay=full[_LR + "weight_decay"],
        max_grad_norm=full[_LR + "max_grad_norm"],
        gpus=full["trainer.placement.policy_num_nodes"] * full["trainer.placement.policy_num_gpus_per_node"],
        values=dict(values),
    )
