"""The rules that a SkyRL configuration must keep, checked before a GPU is paid for.

Most are those of SkyRL's `validate_cfg` (skyrl/train/utils/utils.py, skyrl 0.3.0); a rule marked *own* is about a value
that `validate_cfg` lets pass and that fails, or trains something else, hours later on the nodes. Each rule is one object:
when it is broken, one sentence, one remedy. `str.format` fills in the figures from `Settings`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from config.problems import Problem
from training.skyrl_keys import Value
from training.skyrl_rare_rules import RARE_RULES
from training.skyrl_rule import Level, Rule
from training.skyrl_settings import ENGINE, PLACE, Settings, range_problems, word_problems


@dataclass(frozen=True)
class Finding:
    """A broken rule: its name and level, and the problem in words."""

    name: str
    level: Level
    problem: Problem


def problems(values: Mapping[str, Value], *, world_gpus: int | None = None, environment: Collection[str] | None = None) -> list[Problem]:
    """Everything that is wrong with a configuration, SkyRL's defaults filled in.

    Args:
        values: the overrides as `training.skyrl.parse` returns them.
        world_gpus: GPUs that the Ray cluster has; None leaves the rules about them out.
        environment: names of the environment variables that the job gets; None leaves the rules about them out.
    """
    return [f.problem for f in findings(values, world_gpus=world_gpus, environment=environment) if f.level == "error"]


def findings(values: Mapping[str, Value], *, world_gpus: int | None = None, environment: Collection[str] | None = None) -> list[Finding]:
    """The same with the names of the rules, warnings included. A single value's rule is `word:KEY` or `range:KEY`."""
    settings = Settings(values, world_gpus=world_gpus, environment=environment)
    found = [Finding(f"word:{p.field}", "error", p) for p in word_problems(settings)]
    found += [Finding(f"range:{p.field}", "error", p) for p in range_problems(settings)]
    if found:  # the rules below divide by these numbers
        return found
    return [Finding(rule.name, rule.level, problem) for rule in RULES if (problem := rule.problem(settings)) is not None]


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


_SIZES: Final = (
    Rule(
        "batch-holds-mini-batch",
        "trainer.train_batch_size",
        lambda s: s.batch < s.mini,
        "it is smaller than trainer.policy_mini_batch_size={s.mini}",
        "raise it or lower the mini batch",
    ),
    Rule(
        "mini-batch-divides-batch",
        "trainer.policy_mini_batch_size",
        lambda s: s.batch >= s.mini and s.batch % s.mini != 0,
        "trainer.train_batch_size={s.batch} is no multiple of it",
        "choose a divisor of {s.batch}",
    ),
    Rule(
        "replicas-fit",
        "trainer.placement.policy_num_gpus_per_node",
        lambda s: s.policy_gpus % s.model_parallel != 0,
        "the {s.policy_gpus} policy GPUs are no multiple of the {s.model_parallel} GPUs of one replica",
        "change the placement or the parallel sizes",
    ),
    Rule(  # own: validate_cfg floors, and the dispatch asserts on the GPUs (skyrl distributed/dispatch.py)
        "mini-batch-spreads-over-gpus",
        "trainer.policy_mini_batch_size",
        lambda s: s.mini * s.samples % s.data_parallel != 0,
        "{s.mini} prompts of {s.samples} samples do not spread evenly over {s.data_parallel} data-parallel ranks",
        "make policy_mini_batch_size * n_samples_per_prompt a multiple of {s.data_parallel}",
    ),
    Rule(  # own, as above
        "batch-spreads-over-gpus",
        "trainer.train_batch_size",
        lambda s: s.batch * s.samples % s.data_parallel != 0,
        "{s.batch} prompts of {s.samples} samples do not spread evenly over {s.data_parallel} data-parallel ranks",
        "make train_batch_size * n_samples_per_prompt a multiple of {s.data_parallel}",
    ),
    Rule(
        "micro-batch-divides-mini-batch",
        "trainer.micro_train_batch_size_per_gpu",
        lambda s: s.mini_per_gpu % s["trainer.micro_train_batch_size_per_gpu"] != 0,
        "the {s.mini_per_gpu} samples per optimizer step and GPU are no multiple of it",
        "choose a divisor of {s.mini_per_gpu}",
    ),
    Rule(
        "batch-reaches-every-ref-gpu",
        "trainer.train_batch_size",
        lambda s: s.uses_ref and s.batch * s.samples < math.lcm(s.data_parallel, s.ref_data_parallel),
        "{s.batch} prompts of {s.samples} samples do not reach every rank of policy and reference model",
        "raise it, or switch the reference model off (trainer.algorithm.use_kl_loss=false)",
    ),
    Rule(  # own: advantages are the distance to the group's mean
        "group-has-two-samples",
        "generator.n_samples_per_prompt",
        lambda s: s.samples < 2 and s["trainer.algorithm.advantage_estimator"] in ("grpo", "rloo", "maxrl"),
        "{s[trainer.algorithm.advantage_estimator]} compares the samples of one prompt with each other",
        "use 2 or more",
    ),
)

