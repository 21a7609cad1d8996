"""Configurations of SkyRL to compare verdicts on: sound ones with a few keys changed, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from training.skyrl import KEYS, render

_PLACE, _ENGINE = "trainer.placement.", "generator.inference_engine."
_SOUND: dict[str, Any] = {
    "trainer.logger": "console",
    "trainer.policy.model.path": "/shared/models/sft",
    "trainer.policy.model.lora.rank": 32,
    "trainer.policy.model.lora.exclude_modules": ".*visual.*",
    "trainer.policy.model.lora.lora_sync_path": "/shared/runs/r/lora",
    "data.train_data": ["/shared/datasets/train.parquet"],
    "data.val_data": ["/shared/datasets/eval.parquet"],
    "trainer.ckpt_path": "/shared/runs/r/checkpoints",
    "trainer.export_path": "/shared/runs/r/exports",
    _PLACE + "policy_num_nodes": 3,
    _PLACE + "policy_num_gpus_per_node": 2,
    _PLACE + "ref_num_nodes": 3,
    _PLACE + "ref_num_gpus_per_node": 2,
    _ENGINE + "num_engines": 6,
    "trainer.train_batch_size": 24,
    "trainer.policy_mini_batch_size": 12,
    "trainer.critic_mini_batch_size": 12,
    "generator.n_samples_per_prompt": 8,
    "generator.max_turns": 15,
    "generator.max_input_length": 8192,
    "trainer.max_prompt_length": 2048,
    "trainer.algorithm.use_kl_loss": False,
    "generator.vision_language_generator": True,
    "trainer.remove_microbatch_padding": False,
}
_PROFILER = "trainer.policy.torch_profiler_config."
# What is laid over a sound configuration before single keys change, so that the rarer rules come into play.
_VARIANTS: Sequence[dict[str, Any]] = (
    {},
    {_PLACE + "colocate_all": False, _ENGINE + "num_engines": 2},
    {"trainer.algorithm.use_kl_loss": True},
    {"trainer.strategy": "megatron", "generator.vision_language_generator": False, "trainer.remove_microbatch_padding": True},
    {"trainer.critic.model.path": "/shared/models/critic", "trainer.algorithm.advantage_estimator": "gae",
     _PLACE + "critic_num_nodes": 3, _PLACE + "critic_num_gpus_per_node": 2},
    {"generator.step_wise_trajectories": True, "generator.vision_language_generator": False},
    {_PROFILER + "enable": True, _PROFILER + "save_path": "/shared/profile", "trainer.policy.fsdp_config.cpu_offload": True},
    {"generator.vision_language_generator": False, "generator.max_turns": 1, "generator.max_input_length": 2048},
    {_ENGINE + "enable_pd": True, _ENGINE + "num_prefill": 2},
    {"trainer.policy.language_model_only": True, _ENGINE + "language_model_only": True, "trainer.algorithm.use_kl_loss": True,
     "trainer.ref.language_model_only": True},
    {"trainer.strategy": "megatron", "trainer.policy.model.fake_int4_qat.enabled": True,
     "trainer.policy.megatron_config.lora_config.merge_lora": False, "trainer.remove_microbatch_padding": True,
     "generator.vision_language_generator": False},
    {"trainer.mtp.enabled": True},
    {"trainer.strategy": "megatron", _ENGINE + "enable_return_routed_experts": True, _ENGINE + "distributed_executor_backend": "mp",
     "trainer.policy.megatron_config.moe_enable_routing_replay": True, "trainer.remove_microbatch_padding": True,
     "generator.vision_language_generator": False},
    {f"{_ENGINE}engine_init_kwargs.hf_overrides.rope_parameters.factor": 2.0,
     "trainer.policy.model_config_kwargs.rope_parameters.factor": 2.0},
    {"trainer.train_batch_size": 20, "trainer.policy_mini_batch_size": 10, "trainer.critic_mini_batch_size": 10,
     "trainer.critic.model.path": "/shared/models/critic", _PLACE + "critic_num_nodes": 3, _PLACE + "critic_num_gpus_per_node": 2},
    {"trainer.policy.model.lora.max_loras": 2, _PLACE + "colocate_all": False},
    {"trainer.critic.model.path": "/shared/models/critic", "trainer.critic.sequence_parallel_size": 2,
     _PLACE + "critic_num_nodes": 3, _PLACE + "critic_num_gpus_per_node": 1, "trainer.algorithm.use_kl_loss": True,
     "trainer.ref.sequence_parallel_size": 2, _PLACE + "ref_num_gpus_per_node": 1},
    {"trainer.resume_mode": "from_path", "trainer.resume_path": "/shared/x/global_step_20"},
)  # fmt: skip
_POOLS: dict[str, Sequence[Any]] = {
    "trainer.train_batch_size": (1, 6, 12, 20, 24, 36, 48, 0, -4),
    "trainer.policy_mini_batch_size": (1, 4, 6, 10, 12, 24, 48, 0, -1),
    "trainer.critic_mini_batch_size": (1, 4, 6, 10, 12, 24, 48, 0, -1),
    "generator.n_samples_per_prompt": (1, 2, 3, 5, 8, 16, 0),
    "trainer.micro_train_batch_size_per_gpu": (1, 2, 3, 4, 8, 16, 32, 0),
    "generator.max_input_length": (100, 2048, 4096, 8192, None),
    "trainer.max_prompt_length": (512, 2048, 4096, 16384),
    "generator.max_turns": (1, 2, 15, 0),
    _ENGINE + "num_engines": (1, 2, 3, 6, 12, 0),
    _ENGINE + "num_prefill": (0, 1, 2, 6, 9),
    "trainer.resume_path": (None, "/shared/x/global_step_20", "/shared/x"),
    "trainer.policy.model.lora.rank": (0, 8, 32, -1),
    "trainer.ckpt_path": ("/shared/c", "s3://bucket/c", "/tmp/c", "gs://b/c"),
    "trainer.export_path": ("/shared/e", "s3://bucket/e", "/tmp/e"),
    "data.train_data": (["/shared/t.parquet"], ["/tmp/t.parquet"]),
    "data.val_data": (["/shared/t.parquet"], ["/tmp/t.parquet"]),
    "trainer.policy.model.lora.lora_sync_path": ("/shared/l", "/tmp/l"),
    "trainer.policy.model.lora.exclude_modules": (None, ".*visual.*", "("),
    "generator.sampling_params.logprobs": (None, -1, 0, 1, 2),
    "data.dataloader.num_workers": (None, -1, 0, 4),
    "trainer.critic.model.path": (None, "/shared/models/critic", ""),
    _PROFILER + "save_path": (None, "", "/shared/p", "s3://b/p"),
    _PROFILER + "ranks": ([], [0]),
    _PROFILER + "activities": ([], ["cpu"], ["CUDA"], ["gpu"]),
    _PROFILER + "export_type": ("chrome_trace", "stacks", "svg"),
    _ENGINE + "weight_sync_backend": ("nccl", "gloo", "delta"),
    _ENGINE + "external_proxy_url": (None, "http://a"),
    _ENGINE + "external_server_urls": (None, ["http://a"]),
    "trainer.policy.megatron_config.mtp_num_layers": (None, 0, 1),
    "trainer.policy.optimizer_config.lr": (0.0, 1e-6, -1.0),
    "trainer.policy.model.lora.dropout": (0.0, 0.5, 1.0),
    "trainer.algorithm.off_policy_correction.tis_ratio_type": (None, "", "token", "sequence", "word"),
    "trainer.seed": (42, -1, 2**33),
    _ENGINE + "gpu_memory_utilization": (0.0, 0.5, 1.5),
    "generator.sampling_params.temperature": (0.0, 0.7, 1.0),
    "generator.eval_sampling_params.temperature": (0.0, 1.0, -0.1),
    "trainer.policy.model.lora.max_cpu_loras": (None, 0, 1),
    "trainer.logprobs_chunk_size": (None, 1024, 0, -5),
    "generator.inference_engine.engine_init_kwargs.max_model_len": (100, 9216, 16000),
}
_FREE: Sequence[str] = (
    f"{_ENGINE}engine_init_kwargs.rope_scaling=2", f"{_ENGINE}engine_init_kwargs.hf_overrides.rope_theta=2",
    f"{_ENGINE}engine_init_kwargs.hf_overrides.rope_parameters.factor=3.0", f"{_ENGINE}engine_init_kwargs.max_model_len=16000",
    "trainer.policy.model_config_kwargs.rope_parameters.factor=4.0", "trainer.strategy=fsdp2", "trainer.use_sample_packing=true",
    f"{_ENGINE}async_engine=false", f"{_ENGINE}remote_urls=[a]", f"{_ENGINE}enable_http_endpoint=true", "trainer.nonsense=1",
    "+trainer.seed=1", "trainer.epochs=many", "trainer.bf16=7", "generator.eval_sampling_params.top_p=0.5", "trainer.rope_theta=1",
)  # fmt: skip
# Keys that decide more than one rule change more often.
_TELLING = tuple(sorted(name for name in _POOLS)) + tuple(
    name for name, key in sorted(KEYS.items()) if key.choices or key.kind == "bool" or name.endswith(("_size", "_nodes", "_per_node"))
)


def _pool(name: str) -> Sequence[Any]:
    if name in _POOLS:
        return _POOLS[name]
    key = KEYS[name]
    nothing = (None,) if key.nullable else ()
    match key.kind:
        case "bool":
            return (True, False)
        case "int":
            return (0, 1, 2, 3, 4, -1, *nothing)
        case "float":
            return (0.0, 0.5, 1.0, *nothing)
        case "str":
            return (*key.choices, "word", *nothing)
        case "list[str]":
            return (["word"], *nothing)
    return (key.default,)


def configurations(count: int, *, seed: int) -> Iterator[list[str]]:
    """`count` lists of `key=value` words."""
    random_ = random.Random(seed)
    names = [name for name, key in KEYS.items() if key.kind not in ("section", "dict")]
    for _ in range(count):
        values = dict(_SOUND) | random_.choice(_VARIANTS)
        for _ in range(random_.randint(0, 3)):
            name = random_.choice(_TELLING if random_.random() < 0.85 else names)
            values[name] = random_.choice(_pool(name))
        words = render(values)
        if random_.random() < 0.08:
            extra = random_.choice(_FREE)
            words = [word for word in words if word.partition("=")[0] != extra.partition("=")[0]] + [extra]
        yield words
