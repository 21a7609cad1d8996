"""The rules that a SkyRL configuration must keep, checked before a GPU is paid for.

Most are those of SkyRL's `validate_cfg` (skyrl/train/utils/utils.py, skyrl 0.3.0); a rule marked *own* is about a value
that `validate_cfg` lets pass and that fails, or trains something else, hours later on the nodes. Each rule is one object:
when it is broken, one sentence, one remedy. `str.format` fills in the figures from `Settings`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from config.problems import Problem
from training.skyrl_keys import Value
from training.skyrl_model_rules import MODEL_RULES, STORAGE_RULES
from training.skyrl_rare_rules import RARE_RULES
from training.skyrl_rule import Level, Rule
from training.skyrl_settings import ENGINE, PLACE, Settings, range_problems, word_problems


@dataclass(frozen=True)
class Finding:
    """A broken rule: its name and level, and the problem in words."""

    name: str
    level: Level
    problem: Problem


def _reaches(length: object, longest: int) -> bool:
    """Whether a context length, which SkyRL hands to vLLM as it is, is a number that holds the longest conversation."""
    return isinstance(length, int) and not isinstance(length, bool) and length >= longest


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
        lambda s: (length := s[f"{ENGINE}engine_init_kwargs.max_model_len"]) is not None and not _reaches(length, s.longest),
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

RULES: Final[tuple[Rule, ...]] = (*_SIZES, *_LENGTHS, *_PLACEMENT, *_ALGORITHM, *MODEL_RULES, *STORAGE_RULES, *RARE_RULES)
