"""What is wrong with an input, said so that the reader can mend it."""

from __future__ import annotations

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
        value = self.value if len(self.value) <= 80 else f"{self.value[:60]}… ({len(self.value)} characters)"
        sentence = f"{self.field} = {value}: {self.rule}" if value else f"{self.field}: {self.rule}"
        return f"{sentence}; {self.fix}." if self.fix else f"{sentence}."


class Refused(Exception):
    """The input was refused and nothing was changed (exit code 2). Carries every problem, not the first only."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Unreachable(Exception):
    """Something that must answer did not (exit code 3). The message names it and says how to get it back."""


class Failed(Exception):
    """The job failed or a check said no (exit code 1)."""
