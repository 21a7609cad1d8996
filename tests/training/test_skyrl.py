from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.skyrl import KEYS, Value, parse, problems, render, solve_rate_from_log, with_defaults

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "generator.inference_engine"
KWARGS = f"{ENGINE}.engine_init_kwargs"

# The overrides of the article's training job, corrected: below /shared, and without an adapter on the vision tower.
REFERENCE = [
    "data.train_data=['/shared/datasets/maze/train.parquet']",
    "data.val_data=['/shared/datasets/maze/eval.parquet']",
    "trainer.algorithm.advantage_estimator=grpo",
    "trainer.policy.model.path=/shared/models/sft",
    "trainer.policy.model.lora.rank=32",
    "trainer.policy.model.lora.alpha=32",
    "trainer.policy.model.lora.exclude_modules=.*visual.*",
    "trainer.policy.model.lora.lora_sync_path=/shared/runs/r/lora",
    "trainer.placement.colocate_all=true",
    "trainer.strategy=fsdp",
    "trainer.placement.policy_num_nodes=3",
    "trainer.placement.policy_num_gpus_per_node=2",
    "trainer.placement.ref_num_nodes=3",
    "trainer.placement.ref_num_gpus_per_node=2",
    "trainer.ref.fsdp_config.cpu_offload=false",
    "generator.inference_engine.num_engines=6",
    "generator.inference_engine.tensor_parallel_size=1",
    "generator.inference_engine.gpu_memory_utilization=0.45",
    "generator.inference_engine.engine_init_kwargs.max_model_len=16000",
    "environment.env_class=visgym",
    "trainer.epochs=20",
    "trainer.train_batch_size=24",
    "trainer.policy_mini_batch_size=12",
    "trainer.max_prompt_length=2048",
    "generator.sampling_params.max_generate_length=1024",
    "generator.sampling_params.temperature=0.7",
    "generator.max_turns=15",
    "generator.max_input_length=8192",
    "generator.n_samples_per_prompt=8",
    "generator.vision_language_generator=true",
    "generator.batched=false",
    "trainer.remove_microbatch_padding=false",
    "trainer.algorithm.use_kl_loss=false",
    "trainer.policy.optimizer_config.lr=3.0e-6",
    "trainer.logger=console",
    "trainer.resume_mode=latest",
    "trainer.export_path=/shared/runs/r/exports",
    "trainer.ckpt_path=/shared/runs/r/ckpts",
]


def _reference(*changes: str) -> dict[str, Value]:
    names = {change.partition("=")[0] for change in changes}
    values, found = parse([word for word in REFERENCE if word.partition("=")[0] not in names] + list(changes))
    assert found == []
    return values


def test_reference_is_accepted() -> None:
    assert problems(_reference(), world_gpus=6, environment=()) == []


