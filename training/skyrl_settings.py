"""A whole SkyRL configuration: defaults filled in, sizes derived, single values checked. The rules build on it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from config.problems import Problem
from training.skyrl_keys import KEYS, Value

PLACE: Final = "trainer.placement."
ENGINE: Final = "generator.inference_engine."


def with_defaults(values: Mapping[str, Value]) -> dict[str, Value]:
    """Every key with its value or SkyRL's default, and what SkyRL derives at start (its `__post_init__` methods)."""
    full: dict[str, Value] = {name: key.default for name, key in KEYS.items() if key.kind != "section"}
    full.update(values)
    evaluation = "generator.eval_sampling_params."
    if not any(name.startswith(evaluation) for name in values):
        full[evaluation + "temperature"] = 0.0  # greedy, with the training length
        full[evaluation + "max_generate_length"] = full["generator.sampling_params.max_generate_length"]
    if full["generator.max_input_length"] is None:
        full["generator.max_input_length"] = full["trainer.max_prompt_length"]
    if full["trainer.ref.model.path"] is None:
        full["trainer.ref.model.path"] = full["trainer.policy.model.path"]
    if full["trainer.algorithm.temperature"] is None:
        full["trainer.algorithm.temperature"] = full["generator.sampling_params.temperature"]
    if full["data.dataloader.num_workers"] is None:
        full["data.dataloader.num_workers"] = 8
    return full


