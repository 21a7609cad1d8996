"""The steps of a run as one series: gathered over its attempts, and kept beside the run, where they outlive the Ray cluster.

`steps.jsonl` in the run's folder is only ever appended to, a line a step, so that a reader sees whole lines or, after a crash,
one torn line at the end, which is passed over. Two followers at once may write a step twice; the reader takes one of them.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from config.series import Part
from training.console import Event, Step
from training.solve_rate import Bound, SolveRate

if TYPE_CHECKING:
    from training.follow import StepSeen
    from training.frameworks.framework import LogParser

FILE: Final = "steps.jsonl"


@dataclass(frozen=True)
class Row:
    """One step of one attempt. Time in seconds; the metrics are SkyRL's, finite numbers and texts."""

    attempt: int
    step: int
    reward: float | None = None
    step_seconds: float | None = None
    solve_rate: SolveRate | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "attempt": self.attempt, "step": self.step, "reward": self.reward, "step_seconds": self.step_seconds,
            "solve_rate": self.solve_rate.document() if self.solve_rate else None, "metrics": dict(sorted(self.metrics.items())),
        }  # fmt: skip


def row(seen: StepSeen) -> Row:
    """A followed step as a row."""
    metrics = {key: value for key, value in seen.metrics.items() if not isinstance(value, float) or math.isfinite(value)}
    return Row(seen.attempt, seen.step, seen.reward, seen.step_seconds, seen.solve_rate, metrics)


def steps_of(log: Iterable[bytes], parser: LogParser) -> list[Step]:
    """Steps of one attempt's whole log, given in pieces of any size; each number once and rising."""
    found = list[Step]()
    for event in itertools.chain(itertools.chain.from_iterable(map(parser.feed, log)), _rest(parser)):
        if isinstance(event, Step) and event.number > (found[-1].number if found else -1):
            found.append(event)
    return found


def _rest(parser: LogParser) -> Iterator[Event]:
    yield from parser.finish()  # not before all of the log was fed


class Saved:
    """The file of one run. Appending is idempotent: a step of an attempt that is in it already is left out."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        # What is known of each step: one that was first told by the log may be told again, better, by the eval dump.
        self._known = {(each.attempt, each.step): _told(each) for each in read(folder)}

    def append(self, rows: Iterable[Row]) -> int:
        """Write the rows that are new, and return how many. Raises OSError."""
        new = [each for each in rows if _told(each) > self._known.get((each.attempt, each.step), -1)]
        if not new:
            return 0
        text = "".join(json.dumps(each.document(), ensure_ascii=False, separators=(",", ":")) + "\n" for each in new)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            # A crash may have left half a line; a new line begins behind it.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + text.encode()
            if (written := os.write(descriptor, data)) != len(data):
                raise OSError(28, f"only {written} of {len(data)} bytes were written", str(self.path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._known |= {(each.attempt, each.step): _told(each) for each in new}
        return len(new)


def read(folder: Path) -> list[Row]:
    """Rows of the file in the order of (attempt, step), each once; empty if there is none. Lines that are no rows are passed over."""
    found: dict[tuple[int, int], Row] = {}
    try:
        lines = (folder / FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    for line in lines:
        each = _parsed(line)
        if each is None:
            continue
        _take(found, each)
    return [found[key] for key in sorted(found)]


def united(*several: Iterable[Row]) -> list[Row]:
    """Rows of several sources in the order of (attempt, step), each once: the later source's unless it tells less."""
    found: dict[tuple[int, int], Row] = {}
    for rows in several:
        for each in rows:
            _take(found, each)
    return [found[key] for key in sorted(found)]


def joined(rows: Iterable[Row]) -> list[Row]:
    """One row a step, rising: what was trained, attempt after attempt.

    An attempt goes on from a checkpoint, so whatever earlier attempts did from its first step on was lost and is left out. That
    first step may be an evaluation of the checkpoint alone (SkyRL's `eval_before_train`); then reward and time are those of the
    attempt that trained the step.
    """
    series: list[Row] = []
    for _, its in _by_attempt(rows):
        first = its[0]
        before = next((each for each in series if each.step == first.step), None)
        series = [each for each in series if each.step < first.step]
        if before is not None and first.reward is None and first.step_seconds is None:
            rate = first.solve_rate or before.solve_rate
            first = replace(before, solve_rate=rate, metrics={**before.metrics, **first.metrics})
        series += [first, *its[1:]]
    return series


