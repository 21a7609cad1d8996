"""What is wrong with an input, said so that the reader can mend it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong: where, with which value, against which rule, and what would mend it."""

    field: str
    value: str
    rule: str
    fix: str = ""

    def __str__(self) -> str:
        field, value = _cut(without_password(self.field)), _cut(without_password(self.value))
        place = f"{field} = {value}" if value else field
        sentence = _one_line(f"{place}: {self.rule}" if place else self.rule)
        if self.fix:
            sentence = f"{sentence}; {_one_line(self.fix)}"
        return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def without_password(text: str) -> str:
    """The text without the `user:password@` of the URLs in it."""
    return re.sub(r"://[^\s/]*@", "://***@", text)


def _one_line(text: str) -> str:
    return printable(without_password(text))


def printable(text: str, *, keep: str = "") -> str:
    """The text with what is not printable, which could end the line or rewrite it on a terminal, as in a Python literal."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


class Refused(Exception):
    """The input was refused and nothing was changed (exit code 2). Carries every problem, not the first only."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Unreachable(Exception):
    """Something that must answer did not (exit code 3). The message names it and says how to get it back."""


class Failed(Exception):
    """The job failed or a check said no (exit code 1)."""
