"""`preflight --plan`: the largest micro batches that fit, and what they gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from training.preflight import gpu
from training.preflight.findings import Subject
from training.preflight.memory import peak

# Tokens a second against micro batch 1, measured on NVIDIA H200 at two lengths; 8 gave little more than 4.
_GAINS: Final[Mapping[int, Mapping[int, float]]] = {4096: {1: 0.0, 2: 0.29, 4: 0.41}, 9216: {1: 0.0, 2: 0.09, 4: 0.13}}


@dataclass(frozen=True)
class Choice:
    """One pass: the micro batch that is set, the largest that fits (None: not even 1), and the gain of the one over the other."""

    key: str
    current: int
    best: int | None
    gain: float | None
    planned_gib: float
    gpu_gib: float

    @property
    def sentence(self) -> str:
        """For people, on one line."""
        if self.best is None:
            return f"{self.key}: not even 1 fits {self.gpu_gib:.1f} GiB"
        say = f"{self.key}: {self.current} is set, {self.best} is the largest that fits ({self.planned_gib:.1f} of {self.gpu_gib:.1f} GiB)"
        if self.best == self.current or self.gain is None:
            return say
        return f"{say}, about {self.gain:+.0%} tokens a second (measured on H200); try --set {self.key}={self.best}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "key": self.key, "current": self.current, "largest": self.best, "gain": self.gain, "planned_gib": round(self.planned_gib, 1),
            "gpu_gib": round(self.gpu_gib, 1),
        }  # fmt: skip


def speed(tokens: int, micro_batch: int) -> float:
    """Tokens a second relative to micro batch 1: measured points, on a line between the two lengths, flat beyond them and above 4."""
    short, long = sorted(_GAINS)
    share = min(1.0, max(0.0, (tokens - short) / (long - short)))

    def at(length: int) -> float:
        points = _GAINS[length]
        return points[max(size for size in points if size <= micro_batch)]

    return 1 + at(short) * (1 - share) + at(long) * share


def impossible(subject: Subject, *, readable: bool = True) -> str | None:
    """Why there is no plan; None where there is one. `readable`: whether the configuration's numbers make sense."""
    env = subject.environment
    if env.local:
        return f"environment {env.name} trains a stand-in without a GPU, so there is no memory to plan"
    if env.training.framework != "skyrl":
        return f"memory is computed for SkyRL only, and this trainer is {env.training.framework}"
    if not readable:
        return "a value of the configuration is out of its range"
    if not subject.gpu_gib:
        return f"the workers of environment {env.name} ({env.workers.instance_type}) have no GPU whose memory is known"
    if subject.model is None:
        named = env.training.base_model_repository or env.training.base_model
        return f"the size of the model {named} is not known here (config/base_models.py)"
    if gpu.step(subject, backward=True) is None:
        return f"memory is computed for trainer.strategy=fsdp only, and it is {subject.settings['trainer.strategy']}"
    return None


def plan(subject: Subject) -> list[Choice]:
    """One choice a pass; empty where memory is not computed. The gain is of training steps; a forward pass has no measured one."""
    found = []
    for backward, key in ((True, gpu.TRAIN), (False, gpu.FORWARD)):
        this = gpu.step(subject, backward=backward)
        if this is None:
            continue
        best = gpu.largest(subject, backward=backward)
        gain = speed(this.tokens, best.micro_batch) / speed(this.tokens, this.micro_batch) - 1 if best and backward else None
        found.append(
            Choice(
                key=key, current=int(subject.settings[key]), best=best.micro_batch if best else None, gain=gain,
                planned_gib=peak(best or this).planned(colocated=gpu.colocated(subject)), gpu_gib=subject.gpu_gib,
            )
        )  # fmt: skip
    return found
