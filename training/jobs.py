"""Attempts of runs as Ray jobs: submit once, attach, list, stop. A run's state is what Ray's Jobs API says, never what a log says."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from config import names
from config.environment import Environment
from config.problems import Failed, Problem, Refused, Unreachable
from training import provenance, record
from training.connection import Answered, Connection, Lost, connect
from training.run import Specification

__all__ = ["Attempt", "Gone", "Outcome", "attempts", "connect", "details", "log", "newest", "recorded", "runs", "stop", "submit"]

TERMINAL: Final = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
# Words of the record, not of Ray, for an attempt that Ray has forgotten.
FORGOTTEN: Final = frozenset({"LOST", "UNKNOWN"})
# Of a job's metadata: the attempt that a supervisor had watched first when it began this one.
SUPERVISED_SINCE: Final = "supervised_since"
_SUBMISSION: Final = re.compile(r"^(?P<run>[a-z0-9][a-z0-9-]*)-a(?P<attempt>[1-9][0-9]*)$")


class Gone(Unreachable):
    """The Ray cluster answers, and does not know the job (any more)."""


@dataclass(frozen=True)
class Attempt:
    """One Ray job of a run. Times in seconds since the epoch; `status` is Ray's word (PENDING, RUNNING, …)."""

    run_id: str
    number: int
    status: str
    message: str = ""
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    metadata: Mapping[str, str] | None = None

    @property
    def submission_id(self) -> str:
        """Ray's id of the job."""
        return names.submission_id(self.run_id, self.number)

    @property
    def running(self) -> bool:
        """Whether it may still change."""
        return self.status not in TERMINAL | FORGOTTEN

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "run_id": self.run_id, "attempt": self.number, "submission_id": self.submission_id, "status": self.status,
            "message": self.message, "started": _time(self.start), "ended": _time(self.end), "driver_exit_code": self.exit_code,
            "metadata": {key: value for key, value in (self.metadata or {}).items() if key not in ("overrides", provenance.KEY)},
        }  # fmt: skip


# ray/dashboard/modules/job/job_head.py
NO_AGENT, NO_JOB = "No available agent", "does not exist"


@dataclass(frozen=True)
class Outcome:
    """What a submit did: `submitted`, `attached` (it runs already) or `done` (it had succeeded, and nothing differs)."""

    action: str
    attempt: Attempt
    changes: Sequence[str] = ()
    # All attempts of the run that Ray knows now.
    known: Sequence[Attempt] = ()

    @property
    def sentence(self) -> str:
        """For people, on one line."""
        run, number = self.attempt.run_id, self.attempt.number
        if self.action == "attached":
            return f"run {run} is {self.attempt.status.lower()} as attempt {number} with this specification; nothing was submitted"
        if self.action == "done":
            return f"run {run} has succeeded (attempt {number}) with this specification; nothing was submitted"
        return f"run {run} submitted as attempt {number} ({self.attempt.submission_id})"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {"action": self.action, "changes": list(self.changes), **self.attempt.document()}


def submit(connection: Connection, specification: Specification, *, after: int = 0, supervised_since: int | None = None) -> Outcome:
    """Start a run, its next attempt, or nothing if it runs already: pressed twice, even at once, it submits one job.

    `after` is an attempt that was, as far as the caller knows: a restarted head may have forgotten it. `supervised_since`: a
    supervisor submits, and that is the attempt which it had watched first.
    Raises Refused if the run runs with another specification, or another run holds the GPUs; Unreachable; Failed if Ray refuses.
    """
    env, run_id, waiting = connection.environment, specification.run_id, False
    for _ in range(5):
        known = runs(connection)
        mine = known.get(run_id, ())
        last = mine[-1] if mine else None
        if last is not None and (outcome := _settled(last, specification)) is not None:
            return replace(outcome, known=mine)
        if last is None and (done := _succeeded(env, specification)) is not None:
            return Outcome("done", done)
        _refuse_taken(known, run_id)
        number = max((last.number if last else 0, after, *recorded(env, run_id))) + 1
        job = specification.job(number)
        overrides = json.dumps(dict(specification.overrides), sort_keys=True, separators=(",", ":"))
        metadata = {**job.metadata, "overrides": overrides, "submitted_by": submitter(), provenance.KEY: provenance.of(env).text()}
        if supervised_since is not None:
            metadata[SUPERVISED_SINCE] = str(supervised_since)
        try:
            # Repeating a lost call is safe: Ray takes a submission id once (ray/dashboard/modules/job/job_manager.py).
            connection.call(lambda client, job=job, metadata=metadata: client.submit_job(  # type: ignore[misc]
                entrypoint=job.entrypoint, submission_id=job.submission_id, runtime_env=dict(job.runtime_env), metadata=metadata,
            ))  # fmt: skip
        except Answered as error:
            if "already exists" in str(error):
                continue  # somebody was faster, or our own first call had arrived: look again
            if NO_AGENT in str(error):
                # Ray itself has waited 10 s for the head's job agent, which comes up after the dashboard.
                connection.note("the Ray head takes no jobs yet; trying again")
                waiting = True
                continue
            raise Failed(f"Ray refused the job: {_first_line(str(error))}") from None
        started = Attempt(run_id, number, "PENDING", metadata=metadata, start=time.time())
        changes = _differences(last, specification) if last is not None else ()
        return Outcome("submitted", started, changes=changes, known=(*mine, started))
    if waiting:
        raise Unreachable("the Ray head takes no jobs: its job agent does not come up; see `hyperpod-rl cluster status`, and its pod's log")
    raise Unreachable(f"the job table of the Ray cluster keeps changing under run {run_id}; submit it again")


