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
from functools import lru_cache
from typing import Final, TypeAlias

from pydantic_core import from_json

Metric: TypeAlias = int | float | str

LONGEST_LINE: Final = 64 * 1024
LONGEST_STEP: Final = 256 * 1024
MOST_OPEN: Final = 8
_STEP: Final = b"Step "
_DONE: Final = b"Training done!"
_LAST: Final = b"}\x1b[0m\n"  # how a colored step ends
# Where a header may be: colors may stand in its number.
_MARKED: Final = re.compile(rb"Step (?:\d{1,12}[:\x1b]|\x1b)")
_ANSI: Final = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Ray's prefix: `(name pid=1)`, `(name pid=1, ip=10.0.0.1)`, `(autoscaler +3s)` has no pid and is no worker.
_PREFIX: Final = re.compile(rb"^(\([^()\n]{1,200}? pid=\d+(?:, ip=[^)\s]{1,60})?\)) ?")
_HEADER: Final = re.compile(rb"(?:^|- )Step (\d{1,12}): ?")
_PAIR: Final = re.compile(rb"'((?:[^'\\]|\\.){1,200})': (?:'((?:[^'\\]|\\.){0,400})'|([^\s,'{}\[\]]{1,400}))")
# A header line that nothing needs to be taken out of but its colors: group 1 is Ray's prefix as it stands on every line.
_WHOLE_HEADER: Final = re.compile(
    rb"((?:(?:\x1b\[\d+m)?\([^()\n\x1b]{1,200}? pid=\d+(?:, ip=[^)\s\x1b]{1,60})?\)(?:\x1b\[0m)? )?)"
    rb"[^()\n\r]{0,400}?- (?:\x1b\[\d+m){0,4}Step (\d{1,12}): ?$"
)
# Lines of a dictionary are looked at whole up to this; beyond, the limits of `_PAIR` come into play.
_PLAIN_LINE: Final = 190
_NUMBERS: Final = frozenset({int, float})
_KINDS: Final = frozenset({int, float, str})


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
    _held: bytearray = field(default_factory=bytearray)  # a step whose end has not come yet, from its header on: read at once later
    _numbers: bool = True  # every step so far had nothing but numbers, so the next one will, too

    def feed(self, data: bytes) -> list[Event]:
        """Events that are complete after this piece. Never raises for whatever bytes."""
        events: list[Event] = []
        if self._held:
            if len(self._held) + len(data) <= LONGEST_LINE and b"}" not in data and _DONE not in data:
                self._held += data
                return events
            data = bytes(self._held) + data
            self._held.clear()
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
        unfinished = self._lines(data, start, end, events)
        if unfinished >= 0 and len(data) - unfinished <= LONGEST_LINE:
            self._held += data[unfinished:]
            return events
        if unfinished >= 0:
            self._lines(data, unfinished, end, events, hold=False)
        self._keep(data[end:])
        return events

    def finish(self) -> list[Event]:
        """Events of what is left at the end of the log."""
        events: list[Event] = []
        if self._held:
            data = bytes(self._held)
            end = data.rfind(b"\n") + 1
            self._lines(data, 0, end, events, hold=False)
            self._keep(data[end:])
            self._held.clear()
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

    def _lines(self, data: bytes, start: int, end: int, events: list[Event], *, hold: bool = True) -> int:
        """Whole lines in data[start:end]. Outside of a step only lines with a marker are looked at: that is what makes it fast.

        Returns where a step begins whose end has not come yet, with `hold`; else -1.
        """
        step = done = -2
        while start < end:
            if not self._open:
                if step != -1 and step < start:
                    found = _MARKED.search(data, start, end)
                    step = found.start() if found else -1
                if done != -1 and done < start:
                    done = data.find(_DONE, start, end)
                marker = min((place for place in (step, done) if place >= 0), default=-1)
                if marker < 0:
                    return -1
                start = data.rfind(b"\n", start, marker) + 1 or start
            stop = data.find(b"\n", start, end)
            after = 0 if self._open else self._block(data, start, stop, end, events)
            if after < 0 and hold:
                return start
            if after > 0:
                start = after
                continue
            self._line(data[start : min(stop, start + LONGEST_LINE)], events)
            start = stop + 1
        return -1

    def _block(self, data: bytes, start: int, stop: int, end: int, events: list[Event]) -> int:
        """The common case at once: header and dictionary in one piece; lines of other workers may stand between.

        Returns where to go on, -1 if more of the log may make it such a case, or 0 if it is none; line by line gives the same result.
        """
        last = stop - 1 if data[stop - 1 : stop] == b"\r" else stop
        header = _WHOLE_HEADER.match(data, start, last)
        if header is None:
            return 0
        prefix, limit = header[1], min(end, stop + LONGEST_LINE)
        close = data.find(_LAST, stop, limit)
        if close < 0 or not data.startswith(prefix, data.rfind(b"\n", stop, close) + 1):
            close = stop
            while True:  # the first brace on a line of this worker
                close = data.find(b"}", close + 1, limit)
                if close < 0:
                    return -1 if limit == end and data.find(_DONE, start, end) < 0 else 0
                if data.startswith(prefix, data.rfind(b"\n", stop, close) + 1):
                    break
        after = data.find(b"\n", close, end) + 1
        if data[close + 1 : after].rstrip() not in (b"", b"\x1b[0m"):
            return 0
        if data.count(_STEP, start, stop) != 1 or data.find(_DONE, start, stop) >= 0:
            return 0
        text = _own_text(data[stop + 1 : close], prefix)
        if text is None:
            return 0
        metrics = _only_numbers(text) if self._numbers else None
        if metrics is None:
            metrics = _with_words(text)
            if metrics is None:
                return 0
            self._numbers = False
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


