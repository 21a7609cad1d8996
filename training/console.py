"""One streaming parser of SkyRL's console output: bytes in any cutting go in, training steps come out.

SkyRL logs a step as `… - Step 10: ` followed by a Python dictionary over many lines, colored even without a terminal, each line
prefixed by Ray with the worker that wrote it (`(visgym_entrypoint pid=14915, ip=10.1.0.7) `); lines of other workers may come
between (skyrl/train/utils/tracking.py, loguru on standard error, forwarded by Ray). Memory is constant: a line is kept up to
64 KiB, a step is open for 256 KiB of log at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Metric: TypeAlias = int | float | str

LONGEST_LINE: Final = 64 * 1024
LONGEST_STEP: Final = 256 * 1024
MOST_OPEN: Final = 8
_STEP: Final = b"Step "
_DONE: Final = b"Training done!"
_ANSI: Final = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Ray's prefix: `(name pid=1)`, `(name pid=1, ip=10.0.0.1)`, `(autoscaler +3s)` has no pid and is no worker.
_PREFIX: Final = re.compile(rb"^(\([^()\n]{1,200}? pid=\d+(?:, ip=[^)\s]{1,60})?\)) ?")
_HEADER: Final = re.compile(rb"(?:^|- )Step (\d{1,12}): ?")
_PAIR: Final = re.compile(rb"'((?:[^'\\]|\\.){1,200})': (?:'((?:[^'\\]|\\.){0,400})'|([^\s,'{}\[\]]{1,100}))")
# A header line that nothing needs to be taken out of but its colors: group 1 is Ray's prefix as it stands on every line.
_WHOLE_HEADER: Final = re.compile(
    rb"((?:(?:\x1b\[\d+m)?\([^()\n\x1b]{1,200}? pid=\d+(?:, ip=[^)\s\x1b]{1,60})?\)(?:\x1b\[0m)? )?)"
    rb"[^()\n\r]{0,400}?- (?:\x1b\[\d+m){0,4}Step (\d{1,12}): ?$"
)
_ITEM: Final = re.compile(r"([^'\n]{1,200})': (?:'([\w.+/@-]{0,90})'|([\w.+/@-]{1,90}))").fullmatch


@dataclass(frozen=True)
class Step:
    """Metrics of one logged step, keys as SkyRL writes them. `whole` is False if its end was lost."""

    number: int
    metrics: Mapping[str, Metric]
    whole: bool = True


@dataclass(frozen=True)
class TrainingDone:
    """SkyRL's last words. The verdict is the job's status, not this."""


Event: TypeAlias = Step | TrainingDone


@dataclass
class _Open:
    """A step that is being read: one for each worker that writes one."""

    number: int
    metrics: dict[str, Metric] = field(default_factory=dict)
    size: int = 0  # bytes of all lines since its header, its own or not


@dataclass
class Parser:
    """State between two pieces of the log."""

    _rest: bytearray = field(default_factory=bytearray)
    _cut: bool = False
    _open: dict[bytes, _Open] = field(default_factory=dict)

    def feed(self, data: bytes) -> list[Event]:
        """Events that are complete after this piece. Never raises for whatever bytes."""
        events: list[Event] = []
        end = data.rfind(b"\n") + 1
        if not end:
            self._keep(data)
            return events
        start = 0
        if self._rest or self._cut:
            start = data.find(b"\n") + 1
            self._keep(data[: start - 1])
            self._line(bytes(self._rest), events)
            self._rest.clear()
            self._cut = False
        self._lines(data, start, end, events)
        self._keep(data[end:])
        return events

    def finish(self) -> list[Event]:
        """Events of what is left at the end of the log."""
        events: list[Event] = []
        if self._rest:
            self._line(bytes(self._rest), events)
        self._rest.clear()
        self._cut = False
        for writer in list(self._open):
            self._close(writer, events, whole=False)
        return events

    def _keep(self, piece: bytes) -> None:
        room = LONGEST_LINE - len(self._rest)
        if len(piece) > room:
            self._cut = True
        self._rest += piece[: max(0, room)]

    def _lines(self, data: bytes, start: int, end: int, events: list[Event]) -> None:
        """Whole lines in data[start:end]. Outside of a step only lines with a marker are looked at: that is what makes it fast."""
        step = done = -2
        while start < end:
            if not self._open:
                if step != -1 and step < start:
                    step = data.find(_STEP, start, end)
                if done != -1 and done < start:
                    done = data.find(_DONE, start, end)
                marker = min((place for place in (step, done) if place >= 0), default=-1)
                if marker < 0:
                    return
                start = data.rfind(b"\n", start, marker) + 1 or start
            stop = data.find(b"\n", start, end)
            if not self._open and (after := self._block(data, start, stop, end, events)):
                start = after
                continue
            self._line(data[start : min(stop, start + LONGEST_LINE)], events)
            start = stop + 1

    def _block(self, data: bytes, start: int, stop: int, end: int, events: list[Event]) -> int:
        """The common case at once: header and dictionary in one piece, with no other worker's line between.

        Returns where to go on, or 0 if this is no such case; line by line then gives the same result.
        """
        close = data.find(b"}", stop, min(end, stop + LONGEST_LINE))
        if close < 0:
            return 0
        header = _WHOLE_HEADER.match(data, start, stop)
        if header is None or data.count(_STEP, start, close) != 1 or data.find(_DONE, start, close) >= 0:
            return 0
        after = data.find(b"\n", close, end) + 1
        if data[close + 1 : after].rstrip() not in (b"", b"\x1b[0m"):
            return 0
        prefix, region = header[1], data[stop + 1 : close]
        if not region.startswith(prefix) or region.count(b"\n") != region.count(b"\n" + prefix):
            return 0
        text = region.replace(b"\n" + prefix, b"\n")[len(prefix) :]
        if not text.startswith(b"{'") or not text.isascii() or b"\x1b" in text or b"\r" in text or b"\\" in text:
            return 0
        items = text[2:].decode("ascii").split(",\n '")
        metrics: dict[str, Metric] = {}
        for item in items:
            pair = _ITEM(item)
            if pair is None:
                return 0
            name, quoted, plain = pair.groups()
            metrics[name] = _text_number(quoted if plain is None else plain)
        events.append(Step(int(header[2]), metrics))
        return after

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not self._open and _STEP not in line and _DONE not in line:
            return
        self._age(len(line), events)
        if b"\x1b" in line:
            line = _ANSI.sub(b"", line)
        if b"\r" in line:  # a progress bar that was drawn over
            line = line.rstrip(b"\r").rpartition(b"\r")[2]
        writer = b""
        if line.startswith(b"(") and (prefix := _PREFIX.match(line)):
            writer, line = prefix[1], line[prefix.end() :]
        header = _HEADER.search(line) if _STEP in line else None
        if header is not None:
            self._close(writer, events, whole=False)
            if len(self._open) >= MOST_OPEN:
                self._close(next(iter(self._open)), events, whole=False)
            self._open[writer] = _Open(int(header[1]))
            line = line[header.end() :]
        elif _DONE in line:
            events.append(TrainingDone())
        step = self._open.get(writer)
        text = line.strip()
        # Anything else of the same worker between two lines of the dictionary is passed over.
        if step is not None and text.startswith((b"{", b"'")):
            for name, quoted, plain in _PAIR.findall(text):
                step.metrics[name.decode("utf-8", "replace")] = _number(plain or quoted)
            if text.endswith(b"}"):
                self._close(writer, events, whole=True)

    def _age(self, size: int, events: list[Event]) -> None:
        """A step whose end never comes is given up, so that the quick way past all other lines is taken again."""
        for writer, step in list(self._open.items()):
            step.size += size
            if step.size > LONGEST_STEP:
                self._close(writer, events, whole=False)

    def _close(self, writer: bytes, events: list[Event], *, whole: bool) -> None:
        step = self._open.pop(writer, None)
        if step is not None and (step.metrics or whole):
            events.append(Step(step.number, step.metrics, whole=whole))


def _number(value: bytes) -> Metric:
    return _text_number(value.decode("utf-8", "replace"))


def _text_number(text: str) -> Metric:
    """`'0.7500'` and `10` are numbers; anything else stays text."""
    # A failed conversion costs more than a look for the point.
    for kind in (float,) if "." in text else (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
