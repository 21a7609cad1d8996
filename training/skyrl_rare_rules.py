"""Rules about parts of SkyRL that the maze recipe does not use: Megatron, a critic, multi-token prediction, the profiler, int4.

All are `validate_cfg`'s own (skyrl/train/utils/utils.py and the `__post_init__` methods of skyrl/train/config/config.py, skyrl
0.3.0), unless `OWN_RULES` in training/skyrl_own_rules.py lists them: whatever SkyRL refuses, a user shall hear on the laptop.
"""

from __future__ import annotations

from typing import Any, Final

from training.skyrl_rule import Rule
from training.skyrl_settings import ENGINE, PLACE, Settings

_PROFILER: Final = "trainer.policy.torch_profiler_config."
_CLOUD: Final = ("s3://", "gs://", "gcs://")


def _megatron(settings: Settings) -> bool:
    return bool(settings["trainer.strategy"] == "megatron")


def _critic(settings: Settings) -> bool:
    return settings["trainer.critic.model.path"] is not None


def _profiled(settings: Settings) -> bool:
    return bool(settings[_PROFILER + "enable"])


_CRITIC: Final = (
    Rule(
        "critic-mini-batch-divides-batch",
        "trainer.critic_mini_batch_size",
        lambda s: _critic(s) and (s.critic_mini < 1 or s.batch % s.critic_mini != 0),
        "trainer.train_batch_size={s.batch} is no multiple of it",
        "choose a divisor of {s.batch}",
    ),
    Rule(
        "critic-replicas-fit",
        f"{PLACE}critic_num_gpus_per_node",
        lambda s: _critic(s) and s.critic_gpus % s["trainer.critic.sequence_parallel_size"] != 0,
        "the {s.critic_gpus} critic GPUs are no multiple of trainer.critic.sequence_parallel_size",
        "change the placement or the parallel size",
    ),
    Rule(
        "critic-mini-batch-spreads-over-gpus",
        "trainer.critic_mini_batch_size",
        lambda s: _critic(s) and s.critic_mini * s.samples % s.critic_data_parallel != 0,
        "{s.critic_mini} prompts of {s.samples} samples do not spread evenly over {s.critic_data_parallel} data-parallel ranks",
        "make critic_mini_batch_size * n_samples_per_prompt a multiple of {s.critic_data_parallel}",
    ),
    Rule(
        "micro-batch-divides-critic-mini-batch",
        "trainer.micro_train_batch_size_per_gpu",
        lambda s: _critic(s) and s.critic_mini * s.samples // s.critic_data_parallel % s["trainer.micro_train_batch_size_per_gpu"] != 0,
        "the critic's samples per optimizer step and GPU are no multiple of it",
        "choose a divisor, or change trainer.critic_mini_batch_size",
    ),
)

_MEGATRON: Final = (
    Rule(
        "megatron-syncs-by-nccl",
        f"{ENGINE}weight_sync_backend",
        lambda s: _megatron(s) and s[f"{ENGINE}weight_sync_backend"] != "nccl",
        "the megatron strategy synchronises weights by nccl only",
        "use nccl",
    ),
    Rule(
        "megatron-has-no-critic",
        "trainer.critic.model.path",
        lambda s: _megatron(s) and _critic(s),
        "the megatron strategy trains no critic",
        "leave it out, or set trainer.strategy=fsdp",
    ),
    Rule(
        "megatron-replays-what-engines-return",
        "trainer.policy.megatron_config.moe_enable_routing_replay",
        lambda s: (
            _megatron(s)
            and s["trainer.policy.megatron_config.moe_enable_routing_replay"]
            and not s[f"{ENGINE}enable_return_routed_experts"]
        ),
        "the engines do not return which experts they used",
        f"set {ENGINE}enable_return_routed_experts=true",
    ),
    Rule(
        "megatron-context-parallel-drops-padding",
        "trainer.remove_microbatch_padding",
        lambda s: (
            _megatron(s)
            and any(s[f"trainer.{role}.megatron_config.context_parallel_size"] > 1 for role in ("policy", "ref"))
            and not s["trainer.remove_microbatch_padding"]
        ),
        "context parallelism works without padding only",
        "set it to true, or context_parallel_size=1",
    ),
    Rule(
        "megatron-has-no-ulysses",
        "trainer.policy.sequence_parallel_size",
        lambda s: _megatron(s) and any(s[f"trainer.{role}.sequence_parallel_size"] != 1 for role in ("policy", "ref")),
        "the megatron strategy has no Ulysses sequence parallelism, in policy or reference model",
        "set both sequence_parallel_size to 1",
    ),
    Rule(
        "ref-replicas-fit",
        f"{PLACE}ref_num_gpus_per_node",
        lambda s: s.uses_ref and s.ref_gpus % s.ref_model_parallel != 0,
        "the {s.ref_gpus} GPUs of the reference model are no multiple of the {s.ref_model_parallel} GPUs of one replica",
        "change the placement or the parallel sizes",
    ),
    Rule(
        "routed-experts-are-replayed",
        f"{ENGINE}enable_return_routed_experts",
        lambda s: (
            s[f"{ENGINE}enable_return_routed_experts"]
            and (
                s[f"{ENGINE}distributed_executor_backend"] != "mp"
                or not _megatron(s)
                or not s["trainer.policy.megatron_config.moe_enable_routing_replay"]
            )
        ),
        "it works with the mp executor, the megatron strategy and moe_enable_routing_replay only",
        "set it to false",
    ),
    Rule(
        "prediction-heads-exist",
        "trainer.policy.megatron_config.mtp_num_layers",
        lambda s: s["trainer.mtp.enabled"] and s["trainer.policy.megatron_config.mtp_num_layers"] == 0,
        "0 switches off the heads that trainer.mtp.enabled trains",
        "leave it out, or set trainer.mtp.enabled=false",
    ),
    Rule(
        "prediction-depth-positive",
        "trainer.mtp.num_speculative_tokens",
        lambda s: s["trainer.mtp.enabled"] and s["trainer.mtp.num_speculative_tokens"] < 1,
        "multi-token prediction needs one token at least",
        "use 1 or more",
    ),
    *(
        Rule(
            f"int4-{role}-has-lora",
            f"trainer.{role}.model.fake_int4_qat.enabled",
            lambda s, role=role: (  # type: ignore[misc]
                s[f"trainer.{role}.model.fake_int4_qat.enabled"] and s[f"trainer.{role}.model.lora.rank"] < 1
            ),
            "int4 training adapts with LoRA only",
            f"set trainer.{role}.model.lora.rank, or false",
        )
        for role in ("policy", "ref", "critic")
    ),
    Rule(
        "int4-is-megatron",
        "trainer.policy.model.fake_int4_qat.enabled",
        lambda s: (
            s["trainer.policy.model.fake_int4_qat.enabled"]
            and (not _megatron(s) or s["trainer.policy.megatron_config.lora_config.merge_lora"])
        ),
        "int4 training needs trainer.strategy=megatron and trainer.policy.megatron_config.lora_config.merge_lora=false",
        "set both, or this to false",
    ),
)

