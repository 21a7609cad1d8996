"""What `status` and `logs` tell of a run that Ray has forgotten: its record, and the logs on the shared file system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from config.environment import Environment


def status(session: Session, env: Environment, run: str) -> int | None:
    """Show what the run's folder tells. Returns the exit code of its status; None if it tells nothing or is not visible here.

    Raises Failed if its record cannot be read.
    """
    from cli.attempts import stands
    from training import keeping, record, recording

    folder = record.folder_here(env, run)
    if folder is None or not (logged(folder) or (folder / record.FILE).is_file() or (folder / "attempts").is_dir()):
        return None
    # The folder itself is left as it is: `report` brings the record up to date.
    rows = keeping.left(env, run, folder)
    known = recording.build(env, run, attempts=(), rows=rows, before=record.read(folder), folder=folder)
    seen = keeping.seen(run, rows, known)
    rated = [step for step in seen if step.solve_rate is not None]
    return stands(
        session, run, recording.remembered(known), last=seen[-1] if seen else None, rated=rated[-1] if rated else None,
        known_to_ray=False, last_step=known.last_step, status=known.status,
    )  # fmt: skip


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
    if session.json:
        text = path.read_text(encoding="utf-8", errors="replace")
        session.result({"run_id": run, "attempt": chosen, "status": None, "known_to_ray": False, "log": text})
        return True
    last = "\n"
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        while piece := file.read(1 << 20):  # a week of training prints gigabytes
            click.echo(piece, nl=False)
            last = piece
    click.echo("", nl=not last.endswith("\n"))
    session.note(f"Ray no longer knows attempt {chosen}: this is {path}")
    return True
