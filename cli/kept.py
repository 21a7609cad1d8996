"""What `status` and `logs` tell of a run that Ray has forgotten: its record, and the logs on the shared file system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.session import Session, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from config.environment import Environment
    from training.record import AttemptRecord

NO_LONGER = "Ray no longer knows this run: what its folder on the shared file system tells"


def status(session: Session, env: Environment, run: str) -> int | None:
    """Show what the run's folder tells. Returns the exit code of its status; None if it tells nothing or is not visible here.

    Raises Failed if its record cannot be read.
    """
    from training import record, recording, series

    folder = record.folder_here(env, run)
    if folder is None or not (logged(folder) or (folder / record.FILE).is_file() or (folder / "attempts").is_dir()):
        return None
    # The folder itself is left as it is: `report` brings the record up to date.
    known = recording.build(env, run, attempts=(), rows=series.read(folder), before=record.read(folder), folder=folder)
    last = known.attempts[-1] if known.attempts else None
    evaluation = known.evaluations[-1] if known.evaluations else None
    attempts = [each.model_dump(mode="json") for each in known.attempts]
    rows = [_row(each) for each in known.attempts]
    session.result(
        {
            "run_id": run, "status": known.status, "known_to_ray": False, "attempts": attempts, "last_step": known.last_step,
            "step": None, "evaluation": evaluation.model_dump(mode="json") if evaluation is not None else None,
        },
        f"run {run}: {known.status.lower()}" + (f", {last.reason}" if last is not None and last.reason else ""),
        *(table(rows, ("ATTEMPT", "STATUS", "STARTED", "ENDED", "EXIT")) if rows else ["no attempt is recorded"]),
        f"last step {known.last_step}" if known.last_step is not None else "no step yet",
        *([f"step {evaluation.step}: solve rate {evaluation.rate:.3f} [{evaluation.low:.3f}, {evaluation.high:.3f}] of"
           f" {evaluation.mazes} mazes ({evaluation.source})"] if evaluation is not None else []),
        NO_LONGER,
    )  # fmt: skip
    return 1 if known.status in ("FAILED", "STOPPED", "LOST") else 0


def _row(attempt: AttemptRecord) -> tuple[str, ...]:
    code = "-" if attempt.driver_exit_code is None else str(attempt.driver_exit_code)
    return str(attempt.number), attempt.status, attempt.started or "-", attempt.ended or "-", code


def logged(folder: Path) -> Sequence[int]:
    """Attempts whose jobs left a copy of their log, rising."""
    names = (path.stem.removeprefix("driver-a") for path in (folder / "logs").glob("driver-a*.log"))
    return sorted(int(name) for name in names if name.isdigit())


def log(session: Session, env: Environment, run: str, number: int | None) -> bool:
    """Print the kept log of an attempt, by default of the newest. False if there is none, or none is visible here."""
    from training import layout, record

    folder = record.folder_here(env, run)
    there = logged(folder) if folder is not None else ()
    if folder is None or not there or (number is not None and number not in there):
        return False
    chosen = number if number is not None else there[-1]
    path = layout.here(env, layout.run_folder(env, run).driver_log(chosen))
    if path is None:
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    if session.json:
        session.result({"run_id": run, "attempt": chosen, "status": None, "known_to_ray": False, "log": text})
    else:
        click.echo(text, nl=bool(text) and not text.endswith("\n"))
        session.note(f"Ray no longer knows attempt {chosen}: this is {path}")
    return True
