"""Where `/shared` is on this machine, and how files appear there: whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

STAND_IN: Final = "hyperpod-rl stand-in trainer: not SkyRL, not a language model, for trying the path on one machine"
"""What everything that the stand-in writes says of itself."""

SHARED_VARIABLE: Final = "HYPERPOD_RL_SHARED"
TEMPORARY: Final = ".tmp-"
_LEFT_OVER: Final = re.compile(r"\.tmp-.+-([0-9]+|[0-9]+-old|removed)")  # every temporary name of this package


def on_this_machine(path: str) -> Path:
    """The real place of a path below /shared: below the folder that HYPERPOD_RL_SHARED names (default /shared itself).

    Raises:
        ValueError: the path is not below /shared, or climbs out of it.
    """
    parts = PurePosixPath(path).parts
    if parts[:2] != ("/", "shared") or ".." in parts:
        raise ValueError(f"{path} is not below /shared")
    return Path(os.environ.get(SHARED_VARIABLE, "/shared"), *parts[2:])


def write(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new one, after a power cut too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    _write_and_sync(temporary, content)
    temporary.replace(path)
    _sync_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes], *, progress: Callable[[str], None] = lambda name: None) -> None:
    """Write a folder so that it appears whole: into a temporary one beside it, then by one rename.

    Args:
        path: the folder; an older one of that name is replaced.
        files: contents by relative name.
        progress: called before each step, with its name; tests raise in it.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")  # a killed attempt may still be writing its own
    shutil.rmtree(temporary, ignore_errors=True)
    for name in sorted(files):
        progress(f"{path.name}/{name}")
        target = temporary / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_and_sync(target, files[name])
    for folder in sorted({(temporary / name).parent for name in files}):
        _sync_folder(folder)
    progress(f"{path.name}: publish")
    if path.exists():  # a rename cannot replace a folder that is not empty
        old = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(path)
    _sync_folder(path.parent)


def remove_left_overs(folder: Path) -> None:
    """Remove what a killed attempt left half-written in a folder; other people's names and links stay."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_symlink() or _LEFT_OVER.fullmatch(path.name) is None:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def tensors(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays as safetensors bytes. One metadata entry only: with more, their order, and so the bytes, would vary."""
    import numpy as np
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata={"stand_in": STAND_IN})


def read_tensors(content: bytes) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load

    return dict(load(content))


def document(content: Mapping[str, Any]) -> bytes:
    """A JSON document with sorted keys, so that equal content has equal bytes."""
    return (json.dumps({"stand_in": STAND_IN, **content}, sort_keys=True, indent=1) + "\n").encode()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_and_sync(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
