"""The run specification: what is derived, what is refused, what the job carries."""

from __future__ import annotations

import shlex
import subprocess
from datetime import UTC, datetime

import pytest

from config.environment import Environment
from config.load import load
from config.problems import Refused
from training import run, skyrl

CODE = run.Code("0" * 40, dirty=False)


def specify(env: Environment | None = None, *, run_id: str = "maze-1", settings: tuple[str, ...] = ()) -> run.Specification:
    return run.specify(env or load("reference"), run_id=run_id, settings=settings, code=CODE)


def changed(env: Environment, **training: object) -> Environment:
    return env.model_copy(update={"training": env.training.model_copy(update=training)})


def test_everything_of_a_run_lies_below_its_folder() -> None:
    overrides = specify().overrides
    for key in ("trainer.ckpt_path", "trainer.export_path", "trainer.log_path", "trainer.policy.model.lora.lora_sync_path"):
        assert str(overrides[key]).startswith("/shared/runs/maze-1/"), key
    assert overrides["trainer.resume_mode"] == "latest"
    assert not [value for value in overrides.values() if isinstance(value, str) and value.startswith(("s3://", "/tmp"))]


def test_placement_follows_from_the_instance_groups() -> None:
    overrides = specify().overrides
    assert overrides["trainer.placement.policy_num_nodes"] == 3
    assert overrides["trainer.placement.policy_num_gpus_per_node"] == 2
    assert overrides["generator.inference_engine.num_engines"] == 6


def test_rollouts_apart_from_training_share_the_nodes() -> None:
    settings = ("trainer.placement.colocate_all=false", "trainer.placement.policy_num_nodes=2")
    overrides = specify(settings=(*settings, "generator.inference_engine.tensor_parallel_size=2")).overrides
    assert overrides["trainer.placement.policy_num_nodes"] == 2
    assert overrides["generator.inference_engine.num_engines"] == 1


@pytest.mark.parametrize("nodes", [0, 3, 4])
def test_rollouts_apart_need_a_node(nodes: int) -> None:
    with pytest.raises(Refused, match=r"share 3 worker nodes"):
        specify(settings=("trainer.placement.colocate_all=false", f"trainer.placement.policy_num_nodes={nodes}"))


def test_engines_must_fill_the_gpus() -> None:
    with pytest.raises(Refused, match="engines of 4 GPUs"):
        specify(settings=("generator.inference_engine.tensor_parallel_size=4",))


@pytest.mark.parametrize(
    "setting",
    ["trainer.ckpt_path=/shared/elsewhere", "trainer.resume_mode=none", "trainer.placement.policy_num_nodes=2", "trainer.run_name=x",
     "data.train_data=[/shared/x.parquet]", "generator.inference_engine.num_engines=3", "trainer.policy.model.path=/shared/models/x"],
)  # fmt: skip
def test_what_is_derived_is_not_set_by_hand(setting: str) -> None:
    with pytest.raises(Refused) as refused:
        specify(settings=(setting,))
    (problem,) = refused.value.problems
    assert problem.field == f"--set {setting.partition('=')[0]}"
    assert "leave it out" in problem.fix


def test_a_derived_value_given_as_it_is_does_no_harm() -> None:
    assert specify(settings=("trainer.resume_mode=latest",)).digest == specify().digest


def test_all_problems_at_once() -> None:
    with pytest.raises(Refused) as refused:
        specify(run_id="a b", settings=("trainer.epoch=3", "trainer.epochs=abc", "trainer.resume_mode=none"))
    assert [problem.field for problem in refused.value.problems] == [
        "run id",
        "--set trainer.epoch",
        "--set trainer.epochs",
        "--set trainer.resume_mode",
    ]


def test_a_mistake_in_the_environment_file_is_named_there() -> None:
    with pytest.raises(Refused) as refused:
        specify(changed(load("reference"), overrides={"trainer.epocs": 3}))
    assert refused.value.problems[0].field == "training.overrides.trainer.epocs"