_LENGTHS: Final = (
    Rule(
        "single-turn-lengths-equal",
        "generator.max_input_length",
        lambda s: s["generator.max_turns"] == 1 and s["generator.max_input_length"] != s["trainer.max_prompt_length"],
        "with one turn it must equal trainer.max_prompt_length={s[trainer.max_prompt_length]}",
        "leave it out",
    ),
    Rule(
        "conversation-holds-prompt",
        "generator.max_input_length",
        lambda s: s["generator.max_turns"] > 1 and s["generator.max_input_length"] < s["trainer.max_prompt_length"],
        "it is below trainer.max_prompt_length={s[trainer.max_prompt_length]}",
        "raise it: the prompt is part of the conversation",
    ),
    Rule(  # own
        "context-holds-conversation",
        f"{ENGINE}engine_init_kwargs.max_model_len",
        lambda s: isinstance(length := s[f"{ENGINE}engine_init_kwargs.max_model_len"], int) and length < s.longest,
        "a conversation can reach {s.longest} tokens (max_input_length + max_generate_length)",
        "raise it to {s.longest} or more",
    ),
)

_PLACEMENT: Final = (
    Rule(
        "colocated-gpus-equal",
        f"{ENGINE}num_engines",
        lambda s: s[f"{PLACE}colocate_all"] and s.policy_gpus != s.rollout_gpus,
        "colocated engines must use exactly the policy's GPUs: {s.rollout_gpus} against {s.policy_gpus}",
        "make num_engines * tensor * pipeline * data parallel size {s.policy_gpus}",
    ),
    Rule(  # own: the placement group would wait for SKYRL_RAY_PG_TIMEOUT_IN_S (180 s) and fail
        "cluster-has-the-gpus",
        f"{PLACE}policy_num_nodes",
        lambda s: s.world_gpus is not None and s.gpus > s.world_gpus,
        "the job reserves {s.gpus} GPUs and the cluster has {s.world_gpus}",
        "lower the placement or add nodes",
    ),
    Rule(
        "colocated-engines-are-local",
        f"{PLACE}colocate_all",
        lambda s: (
            s[f"{PLACE}colocate_all"] and (s[f"{ENGINE}external_proxy_url"] is not None or s[f"{ENGINE}external_server_urls"] is not None)
        ),
        "external inference servers cannot share GPUs with the trainer",
        f"set {PLACE}colocate_all=false or drop the external URLs",
    ),
    Rule(
        "external-engines-have-a-url",
        f"{ENGINE}run_engines_locally",
        lambda s: (
            not s[f"{ENGINE}run_engines_locally"]
            and s[f"{ENGINE}external_proxy_url"] is None
            and s[f"{ENGINE}external_server_urls"] is None
        ),
        "engines that are not started here need an address",
        f"give {ENGINE}external_server_urls",
    ),
    Rule(
        "mp-engine-fits-a-node",
        f"{ENGINE}distributed_executor_backend",
        lambda s: (
            s[f"{PLACE}colocate_all"]
            and s[f"{ENGINE}distributed_executor_backend"] == "mp"
            and s[f"{ENGINE}tensor_parallel_size"] * s[f"{ENGINE}pipeline_parallel_size"] > s[f"{PLACE}policy_num_gpus_per_node"]
        ),
        "one engine needs more GPUs than a node has, and mp stays within a node",
        "use ray",
    ),
    Rule(
        "ref-sits-with-policy",
        f"{PLACE}ref_num_nodes",
        lambda s: (
            not s[f"{PLACE}colocate_all"]
            and s[f"{PLACE}colocate_policy_ref"]
            and s.uses_ref
            and any(s[f"{PLACE}ref_{n}"] != s[f"{PLACE}policy_{n}"] for n in ("num_nodes", "num_gpus_per_node"))
        ),
        "a reference model that shares the policy's GPUs needs the same number of nodes and GPUs",
        "copy policy_num_nodes and policy_num_gpus_per_node",
    ),
    Rule(
        "expert-parallel-product",
        f"{ENGINE}expert_parallel_size",
        lambda s: (
            s[f"{ENGINE}expert_parallel_size"] > 1
            and s[f"{ENGINE}data_parallel_size"] * s[f"{ENGINE}tensor_parallel_size"] != s[f"{ENGINE}expert_parallel_size"]
        ),
        "it must be data_parallel_size * tensor_parallel_size",
        "change one of the three",
    ),
    Rule(
        "prefill-leaves-decode",
        f"{ENGINE}num_prefill",
        lambda s: s[f"{ENGINE}enable_pd"] and not 0 < s[f"{ENGINE}num_prefill"] < s[f"{ENGINE}num_engines"],
        "prefill and decode each need an engine of num_engines={s[generator.inference_engine.num_engines]}",
        "choose between 1 and num_engines - 1",
    ),
)

