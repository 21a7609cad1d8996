"""Whether the shared file system holds what a run writes: checkpoints, exports, and the base model that is there already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config.base_models import GIB
from config.problems import Problem
from training import layout
from training.preflight.findings import Rule, Subject

GB: Final = 10**9
# A Lustre file system that is nearly full writes slowly, and one full target stops all (https://docs.aws.amazon.com/fsx/latest/LustreGuide/).
NEARLY_FULL: Final = 0.8
# Config, tokenizer and processor beside each exported adapter (Qwen3-VL's files, rounded up).
_EXPORT_EXTRAS: Final = 20 * 10**6


@dataclass(frozen=True)
class Disk:
    """What a run writes, in bytes."""

    checkpoint: int
    kept: int
    export: int
    exports: int
    model: int

    @property
    def need(self) -> int:
        """All of it together, at the worst moment: a new checkpoint is written whole before the oldest goes."""
        return self.written + self.model

    @property
    def written(self) -> int:
        """Without the base model."""
        return self.checkpoint * self.kept + self.export * self.exports

    def formula(self, capacity: int) -> str:
        """The arithmetic on one line."""
        return (
            f"{self.checkpoint / GB:.1f} GB a checkpoint (4 bytes x parameters + adapter and optimizer) x {self.kept} at once"
            f" + {self.export / GB:.2f} GB x {self.exports} exports + {self.model / GB:.1f} GB base model = {self.need / GB:.0f} GB"
            f" of {capacity / GB:.0f} GB"
        )


def saves(steps_per_epoch: int, steps: int, interval: int) -> int:
    """How often SkyRL saves: every `interval` steps and at each epoch's end (skyrl/train/trainer.py, skyrl 0.3.0); 0 = never."""
    if interval <= 0:
        return 0
    return sum(1 for number in range(1, steps + 1) if number % interval == 0 or number % max(1, steps_per_epoch) == 0)


def steps(subject: Subject) -> tuple[int, int]:
    """Steps an epoch (the last, incomplete batch is dropped), and in all."""
    settings = subject.settings
    per_epoch = subject.environment.training.train_rows // settings.batch
    total = per_epoch * int(settings["trainer.epochs"])
    limit = settings["trainer.max_training_steps"]
    return per_epoch, min(total, int(limit)) if limit is not None else total


def disk(subject: Subject) -> Disk | None:
    """What the run writes; None where the model's size is not known."""
    model, settings = subject.model, subject.settings
    if model is None:
        return None
    rank = int(settings["trainer.policy.model.lora.rank"])
    trained = model.adapter_parameters(rank) if rank else model.parameters
    adapter = trained if rank else 0
    # Weights and AdamW's two moments in fp32, and the adapter once more in a form of its own (fsdp_strategy.py).
    checkpoint = 4 * (model.parameters + adapter) + 8 * trained + 4 * adapter
    per_epoch, total = steps(subject)
    made = saves(per_epoch, total, int(settings["trainer.ckpt_interval"]))
    keep = int(settings["trainer.max_ckpts_to_keep"])
    return Disk(
        checkpoint=checkpoint, kept=min(made, keep + 1) if keep > 0 else made,
        export=(4 * trained if rank else 2 * model.parameters) + _EXPORT_EXTRAS,
        exports=saves(per_epoch, total, int(settings["trainer.hf_save_interval"])), model=2 * model.parameters,
    )  # fmt: skip


def _on_shared(subject: Subject) -> bool:
    mount = subject.environment.storage.file_system.mount_path
    return str(subject.settings["trainer.ckpt_path"]).startswith(mount + "/")


def _keep_fix(subject: Subject, what: Disk, room: float) -> str:
    others = what.need - what.checkpoint * what.kept
    keep = int((room - others) // what.checkpoint) - 1
    size = f"or raise storage.file_system.capacity_gib to {int(what.need / NEARLY_FULL / GIB / 1200 + 1) * 1200}"
    return f"set trainer.max_ckpts_to_keep={keep}, {size}" if keep >= 1 else size.removeprefix("or ")


def capacity(subject: Subject) -> int:
    """Size of the file system, in bytes."""
    return subject.environment.storage.file_system.capacity_gib * GIB


def checkpoints_fit(subject: Subject) -> Iterator[Problem]:
    """What is kept must fit, or a checkpoint ends half written."""
    what = disk(subject)
    if what is None or not _on_shared(subject) or what.need <= capacity(subject):
        return
    yield Problem(
        "trainer.max_ckpts_to_keep", str(subject.settings["trainer.max_ckpts_to_keep"]),
        f"the run needs {what.need / GB:.0f} GB and the file system has {capacity(subject) / GB:.0f}",
        _keep_fix(subject, what, capacity(subject)),
    )  # fmt: skip


def checkpoints_leave_room(subject: Subject) -> Iterator[Problem]:
    """Other runs, datasets and logs live there too."""
    what = disk(subject)
    if what is None or not _on_shared(subject) or not NEARLY_FULL * capacity(subject) < what.need <= capacity(subject):
        return
    yield Problem(
        "trainer.max_ckpts_to_keep", str(subject.settings["trainer.max_ckpts_to_keep"]),
        f"the run fills {what.need / capacity(subject):.0%} of the file system", _keep_fix(subject, what, NEARLY_FULL * capacity(subject)),
    )  # fmt: skip


def free_space_is_there(subject: Subject) -> Iterator[Problem]:
    """Where the file system is visible from here, what is free now counts, with what this run has written already."""
    what = disk(subject)
    where = layout.here(subject.environment, str(subject.settings["trainer.ckpt_path"]))
    if what is None or where is None:
        return
    free, own = free_bytes(where), written(where)
    need = max(0, what.written - own)
    if need > free:
        yield Problem(
            "trainer.ckpt_path", str(subject.settings["trainer.ckpt_path"]),
            f"the run still writes {need / GB:.0f} GB and {free / GB:.0f} are free",
            "remove checkpoints of old runs, or lower trainer.max_ckpts_to_keep",
        )  # fmt: skip


def free_bytes(path: Path) -> int:
    """Free space of the file system that a path, existing or not, belongs to."""
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def written(folder: Path) -> int:
    """Bytes below a folder; 0 if it is not there."""
    total = 0
    for path in folder.rglob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # a running attempt removes old checkpoints
            total += path.stat().st_size
    return total


RULES: Final = (
    Rule("checkpoints-fit-file-system", "error", checkpoints_fit),
    Rule("checkpoints-leave-room", "warning", checkpoints_leave_room),
    Rule("free-space-is-there", "error", free_space_is_there),
)