@pytest.mark.parametrize("run_id", ["", "a b", "x" * 300, "Maze", "-a", "a-", "a/b", "a\n", "ä", "a.b", "x" * 49, "../a"])
def test_run_ids_that_are_none(run_id: str) -> None:
    with pytest.raises(Refused, match="1 to 48"):
        specify(run_id=run_id)


def test_set_wins_over_the_environment() -> None:
    assert specify(settings=("trainer.epochs=5",)).overrides["trainer.epochs"] == 5


def test_the_job() -> None:
    job = specify().job(3)
    assert job.submission_id == "maze-1-a3"
    assert job.metadata["run_id"] == "maze-1"
    assert job.metadata["attempt"] == "3"
    variables = job.runtime_env["env_vars"]
    assert variables["PYTHONPATH"] == "/home/ray/skyrl"  # workers import the maze environment from there
    assert variables["SKYRL_RAY_PG_TIMEOUT_IN_S"] == "600"
    assert "working_dir" not in job.runtime_env
    assert all(isinstance(value, str) for value in (*job.metadata.values(), *variables.values()))


def test_the_same_input_gives_the_same_digest_and_any_change_another() -> None:
    assert specify().digest == specify().digest
    assert specify(settings=("trainer.epochs=5",)).digest != specify().digest
    assert run.specify(load("reference"), run_id="maze-1", code=run.Code("1" * 40, dirty=True)).digest == specify().digest


def test_attempts_of_a_run_have_one_digest() -> None:
    specification = specify()
    assert specification.job(1).metadata["specification"] == specification.job(2).metadata["specification"]


def test_the_default_run_id_tells_the_time() -> None:
    run_id = run.default_run_id(load("reference"), datetime(2026, 11, 29, 8, 5, 1, tzinfo=UTC))
    assert run_id == "maze-grpo-20261129-080501"
    assert specify(run_id=run_id).run_id == run_id


def test_the_local_entrypoint_marks_its_attempt_and_becomes_the_trainer() -> None:
    *command, script = shlex.split(specify(load("local")).entrypoint)
    assert command == ["exec", "bash", "-c"]
    assert script.splitlines()[-1].startswith("exec python -m local.trainer --env_variant sft ")
    assert "prepare" not in script


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("trainer.policy.model.lora.rank=0", "trains an adapter only"),
        ("trainer.strategy=megatron", "does not do this"),
        ("generator.n_samples_per_prompt=1000000000", "1 to 4096"),
        ("trainer.policy.model.lora.rank=100000", "highest rank that vLLM loads"),
    ],
)
def test_what_the_local_trainer_cannot_do_is_refused_before_it_is_submitted(setting: str, word: str) -> None:
    with pytest.raises(Refused, match=word):
        specify(load("local"), settings=(setting,))


def test_checks_of_a_trainer_that_is_not_here() -> None:
    local = load("local")
    env = local.model_copy(update={"training": local.training.model_copy(update={"checks": "no_such_module:check"})})
    with pytest.raises(Refused, match=r"training\.checks = no_such_module:check: it cannot be imported here"):
        specify(env)


def test_overrides_reach_the_command_line_as_skyrl_reads_them() -> None:
    specification = specify(load("local"))
    script = shlex.split(specification.entrypoint)[-1]
    words = [word for word in shlex.split(script.splitlines()[-1]) if "=" in word]
    values, problems = skyrl.parse(words)
    assert not problems
    assert values == dict(specification.overrides)


def test_a_command_that_linux_would_not_start_is_refused() -> None:
    fine = specify(load("reference"), settings=(f"trainer.project_name={'x' * 100_000}",))
    subprocess.run(["true", fine.entrypoint], check=True)  # one word of a command line
    with pytest.raises(Refused, match=r"trainer\.project_name = x+\.\.\.: the command would have \d+ bytes"):
        specify(load("reference"), settings=(f"trainer.project_name={'x' * 130_000}",))
