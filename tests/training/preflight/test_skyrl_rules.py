"""Each rule about SkyRL's configuration has an example that breaks it and one that keeps it."""

from __future__ import annotations

import pytest

from training.skyrl import KEYS, parse
from training.skyrl_own_rules import OWN_RULES
from training.skyrl_rules import RULES, findings
from training.skyrl_settings import _RANGES

PLACE, ENGINE, LORA = "trainer.placement.", "generator.inference_engine.", "trainer.policy.model.lora."
MEGATRON, PROFILER, ALGORITHM = "trainer.policy.megatron_config.", "trainer.policy.torch_profiler_config.", "trainer.algorithm."
KWARGS = f"{ENGINE}engine_init_kwargs."

SOUND = (
    "trainer.logger=console", f"{LORA}rank=32", f"{LORA}exclude_modules=.*visual.*", f"{LORA}lora_sync_path=/shared/l",
    "data.train_data=[/shared/t]", "data.val_data=[/shared/v]", "trainer.ckpt_path=/shared/c", "trainer.export_path=/shared/e",
    f"{PLACE}policy_num_nodes=3", f"{PLACE}policy_num_gpus_per_node=2", f"{PLACE}ref_num_nodes=3", f"{PLACE}ref_num_gpus_per_node=2",
    f"{ENGINE}num_engines=6", "trainer.train_batch_size=24", "trainer.policy_mini_batch_size=12", "trainer.critic_mini_batch_size=12",
    "generator.n_samples_per_prompt=8", "generator.max_turns=15", "generator.max_input_length=8192", "trainer.max_prompt_length=2048",
    f"{ALGORITHM}use_kl_loss=false", "generator.vision_language_generator=true", "trainer.remove_microbatch_padding=false",
)  # fmt: skip
TEXT = ("generator.vision_language_generator=false", "trainer.remove_microbatch_padding=true")
ON_MEGATRON = (*TEXT, "trainer.strategy=megatron")
CRITIC = ("trainer.critic.model.path=/shared/m", f"{PLACE}critic_num_nodes=3", f"{PLACE}critic_num_gpus_per_node=2")
PROFILED = (f"{PROFILER}enable=true", f"{PROFILER}save_path=/shared/p", "trainer.policy.fsdp_config.cpu_offload=true")
APART = (f"{PLACE}colocate_all=false",)
INT4 = (*ON_MEGATRON, "trainer.policy.model.fake_int4_qat.enabled=true", f"{MEGATRON}lora_config.merge_lora=false")
REPLAY = (
    *ON_MEGATRON, f"{ENGINE}enable_return_routed_experts=true", f"{ENGINE}distributed_executor_backend=mp",
    f"{MEGATRON}moe_enable_routing_replay=true",
)  # fmt: skip
KL = (f"{ALGORITHM}use_kl_loss=true",)