# What OmegaConf 2.3 returned for `k=TEXT` (OmegaConf.from_cli), the reader that SkyRL uses.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1_000", 1000), ("0x1f", 31), ("3.0e-6", 3e-06), ("3e-6", 3e-06), ("1e5", 1e5), ("1.", 1.0),
        ("-.5", "-.5"), (".5", 0.5), ("+1.5", 1.5), ("true", True), ("yes", True), ("off", False),
        ("null", None), ("~", None), ("", None), ("a b", "a b"), ("2026-11-29", "2026-11-29"), ("'5'", "5"), ('"5"', "5"),
        ("[a,b]", ["a", "b"]), ("['/x/train.parquet']", ["/x/train.parquet"]), ("[1,2.5]", [1, 2.5]), ("a:b", "a:b"),
        ("s3://b/k", "s3://b/k"), ("1.5.2", "1.5.2"), ("-1", -1), ("1e-06", 1e-06), ("no", False), ("None", "None"),
        ("~/x", "~/x"), ("x=y", "x=y"), ("12e03", 12000.0), ("1_0.5", 10.5), ("[]", []), ("NaN", "NaN"), (".inf", math.inf),
    ],
)  # fmt: skip
def test_values_are_read_as_omegaconf_reads_them(text: str, value: Value) -> None:
    values, found = parse([f"{KWARGS}.k={text}"])
    assert found == []
    assert values == {f"{KWARGS}.k": value}
    assert type(values[f"{KWARGS}.k"]) is type(value)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("trainer.sead=1", ["trainer.sead", "did you mean trainer.seed"]),
        ("trainer.n_samples_per_prompt=8", ["did you mean generator.n_samples_per_prompt"]),
        ("trainer.policy_mini_batch_size=abc", ["abc", "an integer is expected", "this is text"]),
        ("trainer.epochs=1.5", ["an integer is expected"]),
        ("trainer.epochs=true", ["an integer is expected"]),
        ("trainer.policy.optimizer_config.lr=fast", ["a number is expected"]),
        ("trainer.bf16=1", ["true or false is expected"]),
        ("trainer.run_name=5", ["text is expected", "quote it", "trainer.run_name='\"5\"'"]),
        ("data.train_data=/x", ["a list of texts is expected", "data.train_data=[/x]"]),
        ("trainer.seed=null", ["null is no value"]),
        ("+trainer.seed=1", ["'+'", "trainer.seed=1"]),
        ("trainer.seed", ["'=' is missing"]),
        ("=1", ["the key is missing"]),
        ("trainer=1", ["section"]),
        ("trainer.use_sample_packing=true", ["renamed", "trainer.remove_microbatch_padding"]),
        ("trainer.run_name=a: [", ["not valid YAML"]),
        ("trainer.run_name=${oc.env:HOME}", ["OmegaConf would resolve"]),
        ("trainer.run_name=!!python/name:os.system", ["not valid YAML"]),
    ],
)
def test_bad_word_is_one_clear_problem(word: str, parts: list[str]) -> None:
    values, found = parse([word])
    assert values == {}
    assert len(found) == 1
    assert all(part in str(found[0]) for part in parts), str(found[0])


def test_all_problems_at_once_and_double_keys() -> None:
    values, found = parse(["trainer.seed=1", "trainer.seed=2", "trainer.sead=1", f"{KWARGS}.a=1", f"{KWARGS}.a.b=2", "trainer.bf16=x"])
    assert values == {"trainer.seed": 1, f"{KWARGS}.a": 1}
    assert [problem.field for problem in found] == ["trainer.seed", "trainer.sead", f"{KWARGS}.a.b", "trainer.bf16"]


def test_sections_and_free_dictionaries_are_spread() -> None:
    values, found = parse(["trainer.placement={colocate_all: false, policy_num_nodes: 3}", f"{KWARGS}={{max_model_len: 9}}"])
    assert found == []
    assert values == {
        "trainer.placement.colocate_all": False,
        "trainer.placement.policy_num_nodes": 3,
        f"{KWARGS}.max_model_len": 9,
    }


def test_integer_for_a_number_becomes_one() -> None:
    values, _ = parse(["trainer.policy.optimizer_config.lr=1"])
    assert values == {"trainer.policy.optimizer_config.lr": 1.0}
    assert isinstance(values["trainer.policy.optimizer_config.lr"], float)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda text: "${" not in text)
_of_kind: dict[str, st.SearchStrategy[Value]] = {
    "int": st.integers(-(2**63), 2**63),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "str": _texts,
    "bool": st.booleans(),
    "bool|int": st.booleans() | st.integers(0, 9),
    "list[str]": st.lists(_texts, max_size=4),
    "list[int]": st.lists(st.integers(), max_size=4),
    "list[float]": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
}


