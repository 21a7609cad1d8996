"""The record of a run: what it was, what became of it, and who decided what. One file, `record.json`, whole or not there at all.

It is put together from what the Ray cluster says now, from what lies in the run's folder, and from the record as it was: the
job table dies with the Ray head and old checkpoints are removed, but what the record has once held stays in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.digest import value_digest
from config.problems import Failed
from training import evaluations, layout, series
from training.skyrl_keys import Value

if TYPE_CHECKING:
    from config.environment import Environment
    from training.jobs import Attempt

FILE: Final = "record.json"
NO_PRICE: Final = "not known: there is no dated price for these instance types here"
TRAINER_ATTEMPT_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


class Part(BaseModel):
    """A frozen piece of the record. Its fields stand in the file in the order in which they stand here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Code(Part):
    """The commit that the launcher ran from; `dirty`: with changes that were not committed."""

    commit: str = "unknown"
    dirty: bool = True


class Image(Part):
    """The training image. Only a digest says which one it really was: a tag can be moved."""

    uri: str = ""
    digest: str | None = None


class Model(Part):
    """The base model."""

    path: str = ""
    repository: str = ""
    subfolder: str = ""
    revision: str = ""


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
    """One Ray job. Times are UTC in ISO 8601; steps are those that its log tells of."""

    number: int
    submission_id: str
    status: str
    reason: str = ""
    started: str | None = None
    ended: str | None = None
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