# rule -> (a variant of SOUND that keeps every rule, the words that break this one)
EXAMPLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "batch-holds-mini-batch": ((), ("trainer.train_batch_size=6",)),
    "mini-batch-divides-batch": ((), ("trainer.policy_mini_batch_size=9",)),
    "replicas-fit": (TEXT, ("trainer.policy.sequence_parallel_size=4",)),
    "mini-batch-spreads-over-gpus": ((), ("trainer.train_batch_size=20", "trainer.policy_mini_batch_size=10")),
    "batch-spreads-over-gpus": ((), ("trainer.train_batch_size=20", "trainer.policy_mini_batch_size=10")),
    "micro-batch-divides-mini-batch": ((), ("trainer.micro_train_batch_size_per_gpu=3",)),
    "batch-reaches-every-ref-gpu": (
        (*KL, *APART, f"{PLACE}colocate_policy_ref=false"),
        (f"{PLACE}ref_num_nodes=5", "trainer.train_batch_size=3", "trainer.policy_mini_batch_size=3"),
    ),
    "group-has-two-samples": ((), ("generator.n_samples_per_prompt=1",)),
    "single-turn-lengths-equal": (("generator.max_turns=1", "generator.max_input_length=2048"), ("generator.max_input_length=4096",)),
    "conversation-holds-prompt": ((), ("generator.max_input_length=1024",)),
    "context-holds-conversation": ((f"{KWARGS}max_model_len=9216",), (f"{KWARGS}max_model_len=9215",)),
    "colocated-gpus-equal": ((), (f"{ENGINE}num_engines=4",)),
    "cluster-has-the-gpus": ((), (f"{PLACE}policy_num_nodes=4", f"{ENGINE}num_engines=8")),
    "colocated-engines-are-local": (APART, (f"{PLACE}colocate_all=true", f"{ENGINE}external_proxy_url=http://x")),
    "external-engines-have-a-url": (
        (*APART, f"{ENGINE}run_engines_locally=false", f"{ENGINE}external_server_urls=[http://x]"),
        (f"{ENGINE}external_server_urls=null",),
    ),
    "mp-engine-fits-a-node": (
        (f"{ENGINE}distributed_executor_backend=mp", f"{ENGINE}tensor_parallel_size=2", f"{ENGINE}num_engines=3"),
        (f"{ENGINE}tensor_parallel_size=3", f"{ENGINE}num_engines=2"),
    ),
    "ref-sits-with-policy": ((*KL, *APART), (f"{PLACE}ref_num_nodes=2",)),
    "expert-parallel-product": ((f"{ENGINE}expert_parallel_size=1",), (f"{ENGINE}expert_parallel_size=2",)),
    "prefill-leaves-decode": ((f"{ENGINE}enable_pd=true", f"{ENGINE}num_prefill=2"), (f"{ENGINE}num_prefill=6",)),
    "gae-has-a-critic": (CRITIC, (f"{ALGORITHM}advantage_estimator=gae", "trainer.critic.model.path=null")),
    "one-kl-term": (KL, (f"{ALGORITHM}use_kl_in_reward=true",)),
    "sum-norm-has-a-length": (
        (f"{ALGORITHM}loss_reduction=seq_mean_token_sum_norm", f"{ALGORITHM}max_seq_len=9216"), (f"{ALGORITHM}max_seq_len=null",),
    ),
    "step-wise-estimator": (
        (*TEXT, "generator.step_wise_trajectories=true"), (f"{ALGORITHM}advantage_estimator=reinforce++",),
    ),
    "step-wise-reduction": ((*TEXT, "generator.step_wise_trajectories=true"), (f"{ALGORITHM}loss_reduction=token_mean_legacy",)),
    "merge-needs-step-wise": (TEXT, ("generator.merge_stepwise_output=true",)),
    "correction-fits-loss": ((f"{ALGORITHM}policy_loss_type=clip_cov",), (f"{ALGORITHM}use_tis=true",)),
    "evaluation-stays-greedy": ((), ("generator.eval_sampling_params.top_p=0.5",)),
    "lora-syncs-whole": ((), (f"{ENGINE}weight_sync_backend=delta",)),
    "lora-leaves-vision-alone": ((), (f"{LORA}exclude_modules=null",)),
    "cpu-loras-hold-active": ((f"{LORA}max_loras=2",), (f"{LORA}max_cpu_loras=1",)),
    "vlm-batched": ((), ("generator.batched=true",)),
    "vlm-step_wise_trajectories": ((), ("generator.step_wise_trajectories=true",)),
    "vlm-use_conversation_multi_turn": ((), ("generator.use_conversation_multi_turn=false",)),
    "vlm-remove_microbatch_padding": ((), ("trainer.remove_microbatch_padding=true",)),
    "chunk-only-megatron-drops": ((), ("trainer.logprobs_chunk_size=null",)),
    "profiler-fits-offload": (PROFILED, ("trainer.policy.fsdp_config.cpu_offload=false",)),
    "fused-head-is-megatron": ((), ("trainer.fused_lm_head_logprob=true",)),
    "keeps-a-checkpoint": ((), ("trainer.max_ckpts_to_keep=0",)),
    "resume-path-given": (("trainer.resume_mode=from_path", "trainer.resume_path=/shared/global_step_4"), ("trainer.resume_path=/shared",)),
    "lora-checkpoint-is-a-folder": ((), ("trainer.ckpt_path=s3://b/c",)),
    "eval-dump-is-a-folder": ((), ("trainer.export_path=s3://b/c",)),
    "wandb-has-a-key": ((), ("trainer.logger=wandb",)),
    "persistent-workers-exist": (("data.dataloader.persistent_workers=true",), ("data.dataloader.num_workers=0",)),
    "shared-path-train_data": ((), ("data.train_data=[/tmp/t]",)),
    "shared-path-val_data": ((), ("data.val_data=[/tmp/v]",)),
    "shared-path-ckpt_path": ((), ("trainer.ckpt_path=/tmp/c",)),
    "shared-path-export_path": ((), ("trainer.export_path=~/e",)),
    "adapter-reaches-every-node": ((), (f"{LORA}lora_sync_path=/tmp/l",)),
    "critic-mini-batch-divides-batch": (CRITIC, ("trainer.critic_mini_batch_size=9",)),
    "critic-replicas-fit": (CRITIC, ("trainer.critic.sequence_parallel_size=4",)),
    "critic-mini-batch-spreads-over-gpus": (CRITIC, ("trainer.critic_mini_batch_size=8",)),
    "micro-batch-divides-critic-mini-batch": (
        (*CRITIC, "trainer.micro_train_batch_size_per_gpu=16"), ("trainer.critic_mini_batch_size=6",),
    ),
    "megatron-syncs-by-nccl": (ON_MEGATRON, (f"{ENGINE}weight_sync_backend=gloo",)),
    "megatron-has-no-critic": (ON_MEGATRON, CRITIC),
    "megatron-replays-what-engines-return": (REPLAY, (f"{ENGINE}enable_return_routed_experts=false",)),
    "megatron-context-parallel-drops-padding": (
        (*ON_MEGATRON, f"{MEGATRON}context_parallel_size=2"), ("trainer.remove_microbatch_padding=false",),
    ),
    "megatron-has-no-ulysses": (ON_MEGATRON, ("trainer.ref.sequence_parallel_size=2",)),
    "ref-replicas-fit": (KL, ("trainer.ref.sequence_parallel_size=4",)),
    "routed-experts-are-replayed": (REPLAY, (f"{ENGINE}distributed_executor_backend=ray",)),
    "prediction-heads-exist": (("trainer.mtp.enabled=true",), (f"{MEGATRON}mtp_num_layers=0",)),
    "prediction-depth-positive": (("trainer.mtp.enabled=true",), ("trainer.mtp.num_speculative_tokens=0",)),
    "int4-policy-has-lora": (INT4, (f"{LORA}rank=0",)),
    "int4-ref-has-lora": (
        ("trainer.ref.model.lora.rank=8",),
        ("trainer.ref.model.fake_int4_qat.enabled=true", "trainer.ref.model.lora.rank=0"),
    ),
    "int4-critic-has-lora": (
        ("trainer.critic.model.lora.rank=8",),
        ("trainer.critic.model.fake_int4_qat.enabled=true", "trainer.critic.model.lora.rank=0"),
    ),
    "int4-is-megatron": (INT4, (f"{MEGATRON}lora_config.merge_lora=true",)),
    "engine-drops-vision-too": (
        ("trainer.policy.language_model_only=true", f"{ENGINE}language_model_only=true"), (f"{ENGINE}language_model_only=false",),
    ),
    "ref-drops-vision-too": (
        ("trainer.policy.language_model_only=true", f"{ENGINE}language_model_only=true", "trainer.ref.language_model_only=true", *KL),
        ("trainer.ref.language_model_only=false",),
    ),
    "profiler-has-ranks": (PROFILED, (f"{PROFILER}ranks=[]",)),
    "profiler-writes-a-folder": (PROFILED, (f"{PROFILER}save_path=s3://b/p",)),
    "profiler-knows-activities": (PROFILED, (f"{PROFILER}activities=[gpu]",)),
    "profiler-knows-export": (PROFILED, (f"{PROFILER}export_type=stacks", f"{PROFILER}with_stack=false")),
    "profiler-schedule-positive": (PROFILED, (f"{PROFILER}active=0",)),
    "rope-is-an-override-of-the-model": ((), (f"{KWARGS}rope_theta=2",)),
    "ropes-agree": (
        (f"{KWARGS}hf_overrides.rope_parameters.factor=2", "trainer.policy.model_config_kwargs.rope_parameters.factor=2"),
        ("trainer.policy.model_config_kwargs.rope_parameters.factor=3",),
    ),
}  # fmt: skip


