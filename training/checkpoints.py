"""Checkpoints as they lie in a run's folder: which there are, and which one a new attempt goes on from. Nothing is written here."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config import names
from config.problems import Problem, Refused
from training import layout

if TYPE_CHECKING:
    from config.environment import Environment

MARKER: Final = "latest_ckpt_global_step.txt"
_VERL_MARKER: Final = "latest_checkpointed_iteration.txt"
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
    """The step that the marker (SkyRL's or verl's) names; None if there is no marker, or if it holds no step."""
    for name in (MARKER, _VERL_MARKER):
        with contextlib.suppress(OSError, ValueError):
            text = (folder / name).read_text(encoding="utf-8").strip()
            return int(text) if _COUNT.fullmatch(text) else None
    return None


def written_at(folder: Path) -> float | None:
    """When the marker was written, in seconds since the epoch; None if there is none."""
    for name in (MARKER, _VERL_MARKER):
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return None


@dataclass(frozen=True)
class Origin:
    """The checkpoint of another run that a new run begins with (`--from-run RUN[@STEP]`)."""

    run_id: str
    step: int

    def __str__(self) -> str:
        return f"{self.run_id}@{self.step}"


def origin(env: Environment, text: str) -> Origin:
    """Read `RUN[@STEP]`; without a step it is the one that the other run would itself go on from.

    Raises Refused if that cannot be seen from here, or if there is no such checkpoint where it can.
    """
    run_id, at, number = text.partition("@")
    try:
        names.check_run_id(run_id)
    except Refused as error:
        raise Refused(replace(problem, field="--from-run") for problem in error.problems) from None
    if at and not _COUNT.fullmatch(number):
        raise Refused(Problem("--from-run", text, "behind the @ stands the step of a checkpoint", f"for example {run_id}@20"))
    folder = layout.here(env, layout.run_folder(env, run_id).checkpoints)
    if folder is not None and not folder.parent.is_dir():
        raise Refused(Problem("--from-run", text, "there is no such run", _runs_like(folder.parents[1], run_id)))
    there = [step for step, _ in step_folders(folder)] if folder is not None else None
    step = int(number) if at else marked(folder) if folder is not None else None
    if there is not None and (step is None or step not in there):
        known = f"it has {', '.join(map(str, there))}" if there else "it has none"
        raise Refused(Problem("--from-run", text, f"run {run_id} has no such checkpoint", known))
    if step is None:
        rule = "the shared file system is not visible here, so its newest checkpoint is not known"
        raise Refused(Problem("--from-run", text, rule, f"name the step: --from-run {run_id}@STEP"))
    return Origin(run_id, step)


def _runs_like(root: Path, run_id: str) -> str:
    """What was perhaps meant, among the runs of this folder."""
    known = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    close = difflib.get_close_matches(run_id, known, n=1)
    return f"did you mean {close[0]}" if close else f"there are {', '.join(known[-5:])}" if known else "there is none yet"


def next_attempt(env: Environment, run_id: str, *, origin: str | None = None) -> str:
    """What the run's next attempt would begin with, as far as it can be seen from here: a clause for people.

    `origin` is the checkpoint of another run (`RUN@STEP`) that this one began with: without one of its own it begins there again.
    """
    begin = f"checkpoint {origin}" if origin else "step 0"
    folder = layout.here(env, layout.run_folder(env, run_id).checkpoints)
    if folder is None:
        return f"the next attempt goes on from its last checkpoint if it wrote one, else from {begin}"
    step = marked(folder)
    if step is None:
        return f"it wrote no checkpoint, so the next attempt begins {'with' if origin else 'at'} {begin}"
    return f"the next attempt goes on from its checkpoint of step {step}"
