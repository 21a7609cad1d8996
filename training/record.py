"""The record of a run: what it was, what became of it, and who decided what. One file, `record.json`, whole or not there at all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from config.problems import Failed
from training import evaluations, layout
from training.results import Result
from training.verdicts import Verdict

if TYPE_CHECKING:
    from config.environment import Environment

FILE: Final = "record.json"
ABANDONED_SECONDS: Final = 3600.0
NO_PRICE: Final = "not known: there is no dated price for these instance types here"


def _aware(time: str) -> str:
    if datetime.fromisoformat(time).tzinfo is None:
        raise ValueError("a time without a zone")
    return time


# UTC in ISO 8601, as it stands in the file.
Moment = Annotated[str, AfterValidator(_aware)]


class Part(BaseModel):
    """A frozen piece of the record. Its fields stand in the file in the order in which they stand here."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Code(Part):
    """The commit that the launcher ran from; `dirty`: with changes that were not committed."""

    commit: str = "unknown"
    dirty: bool = True


class Image(Part):
    """The training image. Only a digest says which one it really was: a tag can be moved."""

    uri: str = ""
    digest: str | None = None


class Model(Part):
    """The base model. `revision` is what the environment asked for; `commit`, of the hub, is what lay at the path: "" if not seen."""

    path: str = ""
    repository: str = ""
    subfolder: str = ""
    revision: str = ""
    commit: str = ""


class Dataset(Part):
    """A file of the dataset. The digest is None where the file is not visible from here."""

    purpose: Literal["training", "evaluation"]
    path: str
    sha256: str | None = None


class Nodes(Part):
    """Where the run's pods were."""

    region: str = ""
    ray_cluster: str = ""
    head_type: str = ""
    worker_type: str = ""
    workers: int = 0
    gpus: int = 0


class AttemptRecord(Part):
    """One Ray job. Times are UTC in ISO 8601; steps are those that its log tells of.

    `supervised_since`: a supervisor began it, and that number is of the attempt which it had watched first.
    """

    number: int
    submission_id: str
    status: str
    reason: str = ""
    started: Moment | None = None
    ended: Moment | None = None
    driver_exit_code: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    steps_lost: int = 0
    gpus: int = 0
    submitted_by: str = "unknown"
    commit: str = "unknown"
    dirty: bool = True
    image: str = ""
    specification: str = ""
    config: str = ""
    supervised_since: int | None = None


class Checkpoint(Part):
    """A folder of full training state; `latest` is the one that a new attempt resumes from."""

    step: int
    path: str
    size_bytes: int
    on_disk: bool = True
    latest: bool = False


class Export(Part):
    """An adapter that serving can take."""

    step: int
    path: str


class Evaluation(Part):
    """One evaluation. `solved` is whole where the dump was read; else `source` says that it is an estimate."""

    step: int
    attempt: int | None
    rate: float
    low: float
    high: float
    solved: float
    mazes: int
    source: str
    oracle_bound: float | None = None
    bound_source: str | None = None
    skyrl_pass_at_1: float | None = None
    results: tuple[evaluations.Maze, ...] = ()


class Usage(Part):
    """GPUs times the time between start and end of each attempt; what nodes cost while no attempt ran is not in it."""

    gpu_hours: float = 0.0
    complete: bool = True
    cost_usd: float | None = None
    cost_note: str = NO_PRICE


class Event(Part):
    """Something that was decided or that happened, and when (UTC, ISO 8601)."""

    time: str
    kind: str
    attempt: int | None
    text: str


class Record(Part):
    """Everything about one run. `environment_matches`: today's environment file is the one that the run was submitted with."""

    format: int = 1
    run_id: str
    environment: str
    environment_matches: bool = True
    updated: str = ""
    status: str = "UNKNOWN"
    code: Code = Code()
    image: Image = Image()
    config: str = ""
    specification: str = ""
    from_run: str | None = None
    model: Model = Model()
    datasets: tuple[Dataset, ...] = ()
    overrides: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    nodes: Nodes = Nodes()
    attempts: tuple[AttemptRecord, ...] = ()
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    missing_steps: tuple[tuple[int, int], ...] = ()
    median_step_seconds: float | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    exports: tuple[Export, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    usage: Usage = Usage()
    events: tuple[Event, ...] = ()
    results: tuple[Result, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def baseline(self) -> Evaluation | None:
        """The evaluation before any training; None if there was none."""
        return next((each for each in self.evaluations if each.step == 0), None)

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the highest solve rate, the earliest of equals."""
        return max(self.evaluations, key=lambda each: (each.rate, -each.step), default=None)

    def text(self) -> str:
        """As it stands in the file."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"


def folder_here(env: Environment, run_id: str) -> Path | None:
    """The run's folder on this machine; None if the shared file system is not visible here."""
    return layout.here(env, layout.run_folder(env, run_id).root)


def kept(env: Environment) -> dict[str, Record]:
    """The runs that have a record on the shared file system, by id; empty where it is not visible here. A broken record is passed over."""
    root = layout.here(env, layout.runs(env))
    found = {}
    for folder in sorted(root.iterdir()) if root is not None and root.is_dir() else ():
        with contextlib.suppress(Failed, OSError):
            if (known := read(folder)) is not None:
                found[known.run_id] = known
    return found


def read(folder: Path) -> Record | None:
    """The record in a run's folder; None if there is none. Raises Failed if the file is no record."""
    try:
        return Record.model_validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        fix = "move it away and run the command again"
        raise Failed(f"{folder / FILE} is no record of a run ({error.error_count()} errors in it); {fix}") from None


def write(folder: Path, record: Record) -> None:
    """Put the record there, whole or not at all, also after a power cut. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{FILE}.{os.getpid()}.tmp"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(record.text())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / FILE)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    for left in folder.glob(f".{FILE}.*.tmp"):  # of a writer that was killed; a living one needs a moment, no hour
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                left.unlink()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer at a time between reading and writing; without the lock where the file system has none (Lustre without `flock`)."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{FILE}.lock").open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def event(kind: str, text: str, *, attempt: int | None = None, now: datetime | None = None) -> Event:
    """An event of this moment."""
    return Event(time=(now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds"), kind=kind, attempt=attempt, text=text)
