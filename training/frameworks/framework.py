"""The interface of a trainer: its command, its checks, its log, its way to resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from config.environment import Environment
from config.problems import Problem
from training.console import Event
from training.layout import RunFolder
from training.skyrl_keys import Value


class LogParser(Protocol):
    """Bytes of a log in any cutting in, steps out. Constant memory; never raises for whatever bytes."""

    def feed(self, data: bytes) -> list[Event]:
        """Events that are complete after this piece."""

    def finish(self) -> list[Event]:
        """Events of what is left at the end."""


@dataclass(frozen=True)
class Command:
    """What starts the trainer.

    `words` follow the environment's entrypoint. `resumed`, where given, are the words instead once `marker` (relative to the run's
    folder) is there; a trainer that looks for its checkpoint by itself needs neither.
    """

    words: Sequence[str]
    marker: str | None = None
    resumed: Sequence[str] | None = None


@dataclass(frozen=True)
class Framework:
    """One trainer.

    Attributes:
        configure: values of a run from `--set` words, and what is wrong with each alone (environment, run id, folder, words).
        problems: what is wrong with the whole (environment, values).
        command: how it is started (environment, folder, values).
        parser: reads its log (environment).
        reward: metrics that are the mean reward, the first that is there.
        seconds: metrics that are the time of a step, likewise.
        marker: file below the run's folder that names the newest checkpoint, if it writes one.
    """

    name: str
    configure: Callable[[Environment, str, RunFolder, Sequence[str]], tuple[dict[str, Value], list[Problem]]]
    problems: Callable[[Environment, Mapping[str, Value]], list[Problem]]
    command: Callable[[Environment, RunFolder, Mapping[str, Value]], Command]
    parser: Callable[[Environment], LogParser]
    reward: Sequence[str] = ()
    seconds: Sequence[str] = ()
    marker: str | None = None
