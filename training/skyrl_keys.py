"""Every key of SkyRL's training configuration: name, type, default.

The rows, and where they come from, are in `training.skyrl_table`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from training.skyrl_table import TABLE

Scalar: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Scalar | list["Value"] | dict[str, "Value"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of SkyRL's configuration.

    Attributes:
        name: the dotted name, as it stands before the `=` of an override.
        kind: `bool`, `int`, `float`, `str`, `bool|int`, `list[str]`, `list[int]`, `list[float]`, `dict` (free) or
            `section`.
        nullable: whether `null` is a value.
        default: SkyRL's default. `~` stands for the home folder of the user whom the trainer runs as.
        choices: the accepted words; empty when any value of the kind is accepted.
    """

    name: str
    kind: str
    nullable: bool
    default: Value
    choices: tuple[str, ...] = ()


# The words that `validate_cfg` (skyrl/train/utils/utils.py), the trainer's `ResumeMode` and `Tracking` accept.
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "trainer.strategy": ("fsdp", "megatron"),
    "trainer.sequence_parallel_backend": ("ulysses",),
    "trainer.resume_mode": ("none", "latest", "from_path"),
    "trainer.logger": ("wandb", "mlflow", "swanlab", "tensorboard", "console"),
    "trainer.fused_lm_head_logprob_backend": ("torch", "triton"),
    "trainer.algorithm.advantage_estimator": ("gae", "grpo", "rloo", "reinforce++", "maxrl"),
    "trainer.algorithm.policy_loss_type": (
        "regular",
        "dual_clip",
        "gspo",
        "cispo",
        "rollout_is",
        "clip_cov",
        "kl_cov",
        "sapo",
        "cross_entropy",
        "importance_sampling",
        "dppo",
    ),
    "trainer.algorithm.loss_reduction": (
        "token_mean",
        "token_mean_legacy",
        "sequence_mean",
        "seq_mean_token_sum_norm",
        "prompt_mean",
    ),
    "trainer.algorithm.kl_estimator_type": ("k1", "k2", "k3", "abs"),
    "trainer.algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "trainer.algorithm.dynamic_sampling.type": ("filter", "replace"),
    "trainer.algorithm.dppo.dppo_type": ("binary_tv", "binary_kl"),
    "trainer.algorithm.off_policy_correction.tis_ratio_type": ("token", "sequence"),
    "trainer.algorithm.off_policy_correction.sequence_mask_metric": ("product", "geometric"),
    "generator.inference_engine.backend": ("vllm",),
    "generator.inference_engine.distributed_executor_backend": ("ray", "mp"),
}


def _read() -> dict[str, Key]:
    keys: dict[str, Key] = {}
    prefixes: list[str] = []
    for line in TABLE.splitlines():
        if line.startswith("["):
            prefixes = line[1:-1].split()
        elif line:
            name, kind, default = line.split(" ", 2)
            for prefix in prefixes:
                full = f"{prefix}.{name}"
                choices = _CHOICES.get(full, ())
                keys[full] = Key(full, kind.rstrip("?"), kind.endswith("?"), json.loads(default), choices)
    return keys


KEYS: Final[Mapping[str, Key]] = MappingProxyType(_read())

FREE: Final[frozenset[str]] = frozenset(name for name, key in KEYS.items() if key.kind == "dict")
"""The keys below which any name is accepted, for example `generator.inference_engine.engine_init_kwargs`."""

SECTIONS: Final[frozenset[str]] = frozenset(
    ".".join(parts[:depth]) for parts in (name.split(".") for name in KEYS) for depth in range(1, len(parts))
)
"""The names that hold keys and are none themselves, for example `trainer.placement`."""

MOVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "trainer.use_sample_packing": "it was renamed; write trainer.remove_microbatch_padding",
        "generator.inference_engine.remote_urls": "it was removed; use generator.inference_engine.external_server_urls",
        "generator.inference_engine.enable_http_endpoint": "it was removed; leave it out, the endpoint is always on",
        "generator.inference_engine.override_existing_update_group": "it was removed; leave it out",
        "generator.inference_engine.async_engine": "it was removed; leave it out, the engine is always asynchronous",
    }
)
"""Names of older releases that SkyRL renamed or refuses (`SkyRLTrainConfig.from_cli_overrides`), with the remedy."""
