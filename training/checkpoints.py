"""Checkpoints as they lie in a run's folder: which there are, and which one a new attempt goes on from. Nothing is written here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from training import layout

if TYPE_CHECKING:
    from config.environment import Environment

MARKER: Final = "latest_ckpt_global_step.txt"
# SkyRL writes the number bare (skyrl/train/utils/trainer_utils.py): `global_step_03` is a copy that somebody made, and no checkpoint.
_STEP: Final = re.compile(r"global_step_(0|[1-9][0-9]{0,8})")
_COUNT: Final = re.compile(r"0|[1-9][0-9]{0,8}")


def step_folders(folder: Path) -> Iterator[tuple[int, Path]]:
    """`global_step_N` folders of checkpoints or exports: (N, folder), rising. Links, files and other spellings are none."""
    try:
        matches = [(match, path) for path in folder.iterdir() if (match := _STEP.fullmatch(path.name))]
        names = [(int(match[1]), path) for match, path in matches if path.is_dir() and not path.is_symlink()]
    except OSError:
        return
    yield from sorted(names)


def marked(folder: Path) -> int | None:
    """The step that the marker names; None if there is no marker, or if it holds no step."""
    try:
        text = (folder / MARKER).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(text) if _COUNT.fullmatch(text) else None


def next_attempt(env: Environment, run_id: str) -> str:
    """What the run's next attempt would begin with, as far as it can be seen from here: a clause for people."""
    folder = layout.here(env, layout.run_folder(env, run_id).checkpoints)
    if folder is None:
        return "the next attempt goes on from its last checkpoint if it wrote one, else from step 0"
    step = marked(folder)
    if step is None:
        return "it wrote no checkpoint, so the next attempt begins at step 0"
    return f"the next attempt goes on from its checkpoint of step {step}"