def submitter() -> str:
    """Who submits, for the record: $HYPERPOD_RL_SUBMITTER, the person behind a GitHub workflow, else `user@host`."""
    if told := os.environ.get("HYPERPOD_RL_SUBMITTER") or os.environ.get("GITHUB_ACTOR"):
        return told.encode("utf-8", "replace").decode()[:200]  # an environment variable may hold bytes that are no text
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container whose user has no name
        return f"uid {os.getuid()}@{socket.gethostname()}"


def _settled(last: Attempt, specification: Specification) -> Outcome | None:
    """The outcome where nothing is to be submitted; None where the next attempt is due."""
    changes = _differences(last, specification)
    if last.running:
        if changes:
            stands = f"attempt {last.number} is {last.status.lower()}"
            fix = "stop it first, or choose another run id"
            raise Refused([Problem(f"run {last.run_id}", stands, f"what you submit differs in {change}", fix) for change in changes])
        return Outcome("attached", last)
    return Outcome("done", last) if last.status == "SUCCEEDED" and not changes else None


def _succeeded(env: Environment, specification: Specification) -> Attempt | None:
    """The attempt that ended this run well with this very specification, as the run's record tells it: Ray forgets with its head."""
    folder = record.folder_here(env, specification.run_id)
    with contextlib.suppress(Failed):
        known = record.read(folder) if folder is not None else None
        last = known.attempts[-1] if known is not None and known.attempts else None
        if last is not None and last.status == "SUCCEEDED" and last.specification == specification.digest:
            return Attempt(specification.run_id, last.number, last.status, exit_code=last.driver_exit_code)
    return None


def _refuse_taken(known: Mapping[str, Sequence[Attempt]], run_id: str) -> None:
    for other, its in known.items():
        if other != run_id and its[-1].running:
            raise Refused(Problem("cluster", f"run {other} is {its[-1].status.lower()}", "a run uses all GPUs of the Ray cluster",
                                  f"wait for it, or stop it: hyperpod-rl stop {other}"))  # fmt: skip