def repeated(rows: Iterable[Row]) -> dict[int, int]:
    """How many steps of each attempt were trained in vain, since the next one went on from an earlier checkpoint."""
    attempts = [(number, its) for number, its in _by_attempt(rows)]
    lost = {}
    for index, (number, its) in enumerate(attempts):
        resumed = min((later[0].step + _evaluated_only(later[0]) for _, later in attempts[index + 1 :]), default=None)
        trained = [each.step for each in its if each.reward is not None or each.step_seconds is not None]
        lost[number] = sum(step >= resumed for step in trained) if resumed is not None else 0
    return lost


def gaps(series: Sequence[Row]) -> list[tuple[int, int]]:
    """Runs of steps (first, last) that no log tells of, between the first and the last step of a joined series."""
    return [(a.step + 1, b.step - 1) for a, b in itertools.pairwise(series) if b.step > a.step + 1]


# Timers of SkyRL's step by the part that they belong to (skyrl/train/trainer.py): those of one part do not overlap.
_PARTS: Final[Mapping[Part, tuple[str, ...]]] = {
    Part.ROLLOUT: ("timing/generate",),
    Part.TRAINING: ("timing/train_critic_and_policy", "timing/policy_train", "timing/fwd_logprobs_values_reward",
                    "timing/compute_advantages_and_returns"),
    Part.SYNC: ("timing/sync_weights",),
}  # fmt: skip
# `train_critic_and_policy` is around `policy_train`.
_AROUND: Final = {"timing/policy_train": "timing/train_critic_and_policy"}


def step_parts(metrics: Mapping[str, Any], step_seconds: float | None) -> dict[Part, float]:
    """Seconds of one step by part: rollout, training, sync, and what is left of the whole; empty where no part is logged."""
    found: dict[Part, float] = {}
    for part, timers in _PARTS.items():
        told = [_number(metrics.get(timer)) for timer in timers if _AROUND.get(timer) not in metrics]
        if any(seconds is not None for seconds in told):
            found[part] = sum(seconds for seconds in told if seconds is not None)
    if found and step_seconds is not None:
        found[Part.OTHER] = max(0.0, step_seconds - sum(found.values()))
    return found


def median_seconds(series: Iterable[Row]) -> float | None:
    """Median time of a step in seconds; None without any."""
    found = [each.step_seconds for each in series if each.step_seconds is not None]
    return statistics.median(found) if found else None


def _by_attempt(rows: Iterable[Row]) -> Iterator[tuple[int, list[Row]]]:
    found: dict[int, dict[int, Row]] = {}
    for each in rows:
        found.setdefault(each.attempt, {})[each.step] = each
    for number in sorted(found):
        yield number, [found[number][step] for step in sorted(found[number])]


def _evaluated_only(each: Row) -> bool:
    return each.reward is None and each.step_seconds is None and each.step > 0


def _take(found: dict[tuple[int, int], Row], each: Row) -> None:
    before = found.get((each.attempt, each.step))
    if before is None or _told(each) >= _told(before):
        found[(each.attempt, each.step)] = each


def _told(each: Row) -> int:
    """How good a row is: an evaluation that was read from its dump is worth more than one that the log estimates."""
    return 0 if each.solve_rate is None else 2 if each.solve_rate.source == "eval dump" else 1


def _parsed(line: bytes) -> Row | None:
    if not line.strip():
        return None
    try:
        value = json.loads(line)
        rate = value.get("solve_rate")
        return Row(
            attempt=int(value["attempt"]), step=int(value["step"]), reward=_number(value.get("reward")),
            step_seconds=_number(value.get("step_seconds")), solve_rate=rate_of(rate) if isinstance(rate, dict) else None,
            metrics=dict(value.get("metrics") or {}),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def rate_of(value: Mapping[str, Any]) -> SolveRate:
    """A solve rate from how it stands in a file. Raises KeyError, TypeError or ValueError for anything else."""
    bound = _number(value.get("oracle_bound"))
    return SolveRate(
        rate=float(value["rate"]), solved=float(value["solved"]), mazes=int(value["mazes"]),
        source="eval dump" if value["source"] == "eval dump" else "log formula", pass_at_1=_number(value.get("skyrl_pass_at_1")),
        bound=Bound(bound, str(value.get("bound_source") or "")) if bound is not None else None,
    )  # fmt: skip


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None
