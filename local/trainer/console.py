"""SkyRL's console format: loguru's coloured lines on standard error, metrics as one Python dictionary over many lines."""

from __future__ import annotations

import pprint
import sys
from collections.abc import Callable, Mapping
from datetime import datetime

Log = Callable[[str], None]
Metrics = Mapping[str, float | int]

_ORIGIN = ("local.trainer", "train", 0)
_TRACKING = ("skyrl.train.utils.tracking", "log", 189)  # readers of SkyRL's log may look for the origin


def line(message: str, *, at: datetime, origin: tuple[str, str, int] = _ORIGIN) -> str:
    """One record as loguru writes it, coloured also without a terminal: time, level, origin, message."""
    green, cyan, bold, off = "\x1b[32m", "\x1b[36m", "\x1b[1m", "\x1b[0m"
    module, function, number = origin
    where = f"{cyan}{module}{off}:{cyan}{function}{off}:{cyan}{number}{off}"
    stamp = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
    return f"{green}{stamp}{off} | {bold}{green}INFO    {off} | {where} - {bold}{green}{message}{off}"


def step_message(step: int, metrics: Metrics) -> str:
    """`Step N: ` and the metrics: keys sorted, floats as strings with four decimals, integers as they are."""
    shown = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in metrics.items()}
    return f"Step {step}: \n{pprint.pformat(shown)}"


def say(message: str) -> None:
    print(line(message, at=datetime.now()), file=sys.stderr, flush=True)


def say_step(step: int, metrics: Metrics) -> None:
    print(line(step_message(step, metrics), at=datetime.now(), origin=_TRACKING), file=sys.stderr, flush=True)
