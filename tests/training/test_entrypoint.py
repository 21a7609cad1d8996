"""The script on the cluster, run by a real shell with small programs in the place of SkyRL's."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from config.environment import Environment
from config.load import load
from training import entrypoint, layout


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    base = load("reference")
    code = tmp_path / "code"
    code.mkdir()
    training = base.training.model_copy(
        update={
            "base_model": f"{tmp_path}/shared/models/base",
            "code_path": str(code),
            "entrypoint": "trainer --variant sft",
            "dataset_command": "dataset",
        }
    )
    storage = base.storage.model_copy(
        update={"file_system": base.storage.file_system.model_copy(update={"mount_path": f"{tmp_path}/shared"})}
    )
    return base.model_copy(update={"training": training, "storage": storage})


def program(tmp_path: Path, name: str, text: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(stat.S_IRWXU)


def start(env: Environment, tmp_path: Path, overrides: list[str]) -> subprocess.CompletedProcess[str]:
    program(tmp_path, "trainer", f'printf "%s\\n" "$@" > {tmp_path}/arguments; pwd > {tmp_path}/where')
    command = entrypoint.command(env, run_id="r1", folder=layout.run_folder(env, "r1"), overrides=overrides)
    variables = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HYPERPOD_RL_ATTEMPT": "2"}
    return subprocess.run(command, shell=True, env=variables, capture_output=True, text=True, timeout=60)


GOOD_DATASET = (
    'while [ $# -gt 0 ]; do [ "$1" = --output_dir ] && out=$2; shift; done; echo rows > "$out/train.parquet"; echo run >> "$COUNT"'
)


def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dataset: str = GOOD_DATASET, model: bool = True) -> None:
    monkeypatch.setenv("COUNT", f"{tmp_path}/count")
    program(tmp_path, "dataset", dataset)
    folder = tmp_path / "shared/models/base"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    if model:
        (folder / ".complete").touch()


def test_prepares_then_trains(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch)
    done = start(env, tmp_path, ["trainer.epochs=3", "data.train_data=[a b, 'c']", "x=$HOME`id`"])
    assert done.returncode == 0, done.stderr
    # Each override reaches the trainer as one word, whatever it holds.
    assert (tmp_path / "arguments").read_text().splitlines() == [
        "--variant",
        "sft",
        "trainer.epochs=3",
        "data.train_data=[a b, 'c']",
        "x=$HOME`id`",
    ]
    assert (tmp_path / "where").read_text().strip() == env.training.code_path
    for rows, held_out in ((256, False), (64, True)):
        assert (Path(entrypoint.dataset_folder(env, rows=rows, held_out=held_out)) / "train.parquet").is_file()
    assert (tmp_path / "shared/runs/r1/attempts/2").is_file()


def test_the_next_attempt_makes_nothing_again(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch)
    start(env, tmp_path, [])
    prepare(tmp_path, monkeypatch, dataset="exit 9")
    done = start(env, tmp_path, [])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "count").read_text().splitlines() == ["run", "run"]


def test_half_a_model_starts_no_trainer(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch, model=False)
    done = start(env, tmp_path, [])
    assert done.returncode != 0
    assert "hyperpod-rl cluster up brings it" in done.stderr
    assert not (tmp_path / "arguments").exists()
    assert not (tmp_path / "count").exists()


def test_an_interrupted_dataset_is_made_again(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch, dataset=GOOD_DATASET + "; kill -9 $PPID")
    assert start(env, tmp_path, []).returncode != 0
    target = Path(entrypoint.dataset_folder(env, rows=256, held_out=False))
    assert not target.exists()
    assert not (tmp_path / "arguments").exists()
    prepare(tmp_path, monkeypatch)
    assert start(env, tmp_path, []).returncode == 0
    assert (target / ".complete").is_file()


def test_a_folder_without_marker_is_not_touched(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch)
    half = Path(entrypoint.dataset_folder(env, rows=256, held_out=False))
    half.mkdir(parents=True)
    (half / "train.parquet").write_text("half")
    done = start(env, tmp_path, [])
    assert done.returncode != 0
    assert f"touch {half}/.complete" in done.stderr
    assert not (tmp_path / "arguments").exists()


def test_the_trainers_exit_code_is_the_jobs(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch)
    command_env = env.model_copy(update={"training": env.training.model_copy(update={"entrypoint": "bash -c 'exit 7'"})})
    assert start(command_env, tmp_path, []).returncode == 7


def test_what_the_trainer_prints_is_kept_beside_the_run_and_a_stop_is_its_own(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, monkeypatch)
    program(tmp_path, "trainer", f'trap "echo stopping >&2; exit 5" TERM; echo out; touch {tmp_path}/up; while :; do sleep 0.05; done')
    command = entrypoint.command(env, run_id="r1", folder=layout.run_folder(env, "r1"), overrides=[])
    variables = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HYPERPOD_RL_ATTEMPT": "1"}
    with (tmp_path / "driver.log").open("w") as log:  # as Ray gives a job one file for both streams
        process = subprocess.Popen(command, shell=True, env=variables, stdout=log, stderr=log, start_new_session=True)
    until(lambda: (tmp_path / "up").exists())
    os.killpg(process.pid, signal.SIGTERM)  # as Ray does: the shell and all below it
    assert process.wait(30) == 5
    copy = tmp_path / "shared/runs/r1/logs/driver-a1.log"
    until(lambda: copy.read_text() == (tmp_path / "driver.log").read_text())
    assert [line for line in copy.read_text().splitlines() if line in ("out", "stopping")] == ["out", "stopping"]


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.parametrize("mounted", [True, False])
def test_the_local_clouds_attempts_are_marked_below_its_folder_alone(
    mounted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(layout.SHARED_VARIABLE, raising=False)
    if mounted:
        monkeypatch.setenv(layout.SHARED_VARIABLE, f"{tmp_path}/a b")
    local = load("local")
    local = local.model_copy(update={"training": local.training.model_copy(update={"entrypoint": "trainer"})})
    done = start(local, tmp_path, ["x=1"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "arguments").read_text().splitlines() == ["x=1"]
    assert (tmp_path / "a b/runs/r1/attempts/2").is_file() == mounted
