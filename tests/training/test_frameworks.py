"""Other trainers than SkyRL behind the same commands: verl, and any command at all."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli import main
from config.environment import Environment
from config.load import ROOT, load
from config.problems import Refused
from tests.training.fakes import FakeRay, connection
from tests.training.fixtures import ray, shared
from tests.training.scripted import Scripted
from training import follow, frameworks, jobs, layout, reproduce, run

__all__ = ["ray", "shared"]
VERL = {"data.train_batch_size": 24, "actor_rollout_ref.actor.ppo_mini_batch_size": 12, "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1, "trainer.total_epochs": 5, "trainer.save_freq": 10}  # fmt: skip
VERL_LOG = (
    "(TaskRunner pid=77) step:0 - val-core/maze/reward/mean@1:0.25\n"
    "\x1b[36m(TaskRunner pid=77)\x1b[0m step:1 - critic/rewards/mean:0.5 - timing_s/step:12.5 - actor/lr:1e-06 - x/y:np.float64(2.0)\n"
    "(WorkerDict pid=9) one step: 4 of many\n"
    "(TaskRunner pid=77) step:2 - critic/rewards/mean:nan - training/global_step:2\n"
)


def made(framework: str, *, entrypoint: str = "trainer", overrides: dict[str, Any] | None = None, **command: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((ROOT / "environments/local.yaml").read_text())
    data["training"] |= {"framework": framework, "entrypoint": entrypoint, "checks": None, "overrides": overrides or {}}
    if command:
        data["training"]["command"] = command
    return data


def environment(tmp_path: Path, data: dict[str, Any]) -> Environment:
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(data))
    return load(str(file))


def started(specification: run.Specification, tmp_path: Path) -> list[str]:
    """The words that the trainer gets when a real shell runs the job."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/trainer").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/words; echo "$RUN_FOLDER" >> {tmp_path}/words\n')
    (tmp_path / "bin/trainer").chmod(stat.S_IRWXU)
    variables = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HYPERPOD_RL_ATTEMPT": "1"}
    done = subprocess.run(specification.entrypoint, shell=True, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "words").read_text().splitlines()


def test_a_plain_command_and_how_it_resumes(tmp_path: Path, shared: Path) -> None:
    data = made("command", overrides={"epochs": 3}, resume_marker="checkpoints/latest", resume_words=["--resume", "a b"])
    env = environment(tmp_path, data)
    specification = run.specify(env, run_id="maze-1", settings=("lr=1e-4",))
    assert started(specification, tmp_path) == ["epochs=3", "lr=1e-4", str(shared)]
    (shared / "checkpoints").mkdir(parents=True)
    (shared / "checkpoints/latest").touch()
    assert started(specification, tmp_path) == ["epochs=3", "lr=1e-4", "--resume", "a b", str(shared)]


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ({"step_pattern": "iteration (\\d+)"}, "no group named step"), ({"step_pattern": "("}, "no regular expression"),
        ({"resume_words": ["--resume"]}, "set training.command.resume_marker"),
        ({"resume_marker": "/etc/x"}, "relative to the run's folder"),
    ],
)  # fmt: skip
def test_a_plain_command_that_cannot_work(command: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=word):
        run.specify(environment(tmp_path, made("command", **command)), run_id="maze-1")


def test_words_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no key=value word"):
        run.specify(environment(tmp_path, made("command")), run_id="maze-1", settings=("rm -rf",))


