"""Checkpoints and exports in SkyRL's layout (docs and `fsdp_strategy.py` of https://github.com/NovaSky-AI/SkyRL).

File names are SkyRL's, so that whatever lists, sizes, replicates or cleans them is tried for real. Contents are not
PyTorch's: `model_*.pt` and `optim_*.pt` hold safetensors bytes, the other `.pt` files JSON, both with the same bytes for the
same state. One file is added, `digests.json`, with the SHA-256 of every other: SkyRL itself cannot tell a torn checkpoint.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from local.trainer import shared
from local.trainer.optimizer import Adam
from local.trainer.policy import MATRICES, Lora
from training.skyrl import Value

MARKER: Final = "latest_ckpt_global_step.txt"
_DIGESTS: Final = "digests.json"
_ASIDE: Final = "superseded-"
_STEP_FOLDER: Final = re.compile(r"global_step_(0|[1-9][0-9]*)")
_MODEL_NAME: Final = re.compile(r"policy/model_world_size_([1-9][0-9]*)_rank_[0-9]+\.pt")
_MODEL: Final = "policy/model_world_size_{world}_rank_{rank}.pt"
_OPTIMIZER: Final = "policy/optim_world_size_{world}_rank_{rank}.pt"
_EXTRA: Final = "policy/extra_state_world_size_{world}_rank_{rank}.pt"

Floats = NDArray[Any]
Progress = Callable[[str], None]


@dataclass
class State:
    """All that training needs to go on: steps done, the adapter, the optimizer. There is no state of random numbers:
    every draw is derived from (seed, step, prompt, sample)."""

    step: int
    adapter: dict[str, Floats]
    optimizer: Adam


class Torn(Exception):
    """A checkpoint whose files are missing or are not what its digests say."""


class OtherRun(Exception):
    """A whole checkpoint that this run cannot go on from: another world size, base model or adapter shape."""


def save(
    folder: Path, state: State, *, base: Mapping[str, Floats], world: int, lora: Lora, values: Mapping[str, Value],
    steps_per_epoch: int, keep: int, progress: Progress, redone_above: int | None = None,
) -> Path:  # fmt: skip
    """Write `global_step_N`, then the marker, then remove what `keep` (trainer.max_ckpts_to_keep) no longer wants.

    Args:
        redone_above: at the first save of an attempt, the step that it went on from. Checkpoints above it belong to training
            that is being redone: they are renamed to `superseded-global_step_N`. Left in place they would count as the
            newest, and pruning would remove what was just written. What the marker names stays until the marker has moved.
    """
    files: dict[str, bytes] = {
        "trainer_state.pt": shared.document({"global_step": state.step, "config": dict(values)}),
        "data.pt": shared.document({"batches_taken": state.step % steps_per_epoch, "epoch": state.step // steps_per_epoch}),
        "policy/fsdp_config.json": shared.document({"fsdp_strategy": "fsdp2", "world_size": world}),
        "policy/huggingface/config.json": shared.document({"model_type": "hyperpod-rl-stand-in"}),
        **{f"policy/lora_adapter/{name}": data for name, data in adapter_files(state.adapter, lora, base="").items()},
    }
    model = {**{f"base.{name}": weight for name, weight in base.items()}, **state.adapter}
    moments = {f"first.{name}": value for name, value in state.optimizer.first.items()}
    moments |= {f"second.{name}": value for name, value in state.optimizer.second.items()}
    for rank in range(world):
        place = {"world": world, "rank": rank}
        files[_MODEL.format(**place)] = shared.tensors(_shard(model, rank, world))
        files[_OPTIMIZER.format(**place)] = shared.tensors(_shard(moments, rank, world))
        files[_EXTRA.format(**place)] = shared.document({"rank": rank, "optimizer_steps": state.optimizer.steps})
    files[_DIGESTS] = shared.document({name: shared.digest(data) for name, data in files.items()})
    target = folder / f"global_step_{state.step}"
    redone = [step for step in above(folder, redone_above) if step != state.step] if redone_above is not None else []
    marked = _marked(folder)[0]
    for step in redone:
        if step != marked:
            _set_aside(folder / f"global_step_{step}", progress)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        _set_aside(target, progress)
    shared.write_folder(target, files, progress=progress)
    if (folder / MARKER).is_dir():
        _set_aside(folder / MARKER, progress)
    progress("marker")
    shared.write(folder / MARKER, str(state.step).encode())
    if marked in redone:
        _set_aside(folder / f"global_step_{marked}", progress)
    if keep > 0:
        earlier = [step for step in _steps(folder) if step < state.step]  # never what was written just now
        for step in sorted(earlier, reverse=True)[keep - 1 :]:
            progress(f"remove {step}")
            discarded = folder / f"{shared.TEMPORARY}global_step_{step}-removed"
            (folder / f"global_step_{step}").rename(discarded)
            shutil.rmtree(discarded)
    return target


def newest(folder: Path, log: Callable[[str], None], load: Callable[[Path], State]) -> State | None:
    """The newest whole checkpoint at or below the marker, or None when there is none.

    A marker that is missing or unreadable bounds nothing: then it is the newest whole checkpoint of all. SkyRL would start
    afresh without a marker, and fail on an unreadable one.
    """
    steps = _steps(folder)
    latest, reason = _marked(folder)
    if latest is None:
        if not steps:
            log(f"No checkpoint in {folder} ({reason}), starting from step 0")
            return None
        log(f"{reason}: resuming from the newest whole checkpoint in {folder}")
        latest = max(steps)
    elif latest not in steps:
        log(f"{MARKER} names global_step_{latest}, which is not in {folder}: trying the one before")
    for step in sorted((step for step in steps if step <= latest), reverse=True):
        try:
            return load(folder / f"global_step_{step}")
        except Torn as torn:
            log(f"Checkpoint global_step_{step} is torn ({torn}), trying the one before")
    log(f"No whole checkpoint in {folder}, starting from step 0")
    return None


def above(folder: Path, step: int) -> list[int]:
    """The steps of the checkpoints above a step, lowest first."""
    return sorted(other for other in _steps(folder) if other > step)


def load(folder: Path, *, base: Mapping[str, Floats], adapter: Mapping[str, Floats], optimizer: Adam, world: int) -> State:
    """The state of one `global_step_N` folder.

    Args:
        base: the base model that the run uses; it must be the one in the checkpoint.
        adapter: an adapter of the run's shape.
        optimizer: a fresh optimizer; its settings are the run's, its state becomes the checkpoint's.

    Raises:
        Torn, OtherRun: see there.
    """
    files = _verified(folder)
    written = _world(files)
    if written != world:
        raise OtherRun(f"{folder} was not written by {world} GPUs but by {written}; resume needs the same number")
    model: dict[str, Floats] = {}
    moments: dict[str, Floats] = {}
    for rank in range(world):
        model |= shared.read_tensors(files[_MODEL.format(world=world, rank=rank)])
        moments |= shared.read_tensors(files[_OPTIMIZER.format(world=world, rank=rank)])
    restored = {name: value for name, value in model.items() if not name.startswith("base.")}
    if any(f"base.{name}" not in model or not np.array_equal(model[f"base.{name}"], weight) for name, weight in base.items()):
        raise OtherRun(f"{folder} was trained on another base model")
    if {name: value.shape for name, value in restored.items()} != {name: value.shape for name, value in adapter.items()}:
        raise OtherRun(f"{folder} holds an adapter of another rank")
    optimizer.first = {name.removeprefix("first."): value for name, value in moments.items() if name.startswith("first.")}
    optimizer.second = {name.removeprefix("second."): value for name, value in moments.items() if name.startswith("second.")}
    optimizer.steps = int(json.loads(files[_EXTRA.format(world=world, rank=0)])["optimizer_steps"])
    return State(int(json.loads(files["trainer_state.pt"])["global_step"]), restored, optimizer)


def export(folder: Path, state: State, *, lora: Lora, base: str, progress: Progress) -> Path:
    """Write `global_step_N/policy`, the folder that serving takes. Published by one rename, as SkyRL does."""
    target = folder / f"global_step_{state.step}" / "policy"
    target.parent.mkdir(parents=True, exist_ok=True)
    files = adapter_files(state.adapter, lora, base=base)
    files["config.json"] = shared.document({"model_type": "hyperpod-rl-stand-in"})
    shared.write_folder(target, files, progress=lambda name: progress(f"export {name}"))
    return target


def adapter_files(adapter: Mapping[str, Floats], lora: Lora, *, base: str) -> dict[str, bytes]:
    """`adapter_model.safetensors` and `adapter_config.json`, with PEFT's names for tensors and settings."""
    named = {f"base_model.model.{name}.weight": value for name, value in adapter.items()}
    settings = {
        "base_model_name_or_path": base,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": sorted(MATRICES),
        "task_type": "CAUSAL_LM",
    }
    return {"adapter_model.safetensors": shared.tensors(named), "adapter_config.json": shared.document(settings)}


