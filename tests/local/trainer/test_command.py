from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from local.trainer.__main__ import main
from local.trainer.console import line, step_message
from local.trainer.shared import SHARED_VARIABLE, on_this_machine, remove_left_overs, write_folder
from tests.local.trainer.conftest import TINY

ROOT = Path(__file__).resolve().parents[3]


def test_refuses_with_every_problem_and_creates_nothing(tmp_path: Path) -> None:
    overrides = [*TINY, "trainer.epoch=3", "trainer.seed=abc", "+trainer.tags=[a]"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), SHARED_VARIABLE: str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "local.trainer", "--env_variant", "sft", *overrides],
        cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "did you mean trainer.epochs" in done.stderr
    assert "trainer.seed = abc" in done.stderr
    assert "'+'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("trainer.algorithm.advantage_estimator=rloo", "advantage_estimator"),
        ("trainer.policy.model.path=Qwen/Qwen3-VL-8B-Instruct", "below /shared"),
        ("trainer.ckpt_path=/shared/../etc", "below /shared"),
        ("trainer.train_batch_size=500", "256 prompts"),
        ("trainer.policy.model.lora.rank=0", "adapter only"),
    ],
)
def test_refuses_what_the_stand_in_cannot_do(override: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = override.partition("=")[0]
    overrides = [word for word in TINY if not word.startswith(f"{name}=")]
    assert main(["--env_variant", "sft", *overrides, override]) == 2
    assert part in capsys.readouterr().err


def test_refuses_another_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--env_variant=instruct", *TINY]) == 2
    assert "--env_variant = instruct" in capsys.readouterr().err


def test_console_format_is_skyrls() -> None:
    metrics = {"trainer/global_step": 10, "eval/all/pass_at_1": 0.75, "policy/final_loss": 1e-6, "a/b": 2.0}
    text = line(step_message(10, metrics), at=datetime(2026, 11, 29, 14, 48, 4, 655000), origin=("m", "log", 189))
    first, *rest = text.split("\n")
    assert first == (
        "\x1b[32m2026-11-29 14:48:04.655\x1b[0m | \x1b[1m\x1b[32mINFO    \x1b[0m | "
        "\x1b[36mm\x1b[0m:\x1b[36mlog\x1b[0m:\x1b[36m189\x1b[0m - \x1b[1m\x1b[32mStep 10: "
    )
    assert rest == [
        "{'a/b': '2.0000',",
        " 'eval/all/pass_at_1': '0.7500',",
        " 'policy/final_loss': '0.0000',",
        " 'trainer/global_step': 10}\x1b[0m",
    ]
    assert ast.literal_eval(re.sub(r"\x1b\[\d+m", "", "\n".join(rest)))["trainer/global_step"] == 10


def test_shared_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_VARIABLE, raising=False)
    assert on_this_machine("/shared/runs/x") == Path("/shared/runs/x")
    monkeypatch.setenv(SHARED_VARIABLE, "/data")
    assert on_this_machine("/shared/runs/x") == Path("/data/runs/x")
    for path in ("/tmp/x", "shared/x", "/shared/a/../../x", "/sharedx", "s3://bucket/x"):
        with pytest.raises(ValueError, match="not below /shared"):
            on_this_machine(path)


def test_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "global_step_1"
    write_folder(target, {"a": b"old", "b/c": b"old"})

    def stop(name: str) -> None:
        if name.endswith("publish"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(target, {"a": b"new"}, progress=stop)
    assert (target / "a").read_bytes() == b"old"
    assert (target / "b/c").exists()
    remove_left_overs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]
    write_folder(target, {"a": b"new"})
    assert [path.name for path in target.iterdir()] == ["a"]