@st.composite
def _configurations(draw: st.DrawFn) -> dict[str, Value]:
    names = draw(st.lists(st.sampled_from([key.name for key in KEYS.values() if key.kind in _of_kind]), max_size=8, unique=True))
    values: dict[str, Value] = {}
    for name in names:
        strategy = _of_kind[KEYS[name].kind]
        values[name] = draw(strategy | st.none() if KEYS[name].nullable else strategy)
    free = st.recursive(
        st.none() | st.booleans() | st.integers() | _texts | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
    if draw(st.booleans()):
        values[f"{KWARGS}.{draw(st.sampled_from(['a', 'limit_mm_per_prompt', 'x.y']))}"] = draw(free)
    return values


@settings(deadline=None)
@given(_configurations())
def test_parse_gives_back_what_render_wrote(values: dict[str, Value]) -> None:
    words = render(values)
    assert words == sorted(words, key=lambda word: word.partition("=")[0])
    assert all("\n" not in word for word in words)
    assert parse(words) == (values, [])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=20) | st.sampled_from(list(KEYS)).flatmap(lambda k: st.text(max_size=8).map(f"{k}=".__add__))))
def test_any_words_give_problems_never_an_exception(words: list[str]) -> None:
    values, _ = parse(words)
    problems(values)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (["trainer.train_batch_size=10"], "trainer.train_batch_size"),
        (["trainer.policy_mini_batch_size=9"], "trainer.policy_mini_batch_size"),
        (["trainer.train_batch_size=20", "trainer.policy_mini_batch_size=10"], "trainer.policy_mini_batch_size"),
        (["trainer.micro_train_batch_size_per_gpu=3"], "trainer.micro_train_batch_size_per_gpu"),
        (["trainer.policy_mini_batch_size=0"], "trainer.policy_mini_batch_size"),
        (["generator.n_samples_per_prompt=1"], "generator.n_samples_per_prompt"),
        (["trainer.max_training_steps=0"], "trainer.max_training_steps"),
        (["generator.max_input_length=100"], "generator.max_input_length"),
        (["generator.max_turns=1"], "generator.max_input_length"),
        ([f"{KWARGS}.max_model_len=9000"], f"{KWARGS}.max_model_len"),
        (["generator.sampling_params.logprobs=2"], "generator.sampling_params.logprobs"),
        (["trainer.algorithm.advantage_estimator=gae"], "trainer.critic.model.path"),
        (["trainer.algorithm.use_kl_loss=true", "trainer.algorithm.use_kl_in_reward=true"], "trainer.algorithm.use_kl_in_reward"),
        (["trainer.algorithm.loss_reduction=mean"], "trainer.algorithm.loss_reduction"),
        (["trainer.algorithm.loss_reduction=seq_mean_token_sum_norm"], "trainer.algorithm.max_seq_len"),
        (["trainer.resume_mode=lastest"], "trainer.resume_mode"),
        (["trainer.resume_mode=from_path"], "trainer.resume_path"),
        (["trainer.resume_mode=from_path", "trainer.resume_path=/shared/ckpts"], "trainer.resume_path"),
        (["trainer.max_ckpts_to_keep=0"], "trainer.max_ckpts_to_keep"),
        (["trainer.ckpt_path=s3://bucket/x"], "trainer.ckpt_path"),
        (["trainer.export_path=s3://bucket/x"], "trainer.export_path"),
        (["data.train_data=[/tmp/x.parquet]"], "data.train_data"),
        (["trainer.policy.model.lora.lora_sync_path=/tmp/lora"], "trainer.policy.model.lora.lora_sync_path"),
        (["trainer.policy.model.lora.exclude_modules=null"], "trainer.policy.model.lora.exclude_modules"),
        (["generator.batched=true"], "generator.batched"),
        (["generator.step_wise_trajectories=true"], "generator.step_wise_trajectories"),
        (["generator.use_conversation_multi_turn=false"], "generator.use_conversation_multi_turn"),
        (["trainer.remove_microbatch_padding=true"], "trainer.remove_microbatch_padding"),
        ([f"{ENGINE}.num_engines=4"], f"{ENGINE}.num_engines"),
        ([f"{ENGINE}.weight_sync_backend=delta"], f"{ENGINE}.weight_sync_backend"),
        ([f"{ENGINE}.external_proxy_url=http://x"], "trainer.placement.colocate_all"),
        ([f"{ENGINE}.distributed_executor_backend=slurm"], f"{ENGINE}.distributed_executor_backend"),
        (["trainer.strategy=fsdp2"], "trainer.strategy"),
        (["trainer.logger=wandb"], "trainer.logger"),
        (["trainer.logger=stdout"], "trainer.logger"),
        (["trainer.logprobs_chunk_size=null"], "trainer.logprobs_chunk_size"),
        (["generator.eval_sampling_params.top_p=0.9"], "generator.eval_sampling_params.temperature"),
        (["trainer.placement.policy_num_nodes=4", f"{ENGINE}.num_engines=8"], "trainer.placement.policy_num_nodes"),
        (["data.dataloader.persistent_workers=true", "data.dataloader.num_workers=0"], "data.dataloader.persistent_workers"),
    ],
)  # fmt: skip
def test_each_broken_rule_is_found_on_its_key(changes: list[str], field: str) -> None:
    found = problems(_reference(*changes), world_gpus=6, environment=())
    assert field in [problem.field for problem in found]
    assert all(problem.rule and problem.fix for problem in found)


