"""Attempts and runs as tables, and how one run stands: the same whether Ray tells of it, or only what it left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.session import Session, table

if TYPE_CHECKING:
    from training.follow import StepSeen
    from training.jobs import Attempt

RUN_HEADERS = ("RUN", "STATUS", "ATTEMPT", "STARTED", "ENDED")
NO_LONGER = "Ray no longer knows this run: what its folder on the shared file system tells"


def run_row(newest: Attempt, *, kept: bool = False) -> tuple[str, ...]:
    """One run under RUN_HEADERS; `kept`: only its record tells of it."""
    return newest.run_id, f"{newest.status} (kept)" if kept else newest.status, *_times(newest)


def attempt_table(attempts: Sequence[Attempt]) -> list[str]:
    """A run's attempts, a line each below the headers; a sentence where there is none."""
    rows = [(str(each.number), each.status, *_times(each)[1:], _exit(each)) for each in attempts]
    return table(rows, ("ATTEMPT", "STATUS", "STARTED", "ENDED", "EXIT")) if rows else ["no attempt is recorded"]


def stands(
    session: Session, run: str, attempts: Sequence[Attempt], *, last: StepSeen | None, rated: StepSeen | None, known_to_ray: bool = True,
    last_step: int | None = None, status: str = "UNKNOWN",
) -> int:  # fmt: skip
    """Show how a run stands, and return the exit code of that: 1 if its newest attempt failed, was stopped or is lost.

    Args:
        last: its newest step; `last_step` may be known without, or be a later one.
        rated: the newest step that was evaluated.
        status: where no attempt is known.
    """
    newest = attempts[-1] if attempts else None
    status = newest.status if newest is not None else status
    step = max((each for each in (last_step, last.step if last is not None else None) if each is not None), default=None)
    session.result(
        {
            "run_id": run, "status": status, "known_to_ray": known_to_ray, "attempts": [each.document() for each in attempts],
            "last_step": step, "step": last.document() if last is not None else None,
            "evaluation": rated.document() if rated is not None else None,
        },
        f"run {run}: {status.lower()}" + (f", {newest.message}" if newest is not None and newest.message else ""),
        *attempt_table(attempts),
        f"last step {step}" if step is not None else "no step yet",
        *([f"step {rated.step}: {rated.solve_rate.sentence()}"] if rated is not None and rated.solve_rate is not None else []),
        *([] if known_to_ray else [NO_LONGER]),
    )  # fmt: skip
    return 1 if status in ("FAILED", "STOPPED", "LOST") else 0


def _times(attempt: Attempt) -> tuple[str, str, str]:
    document = attempt.document()
    return str(attempt.number) if attempt.number else "-", document["started"] or "-", document["ended"] or "-"


def _exit(attempt: Attempt) -> str:
    return "-" if attempt.exit_code is None else str(attempt.exit_code)