_LANGUAGE_ONLY: Final = (
    Rule(
        "engine-drops-vision-too",
        f"{ENGINE}language_model_only",
        lambda s: s["trainer.policy.language_model_only"] and not s[f"{ENGINE}language_model_only"],
        "the policy has no vision tower (trainer.policy.language_model_only) and the engine has one",
        "set it to true",
    ),
    Rule(
        "ref-drops-vision-too",
        "trainer.ref.language_model_only",
        lambda s: s["trainer.policy.language_model_only"] and s.uses_ref and not s["trainer.ref.language_model_only"],
        "the policy has no vision tower (trainer.policy.language_model_only) and the reference model has one",
        "set it to true",
    ),
)

_PROFILES: Final = (
    Rule(
        "profiler-has-ranks",
        _PROFILER + "ranks",
        lambda s: _profiled(s) and not s[_PROFILER + "ranks"],
        "the profiler needs a rank to run on",
        "for example [0]",
    ),
    Rule(
        "profiler-writes-a-folder",
        _PROFILER + "save_path",
        lambda s: _profiled(s) and (not s[_PROFILER + "save_path"] or str(s[_PROFILER + "save_path"]).startswith(_CLOUD)),
        "the profiler writes to a local folder",
        "put it below /shared",
    ),
    Rule(
        "profiler-knows-activities",
        _PROFILER + "activities",
        lambda s: (
            _profiled(s)
            and (not s[_PROFILER + "activities"] or any(word.lower() not in ("cpu", "cuda") for word in s[_PROFILER + "activities"]))
        ),
        "the profiler records cpu, cuda or both",
        "write [cpu,cuda]",
    ),
    Rule(
        "profiler-knows-export",
        _PROFILER + "export_type",
        lambda s: (
            _profiled(s)
            and (
                s[_PROFILER + "export_type"] not in ("chrome_trace", "stacks")
                or (s[_PROFILER + "export_type"] == "stacks" and not s[_PROFILER + "with_stack"])
            )
        ),
        "it exports chrome_trace, or stacks where with_stack=true",
        "use chrome_trace",
    ),
    Rule(
        "profiler-schedule-positive",
        _PROFILER + "active",
        lambda s: (
            _profiled(s)
            and (s[_PROFILER + "active"] < 1 or any(s[_PROFILER + word] < 0 for word in ("skip_first", "wait", "warmup", "repeat")))
        ),
        "active must be 1 or more, and skip_first, wait, warmup and repeat not negative",
        "leave them out",
    ),
)


def _below(settings: Settings, prefix: str) -> dict[str, Any]:
    """What was given at or below a free key, as it would nest."""
    return {name.removeprefix(prefix): value for name, value in settings.given.items() if name == prefix or name.startswith(prefix + ".")}


_KWARGS: Final = ENGINE + "engine_init_kwargs."


def _old_rope(settings: Settings) -> bool:
    old = ("rope_scaling", "rope_theta", "rope_parameters", "hf_overrides.rope_scaling", "hf_overrides.rope_theta")
    return any(_below(settings, _KWARGS + name) for name in old)


def _ropes_differ(settings: Settings) -> bool:
    engine = _below(settings, _KWARGS + "hf_overrides.rope_parameters")
    kwargs = "megatron_config.transformer_config_kwargs" if _megatron(settings) else "model_config_kwargs"
    return bool(engine) and engine != _below(settings, f"trainer.policy.{kwargs}.rope_parameters")


_ROPE: Final = (
    Rule(
        "rope-is-an-override-of-the-model",
        ENGINE + "engine_init_kwargs",
        _old_rope,
        "rope_scaling, rope_theta and rope_parameters are no arguments of the engine any more",
        f"use {_KWARGS}hf_overrides.rope_parameters and trainer.policy.model_config_kwargs.rope_parameters",
    ),
    Rule(
        "ropes-agree",
        ENGINE + "engine_init_kwargs",
        _ropes_differ,
        "hf_overrides.rope_parameters of the engine differs from the trainer's",
        "give the same below trainer.policy.model_config_kwargs.rope_parameters (megatron: megatron_config.transformer_config_kwargs)",
    ),
)

RARE_RULES: Final[tuple[Rule, ...]] = (*_CRITIC, *_MEGATRON, *_LANGUAGE_ONLY, *_PROFILES, *_ROPE)