def test_verl_gets_its_paths_and_resumes_by_itself(tmp_path: Path, shared: Path) -> None:
    env = environment(tmp_path, made("verl", overrides=VERL))
    words = started(run.specify(env, run_id="maze-1", settings=("trainer.total_epochs=7",)), tmp_path)
    assert {"trainer.default_local_dir=/shared/runs/maze-1/checkpoints", "trainer.resume_mode=auto", "trainer.nnodes=2",
            "trainer.n_gpus_per_node=2", "trainer.total_epochs=7", "data.train_batch_size=24"} <= set(words)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"data.train_batch_size": 5, "actor_rollout_ref.rollout.n": 1, "actor_rollout_ref.actor.ppo_mini_batch_size": 5}, "over 4 GPUs"),
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 48}, "above data.train_batch_size"),
        ({"actor_rollout_ref.rollout.tensor_model_parallel_size": 3}, "does not divide the 2 GPUs"),
        ({"trainer.save_freq": -1}, "a fault costs the whole run"),
        ({"data.train_batch_size": "many"}, "a whole number"),
        ({"trainer.default_local_dir": "/tmp/x"}, "follows from the environment"),
    ],
)  # fmt: skip
def test_verl_rules(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    run.specify(environment(tmp_path, made("verl", overrides=VERL)), run_id="maze-1")
    with pytest.raises(Refused, match=word):
        run.specify(environment(tmp_path, made("verl", overrides=VERL | change)), run_id="maze-1")


def test_verl_is_followed(tmp_path: Path) -> None:
    env, fake = environment(tmp_path, made("verl", overrides=VERL)), FakeRay()
    link = connection(fake, env)
    attempt = jobs.submit(link, run.specify(env, run_id="maze-1")).attempt
    fake.logs["maze-1-a1"] = VERL_LOG
    fake.end("maze-1-a1", "SUCCEEDED")
    steps = [event for event in follow.follow(link, attempt) if isinstance(event, follow.StepSeen)]
    assert [(step.step, step.reward, step.step_seconds) for step in steps] == [(0, None, None), (1, 0.5, 12.5), (2, None, None)]
    assert steps[1].metrics["x/y"] == 2.0
    what = reproduce.submitted("maze-1", attempts=jobs.attempts(link, "maze-1"), record=None)
    assert what is not None
    assert reproduce.again(env, what).digest == what.specification


@given(st.lists(st.integers(0, len(VERL_LOG)), max_size=8), st.binary(max_size=60))
def test_any_cutting_and_any_garbage_give_the_same_steps(cuts: list[int], garbage: bytes) -> None:
    from training.frameworks import verl

    data, events = garbage + b"\n" + VERL_LOG.encode(), []
    parser, last = verl.parser(load("local")), 0
    for cut in (*sorted(cuts), len(data)):
        events += parser.feed(data[last:cut])
        last = max(last, cut)
    assert [event.number for event in (*events, *parser.finish())][-3:] == [0, 1, 2]  # type: ignore[union-attr]


def test_a_plain_commands_log(tmp_path: Path) -> None:
    data = made("command", step_pattern=r"iter (?P<step>\d+) loss=(?P<loss>[\d.]+) r=(?P<reward>\S+) t=(?P<seconds>\S+)")
    parser = frameworks.parser(environment(tmp_path, data))
    events = [*parser.feed(b"\x1b[1mhello\x1b[0m\niter 3 loss=0.5 r=0.25 t=2.5\nno iter\niter 4 loss=0.4 r=x t=1"), *parser.finish()]
    assert [(event.number, event.metrics) for event in events] == [  # type: ignore[union-attr]
        (3, {"loss": 0.5, "reward": 0.25, "seconds": 2.5}), (4, {"loss": 0.4, "reward": "x", "seconds": 1}),
    ]  # fmt: skip


def test_the_commands_of_the_launcher(ray: Scripted, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment(tmp_path, made("command", overrides={"epochs": 3}, step_pattern=r"iter (?P<step>\d+) r=(?P<reward>\S+)"))
    file = str(tmp_path / "other.yaml")
    ray.script = [("iter 1 r=0.5\niter 2 r=0.75\n", "SUCCEEDED", "")]
    assert main.run(["--env", file, "preflight", "--offline", "--run-id", "maze-1", "--plan"]) == 0
    assert main.run(["--env", file, "submit", "--run-id", "maze-1"]) == 0
    capsys.readouterr()
    assert main.run(["--env", file, "follow", "maze-1", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(event["step"], event["reward"]) for event in events if event["event"] == "step"] == [(1, 0.5), (2, 0.75)]
    assert (shared / "steps.jsonl").read_text().count("\n") == 2
    assert layout.SHARED_VARIABLE in os.environ
