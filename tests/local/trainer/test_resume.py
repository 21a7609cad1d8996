"""What is in the checkpoint folder when a run is submitted again: lost markers, junk, folders of training that is redone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from local.trainer.checkpoint import MARKER
from local.trainer.rollout import in_process
from local.trainer.settings import Settings
from local.trainer.train import Run

Tiny = Callable[..., Settings]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def _train(settings: Settings, *, kill_before: str | None = None) -> tuple[list[str], list[int]]:
    """Train in this process, dying before the write of that name. Returns the log and the steps that were reported."""
    log: list[str] = []
    steps: list[int] = []

    def progress(name: str) -> None:
        if name == kill_before:
            raise Killed

    Run(settings, in_process, log=log.append, log_step=lambda n, m: steps.append(n), progress=progress).train()
    return log, steps


def _resumed(log: list[str]) -> str:
    return next((line for line in log if line.startswith("Resumed from ")), "afresh")


def _checkpoints(folder: Path) -> Path:
    return folder / "runs/r/ckpts"


def _final(folder: Path) -> bytes:
    return (folder / "runs/r/exports/global_step_4/policy/adapter_model.safetensors").read_bytes()


@pytest.fixture
def wanted(tiny: Tiny, folder: Path) -> bytes:
    """The final adapter of the undisturbed run, all of whose four checkpoints are kept; its exports are then removed."""
    _train(tiny(keep=-1))
    found = _final(folder)
    shutil.rmtree(folder / "runs/r/exports")
    return found


def test_old_marker_does_not_cost_what_is_written_after_it(tiny: Tiny, folder: Path, wanted: bytes) -> None:
    checkpoints = _checkpoints(folder)
    (checkpoints / MARKER).write_text("1")
    with pytest.raises(Killed):
        _train(tiny(), kill_before="global_step_3: publish")
    assert {path.name for path in checkpoints.glob("global_step_*")} == {"global_step_1", "global_step_2"}
    assert {path.name for path in checkpoints.glob("superseded-*")} == {"superseded-global_step_3", "superseded-global_step_4"}
    log, _ = _train(tiny())
    assert _resumed(log) == "Resumed from global_step_2"  # the step that the attempt before had done is not lost
    assert {path.name for path in checkpoints.glob("global_step_*")} == {"global_step_3", "global_step_4"}
    assert _final(folder) == wanted


def test_redone_checkpoints_are_announced_and_the_marked_one_stays_until_the_marker_has_moved(
    tiny: Tiny, folder: Path, wanted: bytes
) -> None:
    checkpoints = _checkpoints(folder)
    with pytest.raises(Killed):
        _train(tiny(resume_mode="none"), kill_before="marker")
    assert (checkpoints / MARKER).read_text() == "4"
    assert (checkpoints / "global_step_4").is_dir()
    log, steps = _train(tiny(resume_mode="none"))
    assert any("sets aside" in line and "global_step_4" in line for line in log)
    assert steps == [0, 1, 2, 3, 4]
    assert (checkpoints / "superseded-global_step_4").is_dir()
    assert _final(folder) == wanted


def test_stale_checkpoint_between_two_saves_is_no_fallback(tiny: Tiny, folder: Path, wanted: bytes) -> None:
    _train(tiny(resume_mode="from_path", resume_path=_checkpoints(folder) / "global_step_2", ckpt_interval=2))
    assert {path.name for path in _checkpoints(folder).glob("global_step_*")} == {"global_step_2", "global_step_4"}
    assert _final(folder) == wanted


def _no_marker(marker: Path) -> None:
    marker.unlink()


def _folder_as_marker(marker: Path) -> None:
    marker.unlink()
    marker.mkdir()
    (marker / "x").touch()


@pytest.mark.parametrize(
    "damage",
    [
        _no_marker,
        _folder_as_marker,
        *(lambda marker, junk=junk: marker.write_bytes(junk) for junk in (b"", b"junk", b"\xff\x00\xfe", b"-1", b"9" * 5000)),
    ],
    ids=["none", "folder", "empty", "junk", "binary", "negative", "huge"],
)
def test_without_a_good_marker_the_newest_whole_checkpoint_is_used(
    tiny: Tiny, folder: Path, wanted: bytes, damage: Callable[[Path], None]
) -> None:
    checkpoints = _checkpoints(folder)
    (checkpoints / "global_step_4" / "trainer_state.pt").unlink()
    damage(checkpoints / MARKER)
    log, steps = _train(tiny())
    assert any(MARKER in line and "newest whole checkpoint" in line for line in log)
    assert _resumed(log) == "Resumed from global_step_3"
    assert max(steps) == 4
    assert (checkpoints / MARKER).read_text() == "4"
    assert _final(folder) == wanted


def test_marker_that_names_a_missing_checkpoint_is_said(tiny: Tiny, folder: Path, wanted: bytes) -> None:
    (_checkpoints(folder) / MARKER).write_text("9")
    shutil.rmtree(_checkpoints(folder) / "global_step_4")
    log, _ = _train(tiny())
    assert any("names global_step_9" in line for line in log)
    assert _resumed(log) == "Resumed from global_step_3"
    assert _final(folder) == wanted


@pytest.mark.parametrize(
    "junk",
    [b"{}", b"null", b"", b"junk", b"\xff\xfe", b"[]", b'["trainer_state.pt"]', b"3", b'{"trainer_state.pt": 3}', b"[" * 100_000],
    ids=["{}", "null", "empty", "junk", "binary", "list", "names", "number", "value", "deep"],
)
def test_bad_digests_are_torn(tiny: Tiny, folder: Path, wanted: bytes, junk: bytes) -> None:
    (_checkpoints(folder) / "global_step_4" / "digests.json").write_bytes(junk)
    log, _ = _train(tiny())
    assert any("global_step_4 is torn" in line for line in log)
    assert _resumed(log) == "Resumed from global_step_3"
    assert _final(folder) == wanted


def test_foreign_names_are_left_alone(tiny: Tiny, folder: Path, wanted: bytes) -> None:
    checkpoints = _checkpoints(folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    shutil.rmtree(checkpoints / "global_step_4")
    links = ["global_step_4", "global_step_9", ".tmp-global_step_2-1"]
    for name in links:
        (checkpoints / name).symlink_to(elsewhere)
    (checkpoints / "global_step_10").symlink_to(folder / "nowhere")
    for name in ("global_step_03", ".tmp-y", "global_step_x"):
        (checkpoints / name).mkdir()
    (checkpoints / "global_step_7").touch()
    log, _ = _train(tiny())
    assert _resumed(log) == "Resumed from global_step_3"
    assert (elsewhere / "mine").exists()
    assert (checkpoints / "superseded-global_step_4").is_symlink()  # it stood where the run had to write
    left = {path.name for path in checkpoints.iterdir()}
    assert {*links, "global_step_10", "global_step_03", ".tmp-y", "global_step_x", "global_step_7"} <= left
    assert {"global_step_3", "global_step_4"} <= left
    assert "global_step_2" not in left
    assert _final(folder) == wanted
