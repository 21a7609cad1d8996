"""Rules about the model, its adapter and where a run's files lie; a rule marked *own* lets `validate_cfg` pass (see skyrl_rules)."""

from __future__ import annotations

import math
import re
from typing import Final

from training.skyrl_rule import Rule
from training.skyrl_settings import ENGINE, PLACE, Settings

_CLOUD: Final = ("s3://", "gs://", "gcs://")
_NODE_LOCAL: Final = ("/tmp", "~", "/var/tmp", "/dev/shm")  # noqa: S108  compared with, not written to


def _cloud(settings: Settings, name: str) -> bool:
    return str(settings[name]).startswith(_CLOUD)


def _node_local(settings: Settings, name: str) -> bool:
    value = settings[name]
    paths = value if isinstance(value, list) else [value]
    return settings[f"{PLACE}policy_num_nodes"] > 1 and any(str(path).startswith(_NODE_LOCAL) for path in paths)


def _reaches_vision(settings: Settings) -> bool:
    exclude = settings["trainer.policy.model.lora.exclude_modules"]
    if not settings.lora or not settings["generator.vision_language_generator"]:
        return False
    if settings["trainer.policy.model.lora.target_modules"] != "all-linear":
        return False
    try:
        return exclude is None or re.fullmatch(exclude, "model.visual.blocks.0.attn.qkv") is None
    except re.error:
        return True


def _shared(field: str) -> Rule:
    return Rule(
        f"shared-path-{field.rpartition('.')[2]}",
        field,
        lambda s: _node_local(s, field),
        "it lies on the disk of one node, and Ray may place its reader or writer on another",
        "put it below /shared",
    )


def _vlm(field: str, wanted: bool, why: str) -> Rule:
    return Rule(
        f"vlm-{field.rpartition('.')[2]}",
        field,
        lambda s: bool(s["generator.vision_language_generator"]) and s[field] is not wanted,
        f"the vision-language generator needs {str(wanted).lower()}: {why}",
        f"set {field}={str(wanted).lower()}",
    )


MODEL_RULES: Final = (
    Rule(
        "lora-syncs-whole",
        f"{ENGINE}weight_sync_backend",
        lambda s: s.lora and s[f"{ENGINE}weight_sync_backend"] == "delta",
        "an adapter cannot be synchronised by delta",
        "use nccl",
    ),
    Rule(  # own: vLLM ignores adapters on the vision tower (https://github.com/vllm-project/vllm/issues/32541)
        "lora-leaves-vision-alone",
        "trainer.policy.model.lora.exclude_modules",
        _reaches_vision,
        "all-linear also adapts the vision tower, whose adapter vLLM ignores at rollout and in serving",
        "set trainer.policy.model.lora.exclude_modules=.*visual.*",
    ),
    Rule(
        "cpu-loras-hold-active",
        "trainer.policy.model.lora.max_cpu_loras",
        lambda s: (s["trainer.policy.model.lora.max_cpu_loras"] or math.inf) < s["trainer.policy.model.lora.max_loras"],
        "it is below max_loras={s[trainer.policy.model.lora.max_loras]}",
        "raise it or leave it out",
    ),
    _vlm("generator.batched", False, "it raises at start otherwise"),
    _vlm("generator.step_wise_trajectories", False, "it raises at start otherwise"),
    _vlm("generator.use_conversation_multi_turn", True, "it raises at start otherwise"),
    _vlm("trainer.remove_microbatch_padding", False, "the forward pass asserts it, after all models are loaded"),
    Rule(
        "chunk-only-megatron-drops",
        "trainer.logprobs_chunk_size",
        lambda s: s["trainer.logprobs_chunk_size"] is None and s["trainer.strategy"] != "megatron",
        "only megatron computes log-probabilities unchunked",
        "give a positive number, for example 1024",
    ),
    Rule(
        "profiler-fits-offload",
        "trainer.policy.torch_profiler_config.enable",
        lambda s: (
            s["trainer.policy.torch_profiler_config.enable"]
            and s["trainer.strategy"] == "fsdp"
            and not s["trainer.policy.fsdp_config.cpu_offload"]
            and (s[f"{PLACE}colocate_all"] or s[f"{PLACE}colocate_policy_ref"])
        ),
        "profiling a colocated FSDP policy crashes when it moves to the CPU",
        "set trainer.policy.fsdp_config.cpu_offload=true",
    ),
    Rule(
        "fused-head-is-megatron",
        "trainer.fused_lm_head_logprob",
        lambda s: s["trainer.fused_lm_head_logprob"] and s["trainer.strategy"] != "megatron",
        "only megatron has it",
        "set it to false",
    ),
)

STORAGE_RULES: Final = (
    Rule(
        "keeps-a-checkpoint",
        "trainer.max_ckpts_to_keep",
        lambda s: s["trainer.max_ckpts_to_keep"] == 0,
        "0 keeps none",
        "use -1 (all) or a positive number",
    ),
    Rule(
        "resume-path-given",
        "trainer.resume_path",
        lambda s: s["trainer.resume_mode"] == "from_path" and re.search(r"(^|/)global_step_\d+/?$", str(s["trainer.resume_path"])) is None,
        "resume_mode=from_path needs the folder of one checkpoint",
        "give a path that ends in global_step_N",
    ),
    Rule(  # own: the adapter is written with safetensors' save_file, which knows local paths only (fsdp_strategy.py)
        "lora-checkpoint-is-a-folder",
        "trainer.ckpt_path",
        lambda s: _cloud(s, "trainer.ckpt_path") and s.lora and s["trainer.strategy"] == "fsdp",
        "the first checkpoint of a LoRA run crashes on object storage",
        "write below /shared and copy from there",
    ),
    Rule(  # own: eval dumps are written with pathlib
        "eval-dump-is-a-folder",
        "trainer.export_path",
        lambda s: _cloud(s, "trainer.export_path") and bool(s["trainer.dump_eval_results"]),
        "evaluations cannot be dumped to object storage",
        "write below /shared",
    ),
    Rule(
        "wandb-has-a-key",
        "trainer.logger",
        lambda s: s["trainer.logger"] == "wandb" and s.environment is not None and "WANDB_API_KEY" not in s.environment,
        "it needs the environment variable WANDB_API_KEY",
        "set trainer.logger=console or provide the key as a Kubernetes secret",
    ),
    Rule(
        "persistent-workers-exist",
        "data.dataloader.persistent_workers",
        lambda s: s["data.dataloader.persistent_workers"] and s["data.dataloader.num_workers"] == 0,
        "there are no workers to keep (num_workers=0)",
        "set it to false",
    ),
    *(_shared(field) for field in ("data.train_data", "data.val_data", "trainer.ckpt_path", "trainer.export_path")),
    Rule(  # own
        "adapter-reaches-every-node",
        "trainer.policy.model.lora.lora_sync_path",
        lambda s: s.lora and _node_local(s, "trainer.policy.model.lora.lora_sync_path"),
        "the engines on the other nodes read the adapter from it",
        "put it below /shared",
    ),
)
