from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from local.trainer import shared
from local.trainer.checkpoint import MARKER, OtherRun
from local.trainer.policy import Lora
from local.trainer.rollout import in_process
from local.trainer.settings import Settings
from local.trainer.train import Run
from tests.local.trainer.conftest import make_base

Tiny = Callable[..., Settings]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def _train(settings: Settings, *, kill_at: int | None = None) -> tuple[list[str], list[str], dict[int, dict[str, float]]]:
    """Train in this process; `kill_at` raises at that write. Returns the log, the writes and the metrics by step."""
    log: list[str] = []
    writes: list[str] = []
    steps: dict[int, dict[str, float]] = {}

    def progress(name: str) -> None:
        writes.append(name)
        if kill_at is not None and len(writes) > kill_at:
            raise Killed

    Run(settings, in_process, log=log.append, log_step=lambda n, m: steps.update({n: dict(m)}), progress=progress).train()
    return log, writes, steps


def _contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_layout_is_skyrls(tiny: Tiny, folder: Path) -> None:
    _train(tiny())
    run = folder / "runs" / "r"
    checkpoints = {path.name for path in (run / "ckpts").iterdir()}
    assert checkpoints == {MARKER, "global_step_3", "global_step_4"}  # max_ckpts_to_keep=2
    assert (run / "ckpts" / MARKER).read_text() == "4"
    names = set(_contents(run / "ckpts" / "global_step_4"))
    assert names == {
        "trainer_state.pt",
        "data.pt",
        "digests.json",
        "policy/fsdp_config.json",
        "policy/huggingface/config.json",
        "policy/lora_adapter/adapter_model.safetensors",
        "policy/lora_adapter/adapter_config.json",
        *(f"policy/{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim", "extra_state") for rank in (0, 1)),
    }
    assert {path.name for path in (run / "exports").glob("global_step_*")} == {"global_step_2", "global_step_4"}
    exported = run / "exports" / "global_step_4" / "policy"
    assert {path.name for path in exported.iterdir()} == {"adapter_model.safetensors", "adapter_config.json", "config.json"}
    evaluations = run / "exports" / "dumped_evals"
    assert {path.name for path in evaluations.iterdir()} == {f"global_step_{step}_evals" for step in (0, 3, 4)}
    rows = [json.loads(line) for line in (evaluations / "global_step_4_evals" / "unknown.jsonl").read_text().splitlines()]
    assert [row["env_extras"]["seed"] for row in rows] == list(range(64))
    assert all(0 <= row["score"][-1] <= 1 and not any(row["score"][:-1]) for row in rows)


def test_everything_says_that_it_is_a_stand_in(tiny: Tiny, folder: Path) -> None:
    log, _, _ = _train(tiny())
    assert log[0].startswith(shared.STAND_IN)
    for path in (folder / "runs").rglob("*"):
        if path.is_file() and path.name != MARKER:
            assert b"stand-in trainer" in path.read_bytes(), path


