"""What every command shares: the chosen environment, and how it speaks to a person or to a program."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from config.environment import Environment


@dataclass(frozen=True)
class Session:
    """One run of the command. Results go to standard output, progress and remarks to standard error."""

    environment_name: str = "reference"
    json: bool = False

    def environment(self) -> Environment:
        """Load the chosen environment. Raises Refused with every problem."""
        from config.load import load

        env = load(self.environment_name)
        if "." not in self.environment_name and "/" not in self.environment_name and env.name != self.environment_name:
            # A copy whose `name:` was not changed: everything below would be the other one's.
            self.note(f"environments/{self.environment_name}.yaml is environment {env.name}: that is what its `name:` says")
        return env

    @property
    def terminal(self) -> bool:
        """Whether a person looks at standard output."""
        return not self.json and sys.stdout.isatty()

    def note(self, text: str) -> None:
        """Progress: for people only."""
        if not self.json:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def result(self, document: Mapping[str, Any] | Sequence[Any], *lines: str) -> None:
        """The outcome: the document as JSON, or the lines."""
        if self.json:
            sys.stdout.write(json_text(document, indent=2) + "\n")
        else:
            sys.stdout.writelines(harmless(line) + "\n" for line in lines)
        sys.stdout.flush()

    def line(self, document: Mapping[str, Any]) -> None:
        """One event of a stream, as one line of JSON."""
        sys.stdout.write(json_text(document, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def harmless(text: str) -> str:
    """Text that somebody else may have written (a reason, a log's last words) without anything that a terminal would obey."""
    from config.problems import printable

    return printable(text, keep="\n\t")


def json_text(document: Any, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """A document as JSON that standard output can carry: escaped to ASCII where its encoding is not UTF-8.

    Half of a surrogate pair (a file name that is not UTF-8) has no UTF-8 form, so then everything is escaped, too.
    """
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators, default=str)
    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "") == "utf8"
    if unicode and not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return json.dumps(document, indent=indent, separators=separators, default=str)


DOCUMENT = "One JSON document on standard output, also for errors."
EVENTS = "One JSON object a line on standard output, one for each event; also for errors."


def shown(path: Path) -> str:
    """A path as a reader of this terminal would type it: relative where it lies below the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def common(function: Callable[..., Any], *, json_help: str = DOCUMENT) -> Callable[..., Any]:
    """Give a command `--env` and `--json` (both may also stand before the command) and the session as its first argument."""

    @click.option("--env", "own_environment", metavar="NAME|FILE", help="Environment (may also stand before the command).")
    @click.option("--json", "own_json", is_flag=True, help=json_help)
    @click.pass_context
    @functools.wraps(function)
    def wrapper(context: click.Context, /, *args: Any, own_environment: str | None, own_json: bool, **kwargs: Any) -> Any:
        session = context.obj if isinstance(context.obj, Session) else Session()
        session = replace(session, environment_name=own_environment or session.environment_name, json=session.json or own_json)
        return function(session, *args, **kwargs)

    return wrapper


def streaming(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `common`, for a command whose `--json` is a stream of events."""
    return common(function, json_help=EVENTS)


class Positive(click.FloatRange):
    """A number above 0; neither `nan`, which is below and above nothing, nor an endless one."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for anything else."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number above 0", param, ctx)
        return number


def timeout(minutes: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--timeout MINUTES`, for a command that waits for the cluster."""
    return click.option(
        "--timeout",
        "minutes",
        type=Positive(),
        default=minutes,
        show_default=True,
        metavar="MINUTES",
        help="Give up waiting after this long; running the command again goes on.",
    )


def table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> list[str]:
    """Columns aligned with blanks: the same on a terminal and in a file."""
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (headers, *rows)]