def _differences(last: Attempt, specification: Specification) -> list[str]:
    metadata = last.metadata or {}
    if metadata.get("specification") == specification.digest:
        return []
    if "specification" not in metadata:
        return ["the specification, which that attempt does not tell"]
    try:
        before = dict(json.loads(metadata.get("overrides", "{}")))
    except (ValueError, TypeError):
        before = {}
    after = dict(specification.overrides)
    changed = [
        f"{key}: {_shown(before, key)} there, {_shown(after, key)} here"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    if metadata.get("image") != specification.image:
        changed.append(f"image: {metadata.get('image')} there, {specification.image} here")
    origin = str(specification.origin) if specification.origin is not None else None
    if metadata.get("from_run") != origin:
        changed.append(f"--from-run: {metadata.get('from_run') or 'nothing'} there, {origin or 'nothing'} here")
    return changed or ["the entrypoint or its variables"]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "nothing"


def runs(connection: Connection) -> dict[str, tuple[Attempt, ...]]:
    """All runs that the Ray cluster knows, each with its attempts in their order, the run that started last coming last.

    Raises Unreachable, also where Ray answers and does not tell: a dashboard that is up before its head's store is.
    """
    found: dict[str, list[Attempt]] = {}
    try:
        known = connection.call(lambda client: client.list_jobs())
    except Answered as error:
        raise Unreachable(f"Ray does not tell its jobs: {_first_line(str(error))}") from None
    for details in known:
        attempt = _attempt(details)
        if attempt is not None:
            found.setdefault(attempt.run_id, []).append(attempt)
    ordered = {run: tuple(sorted(its, key=lambda a: a.number)) for run, its in found.items()}
    return dict(sorted(ordered.items(), key=lambda item: item[1][-1].start or 0))


def attempts(connection: Connection, run_id: str) -> tuple[Attempt, ...]:
    """Attempts of one run in their order; empty if the cluster knows none."""
    return runs(connection).get(names.check_run_id(run_id), ())


def newest(connection: Connection, run_id: str) -> Attempt:
    """The newest attempt. Raises Refused naming the runs that there are."""
    known = runs(connection)
    if its := known.get(names.check_run_id(run_id)):
        return its[-1]
    folder = record.folder_here(connection.environment, run_id)
    if folder is not None and (folder / record.FILE).is_file():
        rule = "the Ray cluster has forgotten it with its head; what it left is on the shared file system"
        fix = f"`hyperpod-rl report {run_id}` shows it, and `status` and `logs` what it left in {folder}"
        with contextlib.suppress(Failed):
            if (kept := record.read(folder)) is not None and kept.status != "SUCCEEDED":
                fix += "; submitted again it goes on where it was"
        raise Refused(Problem("run", run_id, rule, fix))
    import difflib

    close = difflib.get_close_matches(run_id, known, n=1)
    there = f"did you mean {close[0]}?" if close else f"there are {', '.join(list(known)[-5:])}" if known else "there is none yet"
    raise Refused(
        Problem("run", run_id, "the Ray cluster knows no such run", there.rstrip(".?") if not close else f"did you mean {close[0]}")
    )


def details(connection: Connection, attempt: Attempt) -> Attempt:
    """The same attempt as it stands now.

    Raises Gone if the cluster no longer knows it (its head was restarted), Lost where Ray answers with another error of its own, which
    says nothing of the job.
    """
    try:
        found = _attempt(connection.call(lambda client: client.get_job_info(attempt.submission_id)))
    except Answered as error:
        if NO_JOB not in str(error):
            raise Lost(f"Ray does not tell how {attempt.submission_id} stands: {_first_line(str(error))}") from None
        raise Gone(
            f"the Ray cluster no longer knows {attempt.submission_id} ({_first_line(str(error))}); was its head restarted?"
        ) from None
    return found or attempt


def log(connection: Connection, attempt: Attempt) -> str:
    """The whole log of an attempt."""
    try:
        text: str = connection.call(lambda client: client.get_job_logs(attempt.submission_id))
    except Answered as error:
        raise Unreachable(f"there is no log of {attempt.submission_id}: {_first_line(str(error))}") from None
    return text


def stop(
    connection: Connection, run_id: str, *, timeout_seconds: float = 180, sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[Attempt, bool]:  # fmt: skip
    """Stop the running attempt and wait until Ray says that it has ended. Content if it had ended before.

    Returns the attempt and whether it was running. Raises Unreachable if it does not end in time.
    """
    attempt = newest(connection, run_id)
    if not attempt.running:
        return attempt, False
    try:
        connection.call(lambda client: client.stop_job(attempt.submission_id))
    except Answered as error:
        raise Unreachable(f"Ray did not stop {attempt.submission_id}: {_first_line(str(error))}") from None
    limit = now() + timeout_seconds
    while (attempt := details(connection, attempt)).running:
        if now() > limit:
            raise Unreachable(
                f"{attempt.submission_id} is still {attempt.status.lower()} {timeout_seconds:.0f} s after it was asked to stop"
            )
        sleep(0.5)
    return attempt, True


def _attempt(details: Any) -> Attempt | None:
    """An attempt from Ray's JobDetails; None for jobs that are no attempt of a run."""
    match = _SUBMISSION.match(details.submission_id or "")
    metadata = dict(details.metadata or {})
    if match is None or metadata.get("run_id", match["run"]) != match["run"]:
        return None
    status = getattr(details.status, "value", details.status)
    return Attempt(
        run_id=match["run"], number=int(match["attempt"]), status=str(status), message=_reason(details.message or ""),
        start=details.start_time / 1000 if details.start_time else None, end=details.end_time / 1000 if details.end_time else None,
        exit_code=details.driver_exit_code, metadata=metadata,
    )  # fmt: skip


def recorded(env: Environment, run_id: str) -> Sequence[int]:
    """Attempts that the run's folder knows of, if it is visible here: more than a restarted head remembers."""
    folder = record.folder_here(env, run_id)
    if folder is None:
        return []
    begun = folder / "attempts"
    found = [int(path.name) for path in begun.iterdir() if path.name.isdigit()] if begun.is_dir() else []
    with contextlib.suppress(Failed):  # a record that cannot be read keeps nobody from training
        if (known := record.read(folder)) is not None:
            found += (each.number for each in known.attempts)
    return found


def _first_line(text: str) -> str:
    # Ray puts the server's whole traceback into its error; the last line names the reason.
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    if not lines:
        return ""
    chosen = lines[-1] if lines[0].startswith(("Traceback", '"Traceback')) else lines[0]
    return chosen.strip('".')[:400]


def _reason(message: str) -> str:
    """Why a job ended: Ray's sentence, and the last line of the log, which Ray puts behind it, where the exception stands."""
    sentence, _, tail = message.partition(", last available logs")
    if (killed := re.search(r"exit code -(\d+)", sentence)) is not None:
        # A process that was killed said nothing of it: the log's last line is whatever it was doing.
        with contextlib.suppress(ValueError):
            return f"{_first_line(sentence)} (killed by {signal.Signals(int(killed[1])).name})"
    lines = [line for line in tail.splitlines()[1:] if line.strip()]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]) if lines else ""
    last = re.sub(r"^\(\S+ pid=[^)]*\) ?", "", plain).strip()
    return f"{_first_line(sentence)}; its log ends with: {last[:300]}" if last else _first_line(sentence)


def _time(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds is not None else None
