from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from local.trainer import shared
from local.trainer.policy import initial_weights
from local.trainer.settings import Settings, settings
from training.skyrl import parse

TINY = [
    "environment.env_class=visgym",
    "trainer.policy.model.path=/shared/models/base",
    "trainer.policy.model.lora.rank=2",
    "trainer.policy.model.lora.alpha=2",
    "trainer.policy.model.lora.exclude_modules=.*visual.*",
    "trainer.policy.model.lora.lora_sync_path=/shared/runs/r/lora",
    "trainer.policy.optimizer_config.lr=1.0e-3",
    "trainer.placement.policy_num_gpus_per_node=2",
    "generator.inference_engine.num_engines=2",
    "trainer.epochs=2",
    "trainer.max_training_steps=4",
    "trainer.train_batch_size=4",
    "trainer.policy_mini_batch_size=2",
    "trainer.remove_microbatch_padding=false",
    "trainer.algorithm.use_kl_loss=false",
    "trainer.eval_interval=3",
    "trainer.ckpt_interval=1",
    "trainer.hf_save_interval=2",
    "trainer.max_ckpts_to_keep=2",
    "trainer.logger=console",
    "trainer.ckpt_path=/shared/runs/r/ckpts",
    "trainer.export_path=/shared/runs/r/exports",
    "generator.n_samples_per_prompt=2",
    "generator.max_turns=6",
    "generator.vision_language_generator=true",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own /shared with a base model that was never trained, which takes no time to make."""
    monkeypatch.setenv(shared.SHARED_VARIABLE, str(tmp_path))
    make_base(tmp_path)
    return tmp_path


def make_base(root: Path, seed: int = 0) -> None:
    files = {
        "model.safetensors": shared.tensors(initial_weights(np.random.default_rng(seed))),
        "config.json": shared.document({"model_type": "hyperpod-rl-stand-in"}),
    }
    shared.write_folder(root / "models" / "base", files)


@pytest.fixture
def tiny(folder: Path) -> Callable[..., Settings]:
    def make(**changes: object) -> Settings:
        values, problems = parse(TINY)
        assert problems == []
        return replace(settings(values), **changes)  # type: ignore[arg-type]

    return make