def _shard(arrays: Mapping[str, Floats], rank: int, world: int) -> dict[str, Floats]:
    return {name: arrays[name] for name in sorted(arrays)[rank::world]}


def _steps(folder: Path) -> list[int]:
    """Steps of the folders that `save` wrote: no links, no files, no other spelling such as global_step_03."""
    matches = ((_STEP_FOLDER.fullmatch(path.name), path) for path in folder.iterdir())
    return [int(match[1]) for match, path in matches if match is not None and path.is_dir() and not path.is_symlink()]


def _marked(folder: Path) -> tuple[int | None, str]:
    """The step that the marker names, or None and why there is none."""
    try:
        text = (folder / MARKER).read_text(encoding="ascii").strip()
        return (int(text), "") if text.isdigit() else (None, f"{MARKER} holds {text[:20]!r}, not a step")
    except FileNotFoundError:
        return None, f"no {MARKER}"
    except (OSError, ValueError) as error:
        return None, f"{MARKER} is unreadable ({type(error).__name__})"


def _set_aside(path: Path, progress: Progress) -> None:
    progress(f"set aside {path.name}")
    target = path.with_name(f"{_ASIDE}{path.name}")
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    path.rename(target)


def _verified(folder: Path) -> dict[str, bytes]:
    try:
        digests = json.loads((folder / _DIGESTS).read_bytes())
        if not isinstance(digests, dict):
            raise Torn(f"{_DIGESTS} holds no names of files")
        files = {name: (folder / name).read_bytes() for name in digests if name != "stand_in"}
    except (OSError, ValueError, RecursionError) as error:
        raise Torn(str(error)) from error
    for name, content in files.items():
        if shared.digest(content) != digests[name]:
            raise Torn(f"{name} differs from its digest")
    return files


def _world(files: Mapping[str, bytes]) -> int:
    """The world size that wrote a checkpoint.

    Raises:
        Torn: the digests do not name every file of a checkpoint, so nothing can be said of what they leave out.
    """
    models = [match[1] for name in files if (match := _MODEL_NAME.fullmatch(name)) is not None]
    world = len(models)
    parts = (_MODEL, _OPTIMIZER, _EXTRA)
    needed = {"trainer_state.pt"} | {part.format(world=world, rank=rank) for part in parts for rank in range(world)}
    if world == 0 or not needed <= files.keys():
        raise Torn(f"{_DIGESTS} does not name every file of a checkpoint")
    return world
