"""Keep what is seen of a run beside the run: each step as it comes, the record now and then. Keeping never ends what is watched."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from config.environment import Environment
from config.problems import Failed, Refused, Unreachable
from training import artifacts, follow, frameworks, jobs, layout, record, recording, series
from training.connection import Answered, Connection
from training.jobs import Attempt
from training.record import Record
from training.series import Row

EVERY_SECONDS: Final = 30.0
T = TypeVar("T")


@dataclass
class Keeper:
    """Writes steps and record of one run, if the shared file system is visible here; else it does nothing.

    The first thing that cannot be written is said; training and following go on without it.
    """

    connection: Connection
    run_id: str
    note: Callable[[str], None] = lambda _: None
    now: Callable[[], float] = time.monotonic
    folder: Path | None = field(init=False)
    _saved: series.Saved | None = None
    _last: float | None = None
    _told: bool = False

    def __post_init__(self) -> None:
        self.folder = record.folder_here(self.connection.environment, self.run_id)

    def step(self, seen: follow.StepSeen) -> None:
        """Keep one step."""
        if self.folder is None:
            return
        try:
            self._saved = self._saved or series.Saved(self.folder)
            self._saved.append([series.row(seen)])
        except OSError as error:
            self._failed(error)

    def catch_up(self, attempt: Attempt) -> None:
        """Keep the steps of an attempt that nobody saw come: those in the copy of its log that the job itself left."""
        if self.folder is None:
            return
        try:
            self._saved = self._saved or series.Saved(self.folder)
            self._saved.append(_copied(self.connection.environment, attempt, self.folder))
        except OSError as error:
            self._failed(error)

    def refresh(self, *events: record.Event, force: bool = True, known: Sequence[Attempt] | None = None) -> Record | None:
        """Bring the record up to date, with events if there are any; without `force` only when the last time is a while ago.

        `known`: all attempts of the run, where they were just asked for.
        """
        if self.folder is None or (not force and self._last is not None and self.now() - self._last < EVERY_SECONDS):
            return None
        self._last = self.now()
        try:
            known = known or jobs.attempts(self.connection, self.run_id)
        except (Unreachable, Answered):
            known = None
        try:
            return recording.update(self.connection.environment, self.run_id, folder=self.folder, attempts=known, events=events)
        except (OSError, Failed) as error:
            self._failed(error)
            return None

    def publish(self) -> None:
        """Copy the record of a run that has ended to the artifact bucket, if there is one; a copy that fails is only said."""
        env = self.connection.environment
        if self.folder is None or not artifacts.there(env):
            return
        try:
            known = record.read(self.folder)
            if known is not None and known.status in jobs.TERMINAL:
                self.note(f"record copied to {artifacts.copy(env, known)}")
        except (Failed, Unreachable, Refused, OSError) as error:
            self.note(f"the record of run {self.run_id} was not copied to the artifact bucket: {error}")

    def _failed(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            self.note(f"the record of run {self.run_id} cannot be kept: {error}")


def kept(events: Iterator[T], keeper: Keeper) -> Iterator[T]:
    """The same events, each kept before it is passed on."""
    for event in events:
        if isinstance(event, follow.StepSeen):
            keeper.step(event)
            keeper.refresh(force=False)
        elif isinstance(event, follow.Ended):
            keeper.catch_up(event.attempt)
            keeper.refresh()
            keeper.publish()
        yield event


@dataclass(frozen=True)
class History:
    """One run as a report shows it: its record, and one row a step."""

    record: Record
    series: tuple[Row, ...]
    source: str


def history(
    env: Environment, run_id: str, *, connection: Connection | None, note: Callable[[str], None] = lambda _: None
) -> History | None:
    """What is known of a run: from the logs of all its attempts on the Ray cluster, and from what was kept in its folder.

    Without a connection, from the folder alone. What the cluster tells is kept too, where the folder is visible. Returns None if
    neither knows the run; raises Failed if the folder holds a file that is no record.
    """
    folder = record.folder_here(env, run_id)
    before = record.read(folder) if folder is not None else None
    saved = series.united(_copies(env, run_id, folder), series.read(folder)) if folder is not None else []
    attempts = jobs.attempts(connection, run_id) if connection is not None else None
    logged = [row for attempt in attempts or () for row in _logged(connection, attempt, note)] if connection is not None else []
    if not attempts and before is None and not saved:
        return None
    rows = series.united(saved, logged)
    current = before if attempts is None else _written(env, run_id, folder, rows, attempts, note)
    current = current or recording.build(env, run_id, attempts=attempts, rows=rows, before=before, folder=folder)
    told = {row.attempt for row in logged}
    more = any(row.attempt not in told for row in saved)
    source = "Ray cluster and saved copy" if attempts and more else "Ray cluster" if attempts else "saved copy"
    return History(current, tuple(series.joined(rows)), source)


def left(env: Environment, run_id: str, folder: Path) -> list[Row]:
    """Steps that a run's folder tells of: those that a follower kept, else those in the logs that the jobs left."""
    return series.read(folder) or series.united(_copies(env, run_id, folder))