def test_rules_about_the_cluster_need_the_cluster() -> None:
    big = _reference("trainer.placement.policy_num_nodes=4", f"{ENGINE}.num_engines=8")
    assert problems(big) == []
    assert problems(_reference("trainer.logger=wandb")) == []
    assert problems(_reference("trainer.logger=wandb"), environment={"WANDB_API_KEY"}) == []


def test_defaults_are_skyrls() -> None:
    full = with_defaults({"trainer.max_prompt_length": 100})
    assert full["generator.max_input_length"] == 100
    assert full["generator.eval_sampling_params.temperature"] == 0.0  # greedy unless a key of the section is given
    assert with_defaults({"generator.eval_sampling_params.top_p": 0.5})["generator.eval_sampling_params.temperature"] == 1.0


@pytest.mark.parametrize(
    ("avg_score", "format_rate", "rate"),
    [(0.825, 1.0, 0.78125), (0.2, 1.0, 0.0), (1.0, 1.0, 1.0), (0.19999, 1.0, 0.0), (0.625, 0.0, 0.78125)],
)
def test_solve_rate_is_not_pass_at_1(avg_score: float, format_rate: float, rate: float) -> None:
    assert solve_rate_from_log(avg_score, format_rate) == pytest.approx(rate, abs=1e-4)


def test_import_stays_light() -> None:
    code = "import sys, training.skyrl; print([m for m in ('yaml', 'pydantic', 'omegaconf', 'ray', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "text",
    ["010", "1:1", "1:30.5", "!!int 010", "[1,[010]]", "!!bool abc", "!!int abc", "!!int", "!!float abc", "!!timestamp abc", "&a [*a]",
     "[&a 1,*a]",
     "9" * 5000, "0x" + "f" * 5000, '"\\ud800"', "[" * 3000],
    ids=lambda text: text[:20],
)  # fmt: skip
@pytest.mark.parametrize("name", ["trainer.epochs", f"{KWARGS}.k", "trainer.run_name"])
def test_a_value_that_would_be_another_on_the_node_is_a_problem(name: str, text: str) -> None:
    values, found = parse([f"{name}={text}"])
    assert values == {}
    assert [problem.field for problem in found] == [name]
    assert str(found[0]).count("\n") == 0


@pytest.mark.parametrize("text", ["010", "1:30", "-07", "00"])
def test_text_that_yaml_reads_as_a_number_is_quoted_when_written(text: str) -> None:
    assert render({"trainer.run_name": text}) == [f'trainer.run_name="{text}"']
    assert parse(render({"trainer.run_name": text})) == ({"trainer.run_name": text}, [])
