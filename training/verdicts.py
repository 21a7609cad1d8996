"""What the gate said of an export: every rule with its numbers. Part of the run's record, and of the release's lineage."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen piece of a verdict; what a later version adds is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Measured(Part):
    """One evaluation that the verdict rests on. Rates are shares of mazes really solved; `low` and `high` are Wilson's 95 %."""

    who: Literal["baseline", "candidate", "current release"]
    maze_set: Literal["held-out", "fresh"]
    source: str
    solved: int
    mazes: int
    rate: float
    low: float
    high: float
    oracle_bound: float | None = None
    format_rate: float | None = None
    skyrl_pass_at_1: float | None = None
    max_turns: int | None = None

    @property
    def of_bound(self) -> float | None:
        """Share of the oracle bound; None if there is no bound or it is 0."""
        return self.rate / self.oracle_bound if self.oracle_bound else None


class Comparison(Part):
    """The candidate against another on the same mazes. `gained`: only the candidate solved it; p values are exact, one-sided."""

    against: Literal["baseline", "current release"]
    maze_set: Literal["held-out", "fresh"]
    mazes: int
    gained: int
    lost: int
    difference: float
    low: float
    high: float
    p_better: float
    p_worse: float


class Rule(Part):
    """One thing that the gate looks at."""

    name: str
    passed: bool
    said: str


class Verdict(Part):
    """All of it. `at` is UTC in ISO 8601; `export_digest` says of which bytes; `selected` how the step was chosen."""

    at: str
    run_id: str
    step: int
    selected: Literal["best", "step"]
    passed: bool
    export_digest: str
    trainer: Literal["skyrl", "stand-in"]
    current_release: str | None = None
    measured: tuple[Measured, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    rules: tuple[Rule, ...] = ()
    thresholds: dict[str, float | bool] = {}

    def of(self, who: str, maze_set: str = "held-out") -> Measured | None:
        """One evaluation; None if it was not there."""
        return next((each for each in self.measured if (each.who, each.maze_set) == (who, maze_set)), None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the gate said no."""
        return tuple(f"{rule.name}: {rule.said}" for rule in self.rules if not rule.passed)

    def same_as(self, other: Verdict) -> bool:
        """Whether both say the same, whenever it was said."""
        return self.model_copy(update={"at": ""}) == other.model_copy(update={"at": ""})