def read(folder: Path) -> Record | None:
    """The record in a run's folder; None if there is none. Raises Failed if the file is no record."""
    try:
        return Record.model_validate_json((folder / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Failed(f"{folder / FILE} is no record of a run ({error.error_count()} errors); move it away and run the command again") from None


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


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer at a time between reading and writing; without the lock where the file system has none (Lustre without `flock`)."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{FILE}.lock").open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def update(
    env: Environment, run_id: str, *, folder: Path, attempts: Sequence[Attempt] | None, events: Sequence[Event] = (), now: datetime | None = None
) -> Record:  # fmt: skip
    """Bring the record in the run's folder up to date and return it. The file is left alone if nothing changed.

    Args:
        attempts: what the Ray cluster says of all attempts; None if it was not asked.
        events: added behind those that are there.

    Raises OSError, or Failed if there is a file that is no record.
    """
    with locked(folder):
        before = read(folder)
        rows = series.read(folder)
        after = build(env, run_id, attempts=attempts, rows=rows, before=before, folder=folder, events=events, now=now)
        if before is None or after.model_copy(update={"updated": before.updated}) != before:
            write(folder, after)
            return after
        return before


def build(
    env: Environment, run_id: str, *, attempts: Sequence[Attempt] | None, rows: Sequence[series.Row], before: Record | None = None,
    folder: Path | None = None, events: Sequence[Event] = (), now: datetime | None = None,
) -> Record:  # fmt: skip
    """Put a record together; nothing is reached or written. Arguments as for `update`; `rows` are the steps of all attempts."""
    before = before or Record(run_id=run_id, environment=env.name)
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    joined = series.joined(rows)
    its = _attempts(env, before.attempts, attempts, rows, folder)
    newest = max((a for a in attempts or () if a.metadata), key=lambda a: a.number, default=None)
    facts = _facts(env, before, newest.metadata or {} if newest is not None else {})
    started = joined[0].step if joined else before.first_step
    record = Record(
        run_id=run_id, environment=facts.environment, environment_matches=facts.environment_matches,
        updated=moment.isoformat(timespec="seconds"), status=its[-1].status if its else before.status,
        code=facts.code, image=facts.image, config=facts.config, specification=facts.specification, model=facts.model,
        datasets=_datasets(env, facts.overrides, before.datasets), overrides=facts.overrides, versions=facts.versions, nodes=facts.nodes,
        attempts=its, steps=len(joined) or before.steps, first_step=started, last_step=joined[-1].step if joined else before.last_step,
        missing_steps=tuple(series.gaps(joined)) if joined else before.missing_steps,
        median_step_seconds=series.median_seconds(joined) if joined else before.median_step_seconds,
        checkpoints=_checkpoints(env, run_id, folder, before.checkpoints), exports=_exports(env, run_id, folder, before.exports),
        evaluations=_evaluations(joined, folder, env, facts.overrides, before.evaluations), usage=_usage(its, moment),
        events=(*before.events, *events),
    )  # fmt: skip
    return record


def event(kind: str, text: str, *, attempt: int | None = None, now: datetime | None = None) -> Event:
    """An event of this moment."""
    return Event(time=(now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds"), kind=kind, attempt=attempt, text=text)


def _facts(env: Environment, before: Record, metadata: Mapping[str, str]) -> Record:
    """What the newest attempt was submitted with; of the environment file only if it is still the same."""
    if not metadata or (before.specification and before.specification == metadata.get("specification")):
        return before
    try:
        overrides: dict[str, Value] = dict(json.loads(metadata.get("overrides", "{}")))
    except (ValueError, TypeError):
        overrides = {}
    matches = metadata.get("config") == value_digest(env.model_dump(mode="json"))
    uri, training = metadata.get("image", ""), env.training
    versions = env.version_set
    return before.model_copy(
        update={
            "environment": metadata.get("environment", env.name), "environment_matches": matches,
            "code": Code(commit=metadata.get("commit", "unknown"), dirty=metadata.get("dirty") != "false"),
            "image": Image(uri=uri, digest=uri.partition("@")[2] or None),
            "config": metadata.get("config", ""), "specification": metadata.get("specification", ""),
            "model": Model(path=str(overrides.get("trainer.policy.model.path", training.base_model)), repository=training.base_model_repository,
                           subfolder=training.base_model_subfolder, revision=training.base_model_revision),
            "overrides": dict(sorted(overrides.items())),
            "versions": {
                "set": versions.name, "ray": versions.training.ray, "python": versions.training.python, "base_image": versions.training.base,
                "skyrl_commit": versions.training.skyrl_commit, "visgym_commit": versions.training.visgym_commit,
                "kuberay": versions.platform.kuberay, "kubernetes": versions.platform.kubernetes,
            },
            "nodes": Nodes(region=env.region, ray_cluster=f"{env.ray_cluster.namespace}/{env.ray_cluster.name}",
                           head_type=env.head.instance_type, worker_type=env.workers.instance_type, workers=env.workers.count,
                           gpus=env.training_gpus),
        }
    )  # fmt: skip


def _attempts(
    env: Environment, before: Sequence[AttemptRecord], now: Sequence[Attempt] | None, rows: Sequence[series.Row], folder: Path | None
) -> tuple[AttemptRecord, ...]:
    found = {each.number: each for each in before}
    for number, started in _begun(folder).items():
        found.setdefault(number, AttemptRecord(number=number, submission_id="", status="UNKNOWN", started=started))
    known = {each.number for each in now or ()}
    for number, each in list(found.items()):
        if now is not None and number not in known and each.status in ("PENDING", "RUNNING", "UNKNOWN"):
            reason = "the Ray cluster no longer knows it; its head was restarted, or the cluster made anew"
            found[number] = each.model_copy(update={"status": "LOST", "reason": reason})
    for attempt in now or ():
        found[attempt.number] = _attempt(env, attempt)
    lost = series.repeated(rows)
    steps: dict[int, list[int]] = {}
    for row in rows:
        steps.setdefault(row.attempt, []).append(row.step)
    for number in sorted(found):
        if number in steps:
            told = {"first_step": min(steps[number]), "last_step": max(steps[number]), "steps_lost": lost[number]}
            found[number] = found[number].model_copy(update=told)
    return tuple(found[number] for number in sorted(found))


def _begun(folder: Path | None) -> dict[int, str]:
    """Attempts that wrote their own start into the run's folder: more than a restarted head remembers."""
    found = {}
    attempts = folder / "attempts" if folder is not None else None
    if attempts is None or not attempts.is_dir():
        return {}
    for path in attempts.iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                moment = datetime.strptime(path.read_text(encoding="utf-8").strip(), TRAINER_ATTEMPT_FORMAT).replace(tzinfo=UTC)
                found[int(path.name)] = moment.isoformat(timespec="seconds")
    return found


def _attempt(env: Environment, attempt: Attempt) -> AttemptRecord:
    told, metadata = attempt.document(), attempt.metadata or {}
    return AttemptRecord(
        number=attempt.number, submission_id=attempt.submission_id, status=attempt.status,
        reason="" if attempt.running or attempt.status == "SUCCEEDED" else attempt.message,
        started=told["started"], ended=told["ended"], driver_exit_code=attempt.exit_code, gpus=_gpus(env, metadata),
        submitted_by=metadata.get("submitted_by", "unknown"), commit=metadata.get("commit", "unknown"),
        dirty=metadata.get("dirty") != "false", image=metadata.get("image", ""), specification=metadata.get("specification", ""),
        config=metadata.get("config", ""),
    )  # fmt: skip


def _gpus(env: Environment, metadata: Mapping[str, str]) -> int:
    """GPUs that an attempt holds: those of the policy, and of the rollout engines where they have their own."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        told = json.loads(metadata["overrides"])
        gpus = int(told["trainer.placement.policy_num_nodes"]) * int(told["trainer.placement.policy_num_gpus_per_node"])
        if told.get("trainer.placement.colocate_all") is False:
            engine = int(told["generator.inference_engine.num_engines"])
            for axis in ("tensor", "pipeline", "data"):
                engine *= int(told.get(f"generator.inference_engine.{axis}_parallel_size") or 1)
            gpus += engine
        return gpus
    return env.training_gpus


def _usage(attempts: Sequence[AttemptRecord], now: datetime) -> Usage:
    seconds, complete = 0.0, True
    for each in attempts:
        if each.started is None or (each.ended is None and each.status not in ("PENDING", "RUNNING")):
            complete = False  # nobody saw it end
            continue
        end = datetime.fromisoformat(each.ended) if each.ended else now
        seconds += max(0.0, (end - datetime.fromisoformat(each.started)).total_seconds()) * each.gpus
    return Usage(gpu_hours=round(seconds / 3600, 3), complete=complete)


def _datasets(env: Environment, overrides: Mapping[str, Any], before: Sequence[Dataset]) -> tuple[Dataset, ...]:
    known = {each.path: each for each in before if each.sha256}
    found = []
    for purpose, key in (("training", "data.train_data"), ("evaluation", "data.val_data")):
        for path in overrides.get(key) or ():
            here = layout.here(env, str(path))
            digest = evaluations.file_digest(here) if here is not None and str(path) not in known else None
            found.append(known.get(str(path)) or Dataset(purpose=purpose, path=str(path), sha256=digest))  # type: ignore[arg-type]
    return tuple(found)


def _checkpoints(env: Environment, run_id: str, folder: Path | None, before: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    if folder is None:
        return tuple(before)
    path = layout.run_folder(env, run_id).checkpoints
    found = {each.step: each.model_copy(update={"on_disk": False, "latest": False}) for each in before}
    latest = evaluations.marker(folder / "checkpoints")
    for step, place in evaluations.step_folders(folder / "checkpoints"):
        size = evaluations.size(place)
        found[step] = Checkpoint(step=step, path=f"{path}/{place.name}", size_bytes=size, latest=step == latest)
    return tuple(found[step] for step in sorted(found))


def _exports(env: Environment, run_id: str, folder: Path | None, before: Sequence[Export]) -> tuple[Export, ...]:
    found = {each.step: each for each in before}
    path = layout.run_folder(env, run_id).exports
    for step, place in evaluations.step_folders(folder / "exports") if folder is not None else ():
        # SkyRL renames a finished export into place, so a configuration that is there is a whole one.
        if (place / "policy" / "adapter_config.json").is_file():
            found[step] = Export(step=step, path=f"{path}/{place.name}/policy")
    return tuple(found[step] for step in sorted(found))


def _evaluations(
    joined: Sequence[series.Row], folder: Path | None, env: Environment, overrides: Mapping[str, Any], before: Sequence[Evaluation]
) -> tuple[Evaluation, ...]:
    known = {each.step: each for each in before}
    last = joined[-1].step if joined else None
    found = {} if joined else dict(known)
    turns = overrides.get("generator.max_turns", env.training.overrides.get("generator.max_turns", 1))
    for row in joined:
        dump = evaluations.dump(env, folder, row.step, max_turns=turns) if row.solve_rate is not None else None
        rate, results = dump or (row.solve_rate, known[row.step].results if row.step in known else ())
        if rate is not None and row.solve_rate is not None:
            told = rate.document() | {"skyrl_pass_at_1": row.solve_rate.pass_at_1}
            if told["oracle_bound"] is None and row.solve_rate.bound is not None:
                told |= {"oracle_bound": row.solve_rate.bound.rate, "bound_source": row.solve_rate.bound.source}
            found[row.step] = Evaluation(step=row.step, attempt=row.attempt, results=results, **told)
    if folder is not None:
        for step, _ in evaluations.dumps(folder):
            # A dump beyond the series is of steps that were lost; one within it, that the logs do not tell of, counts.
            if step not in found and (last is None or step <= last) and (dump := evaluations.dump(env, folder, step, max_turns=turns)):
                found[step] = Evaluation(step=step, attempt=None, results=dump[1], **dump[0].document())
    return tuple(found[step] for step in sorted(found))