class Settings:
    """A whole configuration, and the sizes that the rules reason about. `settings["trainer.seed"]` reads one key."""

    def __init__(self, values: Mapping[str, Value], *, world_gpus: int | None, environment: Collection[str] | None) -> None:
        self.given = values
        self.full = with_defaults(values)
        self.world_gpus = world_gpus
        self.environment = environment

    def __getitem__(self, name: str) -> Any:
        return self.full.get(name)

    @property
    def batch(self) -> int:  # prompts per step
        return int(self["trainer.train_batch_size"])

    @property
    def mini(self) -> int:  # prompts per optimizer step
        return int(self["trainer.policy_mini_batch_size"])

    @property
    def samples(self) -> int:  # rollouts per prompt
        return int(self["generator.n_samples_per_prompt"])

    @property
    def policy_gpus(self) -> int:
        return int(self[f"{PLACE}policy_num_nodes"] * self[f"{PLACE}policy_num_gpus_per_node"])

    @property
    def ref_gpus(self) -> int:
        return int(self[f"{PLACE}ref_num_nodes"] * self[f"{PLACE}ref_num_gpus_per_node"])

    @property
    def ref_model_parallel(self) -> int:  # GPUs that hold one replica of the reference model
        return self._model_parallel("ref")

    @property
    def ref_data_parallel(self) -> int:  # replicas of the reference model
        return self.ref_gpus // self.ref_model_parallel

    @property
    def critic_mini(self) -> int:  # prompts per optimizer step of the critic
        return int(self["trainer.critic_mini_batch_size"])

    @property
    def critic_gpus(self) -> int:
        return int(self[f"{PLACE}critic_num_nodes"] * self[f"{PLACE}critic_num_gpus_per_node"])

    @property
    def critic_data_parallel(self) -> int:  # replicas of the critic; the critic is never Megatron's
        return max(1, self.critic_gpus // int(self["trainer.critic.sequence_parallel_size"]))

    @property
    def model_parallel(self) -> int:  # GPUs that hold one replica of the policy
        return self._model_parallel("policy")

    def _model_parallel(self, role: str) -> int:
        if self["trainer.strategy"] == "megatron":
            sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
            return math.prod(int(self[f"trainer.{role}.megatron_config.{size}"]) for size in sizes)
        return int(self[f"trainer.{role}.sequence_parallel_size"])

    @property
    def data_parallel(self) -> int:  # replicas of the policy
        return self.policy_gpus // self.model_parallel

    @property
    def mini_per_gpu(self) -> int:  # samples per optimizer step and replica
        return self.mini * self.samples // max(self.data_parallel, 1)

    @property
    def rollout_gpus(self) -> int:
        sizes = ("num_engines", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        return math.prod(int(self[ENGINE + size]) for size in sizes)

    @property
    def uses_ref(self) -> bool:
        return bool(self["trainer.algorithm.use_kl_loss"] or self["trainer.algorithm.use_kl_in_reward"])

    @property
    def gpus(self) -> int:  # GPUs that the whole job reserves
        if self[f"{PLACE}colocate_all"]:
            return self.policy_gpus
        own_engines = self.rollout_gpus if self[f"{ENGINE}run_engines_locally"] else 0
        own_ref = self.ref_gpus if self.uses_ref and not self[f"{PLACE}colocate_policy_ref"] else 0
        return self.policy_gpus + own_engines + own_ref

    @property
    def lora(self) -> bool:
        return int(self["trainer.policy.model.lora.rank"]) > 0

    @property
    def longest(self) -> int:  # tokens that one conversation can reach
        return int(self["generator.max_input_length"] + self["generator.sampling_params.max_generate_length"])


def word_problems(settings: Settings) -> list[Problem]:
    found = []
    for name, key in KEYS.items():
        value = settings[name]
        if not key.choices or value in key.choices or (value is None and key.nullable):
            continue
        fix = "write fsdp" if value == "fsdp2" else f"write one of {', '.join(key.choices)}"
        rule = "fsdp2 was renamed" if value == "fsdp2" else "SkyRL does not know this word"
        found.append(Problem(name, str(value), rule, fix))
    return found


def range_problems(settings: Settings) -> list[Problem]:
    found = []
    for name, (low, high, words) in _RANGES.items():
        value = settings[name]
        if value is not None and not low <= value <= high:
            found.append(Problem(name, str(value), f"it must be {words}", f"SkyRL's default is {KEYS[name].default}"))
    return found


_COUNTS: Final = (
    *(f"{PLACE}{role}_num_{what}" for role in ("policy", "critic", "ref") for what in ("nodes", "gpus_per_node")),
    *(ENGINE + f"{what}_parallel_size" for what in ("tensor", "pipeline", "data", "expert")),
    *(f"trainer.{role}.sequence_parallel_size" for role in ("policy", "critic", "ref")),
    *(
        f"trainer.{role}.megatron_config.{what}_parallel_size"
        for role in ("policy", "ref")
        for what in ("tensor_model", "pipeline_model", "context", "expert_model")
    ),
    *(f"trainer.{role}.megatron_config.hf_export_config.save_every_n_ranks" for role in ("policy", "ref")),
    ENGINE + "num_engines",
    "trainer.train_batch_size",
    "trainer.policy_mini_batch_size",
    "trainer.micro_train_batch_size_per_gpu",
    "trainer.micro_forward_batch_size_per_gpu",
    "trainer.update_epochs_per_batch",
    "trainer.epochs",
    "trainer.max_training_steps",
    "trainer.max_prompt_length",
    "trainer.eval_batch_size",
    "trainer.logprobs_chunk_size",
    "trainer.policy.model.lora.alpha",
    "generator.max_turns",
    "generator.max_input_length",
    "generator.n_samples_per_prompt",
    "generator.eval_n_samples_per_prompt",
    "generator.sampling_params.max_generate_length",
    "generator.eval_sampling_params.max_generate_length",
)
# Far above anything that anybody trains with, and low enough that a slip of the finger (1000000000 for 10) does not pass.
_MOST: Final[Mapping[str, int]] = {
    **dict.fromkeys((name for name in _COUNTS if name.startswith(PLACE) or name.endswith("parallel_size")), 6758),
    ENGINE + "num_engines": 6758 * 8,
    "trainer.epochs": 100_000,
    "trainer.max_training_steps": 10_000_000,
    "trainer.update_epochs_per_batch": 1000,
    "trainer.policy.model.lora.alpha": 65_536,
    "generator.max_turns": 10_000,
    "generator.n_samples_per_prompt": 4096,
    "generator.eval_n_samples_per_prompt": 4096,
}
_MOST_ELSE: Final = 10_000_000
_RANGES: Final[Mapping[str, tuple[float, float, str]]] = {
    **{name: (1, most, f"1 to {most}") for name in _COUNTS for most in (_MOST.get(name, _MOST_ELSE),)},
    # vLLM has room for ranks up to 512 (vllm/config/lora.py, MaxLoRARanks).
    "trainer.policy.model.lora.rank": (0, 512, "0 (no LoRA) to 512, the highest rank that vLLM loads"),
    "trainer.policy.model.lora.dropout": (0.0, 0.999, "at least 0 and below 1"),
    "trainer.policy.optimizer_config.lr": (5e-324, 1.0, "above 0 and at most 1"),
    "trainer.seed": (0, 2**32 - 1, "between 0 and 4294967295, as numpy's seeds are"),
    ENGINE + "gpu_memory_utilization": (0.01, 1.0, "a share of the GPU's memory, above 0 and at most 1"),
    "generator.sampling_params.temperature": (1e-6, 100.0, "above 0 and at most 100, or every sample of a group is the same"),
    "generator.eval_sampling_params.temperature": (0.0, 100.0, "0 (greedy) to 100"),
    "generator.sampling_params.logprobs": (0, 1, "null, 0 or 1"),
    "data.dataloader.num_workers": (0, 1024, "null, or 0 to 1024"),
    **dict.fromkeys(
        ("trainer.eval_interval", "trainer.ckpt_interval", "trainer.hf_save_interval"),
        (-_MOST_ELSE, _MOST_ELSE, f"at most {_MOST_ELSE} steps; 0 or less switches it off"),
    ),
    "trainer.max_ckpts_to_keep": (-_MOST_ELSE, _MOST_ELSE, f"at most {_MOST_ELSE}; -1 keeps all"),
}