def test_adapter_reads_as_peft_wrote_it(tiny: Tiny, folder: Path) -> None:
    _train(tiny())
    exported = folder / "runs" / "r" / "exports" / "global_step_4" / "policy"
    config = json.loads((exported / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["base_model_name_or_path"]) == ("LORA", 2, "/shared/models/base")
    with safe_open(exported / "adapter_model.safetensors", "numpy") as file:
        for module in config["target_modules"]:
            a, b = (file.get_tensor(f"base_model.model.{module}.lora_{side}.weight") for side in "AB")
            assert a.shape[0] == b.shape[1] == 2
            assert np.isfinite(b).all()
        assert "stand_in" in file.metadata()


def test_killed_at_any_write_and_resumed_ends_with_the_same_bytes(
    tiny: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    changes = {"max_steps": 3, "eval_interval": 2}
    _, writes, _ = _train(tiny(**changes))
    wanted = {name: value for name, value in _contents(folder / "runs/r").items() if "aggregated" not in name}
    assert len(writes) > 60
    for kill_at in range(0, len(writes), 7):
        root = tmp_path_factory.mktemp("killed")
        monkeypatch.setenv(shared.SHARED_VARIABLE, str(root))
        make_base(root)
        with pytest.raises(Killed):
            _train(tiny(**changes), kill_at=kill_at)
        _train(tiny(**changes))
        found = _contents(root / "runs/r")
        different = {name for name, value in wanted.items() if found.get(name) != value}
        # As SkyRL, it saves the checkpoint before the export and the evaluation of a step: those of the step at which it
        # died may be missing for good. Nothing else may differ, and the last step has everything.
        assert len({name.split("global_step_")[1][0] for name in different}) <= 1, writes[kill_at]
        assert all(name not in found and name.startswith("exports") and "global_step_3" not in name for name in different)
        assert not list(root.rglob(f"{shared.TEMPORARY}*"))


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_torn_newest_checkpoint_is_said_and_the_one_before_is_used(tiny: Tiny, folder: Path, damage: str) -> None:
    _train(tiny())
    adapter = folder / "runs/r/exports/global_step_4/policy/adapter_model.safetensors"
    wanted = adapter.read_bytes()
    adapter.unlink()
    victim = folder / "runs/r/ckpts/global_step_4/policy/model_world_size_2_rank_1.pt"
    content = victim.read_bytes()
    if damage == "remove":
        victim.unlink()
    else:
        victim.write_bytes(content[:-7] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    log, _, steps = _train(tiny())
    assert any("global_step_4 is torn" in line for line in log)
    assert "Resumed from global_step_3" in log
    assert max(steps) == 4
    assert adapter.read_bytes() == wanted


def test_finished_run_trains_nothing_more(tiny: Tiny, folder: Path) -> None:
    _train(tiny())
    before = _contents(folder / "runs" / "r" / "ckpts")
    log, _, steps = _train(tiny())
    assert "Resumed from global_step_4" in log
    assert log[-1] == "Training done!"
    assert set(steps) == {4}  # the evaluation before training, no step
    assert _contents(folder / "runs" / "r" / "ckpts") == before


def test_no_resume_starts_afresh(tiny: Tiny) -> None:
    _train(tiny())
    _, _, steps = _train(tiny(resume_mode="none"))
    assert set(steps) == {0, 1, 2, 3, 4}


def test_resume_from_a_path(tiny: Tiny, folder: Path) -> None:
    _train(tiny())
    path = folder / "runs" / "r" / "ckpts" / "global_step_3"
    log, _, steps = _train(tiny(resume_mode="from_path", resume_path=path))
    assert "Resumed from global_step_3" in log
    assert set(steps) == {3, 4}
    with pytest.raises(OtherRun, match="global_step_1"):
        _train(tiny(resume_mode="from_path", resume_path=path.with_name("global_step_1")))


def test_another_world_size_base_or_rank_is_refused(tiny: Tiny, folder: Path) -> None:
    _train(tiny())
    with pytest.raises(OtherRun, match="4 GPUs"):
        _train(tiny(gpus=4))
    with pytest.raises(OtherRun, match="rank"):
        _train(tiny(lora=Lora(3, 3)))
    make_base(folder, seed=1)
    with pytest.raises(OtherRun, match="base model"):
        _train(tiny())


def test_metrics_are_measured_and_consistent(tiny: Tiny, folder: Path) -> None:
    _, _, steps = _train(tiny())
    first = steps[1]
    assert first["trainer/global_step"] == 1
    assert first["trainer/epoch"] == 0
    assert 0 < first["environment/avg_format_success_rate"] < 1  # an untrained policy also says what cannot be parsed
    assert {"reward/avg_raw_reward", "reward/avg_pass_at_2", "timing/step", "policy/final_loss"} <= set(first)
    rows = (folder / "runs/r/exports/dumped_evals/global_step_3_evals/unknown.jsonl").read_text().splitlines()
    scores = [json.loads(row)["score"][-1] for row in rows]
    assert steps[3]["eval/all/avg_score"] == pytest.approx(sum(scores) / 64)


def test_shuffled_rewards_change_the_adapter(tiny: Tiny, folder: Path) -> None:
    adapter = folder / "runs/r/exports/global_step_4/policy/adapter_model.safetensors"
    _train(tiny(resume_mode="none"))
    straight = adapter.read_bytes()
    _train(tiny(resume_mode="none", shuffle_rewards=True))
    assert adapter.read_bytes() != straight


def test_foreign_model_folder_is_refused(tiny: Tiny, folder: Path) -> None:
    (folder / "models" / "base" / "config.json").write_text('{"model_type": "qwen3_vl"}')
    with pytest.raises(OtherRun, match="no base model of the stand-in"):
        _train(tiny())