_ALGORITHM: Final = (
    Rule(
        "gae-has-a-critic",
        "trainer.critic.model.path",
        lambda s: s["trainer.algorithm.advantage_estimator"] == "gae" and not s["trainer.critic.model.path"],
        "the estimator gae needs a critic model",
        "give its path, or use grpo",
    ),
    Rule(
        "one-kl-term",
        "trainer.algorithm.use_kl_in_reward",
        lambda s: s["trainer.algorithm.use_kl_in_reward"] and s["trainer.algorithm.use_kl_loss"],
        "it excludes trainer.algorithm.use_kl_loss, which is on by default",
        "switch one of the two off",
    ),
    Rule(
        "sum-norm-has-a-length",
        "trainer.algorithm.max_seq_len",
        lambda s: s["trainer.algorithm.loss_reduction"] == "seq_mean_token_sum_norm" and s["trainer.algorithm.max_seq_len"] is None,
        "loss_reduction=seq_mean_token_sum_norm divides by it",
        "give the context length",
    ),
    Rule(
        "step-wise-estimator",
        "trainer.algorithm.advantage_estimator",
        lambda s: s["generator.step_wise_trajectories"] and s["trainer.algorithm.advantage_estimator"] in ("gae", "reinforce++"),
        "step-wise trajectories have one advantage for all their tokens",
        "use grpo, rloo or maxrl",
    ),
    Rule(
        "step-wise-reduction",
        "trainer.algorithm.loss_reduction",
        lambda s: s["generator.step_wise_trajectories"] and s["trainer.algorithm.loss_reduction"] == "token_mean_legacy",
        "token_mean_legacy does not work with step-wise trajectories",
        "use token_mean",
    ),
    Rule(
        "merge-needs-step-wise",
        "generator.merge_stepwise_output",
        lambda s: s["generator.merge_stepwise_output"] and not s["generator.step_wise_trajectories"],
        "it merges step-wise trajectories, which are off",
        "set it to false",
    ),
    Rule(
        "correction-fits-loss",
        "trainer.algorithm.policy_loss_type",
        lambda s: (
            s["trainer.algorithm.policy_loss_type"] in ("clip_cov", "kl_cov")
            and (
                s["trainer.algorithm.use_tis"]
                or any(s[f"trainer.algorithm.off_policy_correction.{n}"] is not None for n in ("tis_ratio_type", "sequence_mask_metric"))
            )
        ),
        "this loss has no off-policy correction",
        "switch the correction off or use another loss",
    ),
    Rule(  # own: a section that is given starts from SamplingParams(), whose temperature is 1.0, not from greedy
        "evaluation-stays-greedy",
        "generator.eval_sampling_params.temperature",
        lambda s: (
            any(name.startswith("generator.eval_sampling_params.") for name in s.given)
            and "generator.eval_sampling_params.temperature" not in s.given
        ),
        "once any key of eval_sampling_params is given, evaluation samples at temperature 1.0 instead of greedily",
        "add generator.eval_sampling_params.temperature=0.0",
    ),
)

_MODEL: Final = (
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

_STORAGE: Final = (
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

RULES: Final[tuple[Rule, ...]] = (*_SIZES, *_LENGTHS, *_PLACEMENT, *_ALGORITHM, *_MODEL, *_STORAGE, *RARE_RULES)