def _names(*words: str) -> set[str]:
    chosen = dict(word.partition("=")[::2] for word in words)  # the last word for a key wins
    values, unread = parse([f"{name}={text}" for name, text in chosen.items()])
    assert unread == []
    return {found.name for found in findings(values, world_gpus=6, environment=())}


def test_every_rule_has_its_examples() -> None:
    assert set(EXAMPLES) == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rule(name: str) -> None:
    kept, broken = EXAMPLES[name]
    assert name not in _names(*SOUND, *kept)
    assert name in _names(*SOUND, *kept, *broken)


@pytest.mark.parametrize("length", ["many", "true", "9216.5", "[9216]", "'9216'"])
def test_a_context_length_that_is_no_number_holds_no_conversation(length: str) -> None:
    """SkyRL hands the engine's own words on as they are, so vLLM alone would say it, after every model is loaded."""
    assert "context-holds-conversation" in _names(*SOUND, f"{KWARGS}max_model_len={length}")


@pytest.mark.parametrize("name", [name for name, (kept, _) in EXAMPLES.items() if name != "batch-reaches-every-ref-gpu"])
def test_what_keeps_a_rule_keeps_all(name: str) -> None:
    assert _names(*SOUND, *EXAMPLES[name][0]) - {"cluster-has-the-gpus"} == set()