def seen(run_id: str, rows: Sequence[Row], known: Record) -> list[follow.StepSeen]:
    """The run's steps as a follower saw them, each with the solve rate that its record has: read from the dump, where there was one."""
    found = {
        row.step: follow.StepSeen(run_id, row.attempt, row.step, row.solve_rate, row.reward, row.step_seconds, row.metrics)
        for row in series.joined(rows)
    }
    for each in known.evaluations:
        bare = follow.StepSeen(run_id, each.attempt or 0, each.step, None, None, None, {})
        found[each.step] = replace(found.get(each.step, bare), solve_rate=series.rate_of(each.model_dump()))
    return [found[step] for step in sorted(found)]


def _copies(env: Environment, run_id: str, folder: Path) -> Iterator[Row]:
    """Steps of all attempts whose jobs left a copy of their log in the run's folder."""
    for path in sorted((folder / "logs").glob("driver-a*.log")) if (folder / "logs").is_dir() else ():
        number = path.stem.removeprefix("driver-a")
        if number.isdigit():
            yield from _copied(env, Attempt(run_id, int(number), "UNKNOWN"), folder)


def _copied(env: Environment, attempt: Attempt, folder: Path) -> list[Row]:
    """Steps in the copy of one attempt's log; empty if there is none."""
    path = folder / "logs" / Path(layout.run_folder(env, attempt.run_id).driver_log(attempt.number)).name
    turns = follow.max_turns(attempt, _overrides(env, folder))
    try:
        with path.open("rb") as file:
            steps = series.steps_of(iter(lambda: file.read(1 << 20), b""), frameworks.parser(env))
    except FileNotFoundError:
        return []
    return [series.row(follow.seen(env, attempt, step, turns=turns)) for step in steps]


def _overrides(env: Environment, folder: Path) -> Mapping[str, object]:
    """What the run was submitted with, as its record tells, else what the environment says today."""
    with contextlib.suppress(Failed, OSError):
        if (known := record.read(folder)) is not None and known.overrides:
            return known.overrides
    return env.training.overrides


def _logged(connection: Connection, attempt: Attempt, note: Callable[[str], None]) -> list[Row]:
    turns = follow.max_turns(attempt, connection.environment.training.overrides)
    try:
        steps = series.steps_of([jobs.log(connection, attempt).encode("utf-8", "replace")], frameworks.parser(connection.environment))
    except Unreachable as error:
        note(f"{error}; its steps are those that were kept")
        return []
    return [series.row(follow.seen(connection.environment, attempt, step, turns=turns)) for step in steps]


def _written(
    env: Environment, run_id: str, folder: Path | None, rows: Sequence[Row], attempts: Sequence[Attempt], note: Callable[[str], None]
) -> Record | None:
    if folder is None:
        return None
    try:
        series.Saved(folder).append(rows)
        return recording.update(env, run_id, folder=folder, attempts=attempts)
    except OSError as error:
        note(f"the record of run {run_id} cannot be kept: {error}")
        return None
