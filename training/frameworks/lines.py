"""A parser for logs that have a step on one line: cut into lines in constant memory, without colors and Ray's prefix."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from training.console import LONGEST_LINE, Event, Step

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIX: Final = re.compile(r"^\([^()\n]{1,200}? pid=\d+(?:, ip=[^)\s]{1,60})?\) ?")


@dataclass
class LineParser:
    """`read` makes a step of a line, or None. `marks`: bytes of which one stands in every line that holds a step."""

    read: Callable[[str], Step | None]
    marks: tuple[bytes, ...] = ()
    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[Event]:
        """Steps of the lines that end in this piece; a line counts up to 64 KiB."""
        events: list[Event] = []
        *whole, rest = data.split(b"\n")
        for line in whole:
            if self._rest:
                self._keep(line)
                line = bytes(self._rest)
                self._rest.clear()
            self._line(line[:LONGEST_LINE], events)
        self._keep(rest)
        return events

    def finish(self) -> list[Event]:
        """The last line, if it had no end."""
        events: list[Event] = []
        self._line(bytes(self._rest), events)
        self._rest.clear()
        return events

    def _keep(self, piece: bytes) -> None:
        self._rest += piece[: max(0, LONGEST_LINE - len(self._rest))]

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self.marks and not any(mark in line for mark in self.marks):
            return
        text = _PREFIX.sub("", _ANSI.sub("", line.decode("utf-8", "replace")).rpartition("\r")[2] or line.decode("utf-8", "replace"))
        if (step := self.read(text)) is not None:
            events.append(step)
