"""`reproduce`: the printed commands submit the same thing again, or it is refused."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from config.load import ROOT, load
from config.problems import Unreachable
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from tests.training.fixtures import ray, shared
from tests.training.scripted import Scripted
from training import jobs, keeping, reproduce, run

__all__ = ["ray", "shared"]


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def own_environment(tmp_path: Path) -> Path:
    """An environment file outside of the repository."""
    path = tmp_path / "mine.yaml"
    path.write_text((ROOT / "environments/reference.yaml").read_text())
    return path


SETTINGS = (
    "trainer.epochs=7",
    "trainer.placement.colocate_all=false",
    "trainer.placement.policy_num_nodes=2",
    "generator.inference_engine.tensor_parallel_size=2",
    "trainer.micro_train_batch_size_per_gpu=2",
    "trainer.project_name='a b; $(x)'",
    "trainer.policy.optimizer_config.lr=1e-6",
)


@pytest.mark.parametrize("settings", [(), ("trainer.epochs=7", "trainer.project_name='a b; $(x)'"), SETTINGS], ids=len)
def test_the_printed_commands_submit_the_same_again(
    settings: tuple[str, ...], own_environment: Path, ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = load(str(own_environment))
    run_folder.attempt(_plain(ray), "", env=env, settings=settings)
    code, out, err = call(["--env", str(own_environment), "reproduce", "maze-1", "--as", "maze-2"], capsys)
    assert code == 0, err
    checkout, _, export, submit = out.splitlines()
    assert checkout == f"git checkout {'a' * 40}"
    assert shlex.split(export) == ["export", f"HYPERPOD_RL_ENV={own_environment}"]
    words = shlex.split(submit)
    assert words[:4] == ["hyperpod-rl", "submit", "--run-id", "maze-2"]
    assert words.count("--set") == len(settings)
    again = run.specify(env, run_id="maze-2", settings=[word for before, word in itertools.pairwise(words) if before == "--set"])
    before = run.specify(env, run_id="maze-1", settings=settings)
    assert json.loads(json.dumps(dict(again.overrides)).replace("maze-2", "maze-1")) == before.overrides
    assert "named by a tag" in err
    assert "revision is main, no commit" in err


def _plain(ray: Scripted) -> Scripted:
    ray.script = [("", "SUCCEEDED", "")]
    return ray


def test_reproduce_from_the_record_when_the_cluster_is_gone(
    own_environment: Path, ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = load(str(own_environment))
    run_folder.attempt(_plain(ray), "", env=env, settings=("trainer.epochs=7",))
    keeping.history(env, "maze-1", connection=connection(ray, env))
    words = ["--env", str(own_environment), "reproduce", "maze-1", "--json"]
    with_cluster = json.loads(call(words, capsys)[1])

    def gone(*_: Any, **__: Any) -> Any:
        raise Unreachable("no such cluster")

    monkeypatch.setattr(jobs, "connect", gone)
    assert json.loads(call(words, capsys)[1]) == with_cluster
    assert json.loads(call([*words, "--offline"], capsys)[1]) == with_cluster
    assert with_cluster["commands"][-1] == "hyperpod-rl submit --run-id maze-1-again --set trainer.epochs=7"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code, out, err = call([*words], capsys)
    assert (code, out) == (2, "")
    return err


def test_what_cannot_be_reproduced_is_refused(
    own_environment: Path, ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = load(str(own_environment))
    words = ("--env", str(own_environment), "reproduce", "maze-1")
    assert "neither the Ray cluster nor a record" in refused(capsys, *words)
    run_folder.attempt(_plain(ray), "", env=env, dirty=True)
    assert "with uncommitted changes" in refused(capsys, *words)
    ray.jobs["maze-1-a1"].metadata["dirty"] = "false"  # type: ignore[index]
    assert "under the same run id" in refused(capsys, *words, "--as", "maze-1")
    data = yaml.safe_load(own_environment.read_text())
    data["training"]["base_model"] = "/shared/models/other"
    own_environment.write_text(yaml.safe_dump(data))
    assert "trainer.policy.model.path was" in refused(capsys, *words)
    assert "this checkout does not have it" in refused(capsys, "reproduce", "maze-1")
    ray.jobs["maze-1-a1"].metadata["commit"] = "unknown"  # type: ignore[index]
    assert "from outside of a git checkout" in refused(capsys, *words)


def test_the_environment_is_the_one_of_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        told = ("git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.com", *words)
        return subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()

    text = (ROOT / "environments/reference.yaml").read_text()
    file = tmp_path / "environments" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(text)
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    ray = FakeRay()
    run_folder.attempt(ray, "", settings=("trainer.epochs=7",))
    ray.jobs["maze-1-a1"].metadata["commit"] = commit  # type: ignore[index]
    what = reproduce.submitted("maze-1", attempts=jobs.attempts(connection(ray), "maze-1"), record=None)
    assert what is not None
    file.write_text(text.replace("trainer.epochs: 20", "trainer.epochs: 3"))  # today's file is another one
    made = reproduce.reproduce(what, environment_name=str(file), new_run_id="maze-2", root=tmp_path)
    assert list(made.commands) == [
        f"git checkout {commit}", "make setup", "export HYPERPOD_RL_ENV=environments/mine.yaml",
        "hyperpod-rl submit --run-id maze-2 --set trainer.epochs=7",
    ]  # fmt: skip