def test_every_problem_can_be_said() -> None:
    for kept, broken in EXAMPLES.values():
        values, _ = parse([f"{a}={b}" for a, b in dict(w.partition("=")[::2] for w in (*SOUND, *kept, *broken)).items()])
        for found in findings(values, world_gpus=6, environment=()):
            assert found.problem.field in KEYS or found.problem.field.startswith(KWARGS[:-1]) or found.problem.field in KWARGS
            assert "{" not in found.problem.rule
            assert found.problem.fix


@pytest.mark.parametrize("name", _RANGES)
def test_range(name: str) -> None:
    low, _, _ = _RANGES[name]
    wrong = low - 1
    kind = KEYS[name].kind
    text = str(int(wrong)) if kind == "int" else str(float(wrong))
    assert f"range:{name}" in _names(*SOUND, f"{name}={text}")
    assert f"range:{name}" not in _names(*SOUND)


@pytest.mark.parametrize("name", [key.name for key in KEYS.values() if key.choices])
def test_word(name: str) -> None:
    assert f"word:{name}" in _names(*SOUND, f"{name}=nonsense")
    assert f"word:{name}" not in _names(*SOUND)
    assert f"word:{name}" not in _names(*SOUND, f"{name}={KEYS[name].choices[0]}")


def test_the_list_of_own_rules_names_rules() -> None:
    words = {f"word:{key.name}" for key in KEYS.values() if key.choices}
    assert set(OWN_RULES) <= {rule.name for rule in RULES} | words | {"parse", "range:"}
    assert all(OWN_RULES.values())