# The metrics of a dictionary in one piece are read some times faster than pair by pair: quotes are replaced, and a
# JSON parser in Rust reads it.
# Whatever would read otherwise line by line must end in None: JSON's true and null, blanks and line ends that it passes over.


@lru_cache(maxsize=16)
def _writer(prefix: bytes) -> bytes:
    """Ray's prefix without its colors."""
    return _ANSI.sub(b"", prefix).rstrip()


def _own_text(region: bytes, prefix: bytes) -> bytes | None:
    """The lines of one worker without its prefix, one pair or more a line."""
    if b'"' in region or b"\\" in region or b"\t" in region:
        return None
    if b"\r" in region:
        region = region.replace(b"\r\n", b"\n")
    lines = region.split(b"\n")
    if region.count(b"\n" + prefix) + 1 != len(lines):
        lines = [line for line in lines if line.startswith(prefix)]
        if region.count(_writer(prefix)) != len(lines) or _STEP in region or _DONE in region:
            return None  # the same worker, written otherwise; or more that wants to be looked at
    if not lines or max(map(len, lines)) > _PLAIN_LINE + len(prefix):
        return None
    text = b"\n".join([line[len(prefix) :] for line in lines]) if prefix else region
    # Every line but the last ends in a comma, and every line but the first begins with a key.
    if not text.startswith(b"{'") or text.count(b",\n '") + 1 != len(lines):
        return None
    return None if b"\x1b" in text or b"\r" in text or _STEP in text or _DONE in text else text


def _only_numbers(text: bytes) -> dict[str, Metric] | None:
    text = text.replace(b"',\n '", b',"').replace(b",\n '", b',"').replace(b"': '", b'": ').replace(b"': ", b'": ')
    text = text[2:].removesuffix(b"'")
    if b"'" in text:
        return None
    try:
        found: dict[str, Metric] = from_json(b'{"' + text + b"}")
    except ValueError:
        return None
    plain = text.count(b" ") == len(found) and set(map(type, found.values())) <= _NUMBERS and "" not in found
    return found if plain else None


def _with_words(text: bytes) -> dict[str, Metric] | None:
    if b"  " in text:
        return None
    try:
        found: dict[str, Metric] = from_json(text.replace(b"'", b'"') + b"}")
    except ValueError:
        return None
    if len(found) != text.count(b"': ") or not set(map(type, found.values())) <= _KINDS or "" in found:
        return None
    return {name: value if value.__class__ is not str else _text_number(value) for name, value in found.items()}


def _number(value: bytes) -> Metric:
    return _text_number(value.decode("utf-8", "replace"))


def _text_number(text: str) -> Metric:
    """`'0.7500'` and `10` are numbers; anything else stays text."""
    # A failed conversion costs more than a look for the point.
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
