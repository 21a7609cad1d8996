"""How a record comes about: from what the Ray cluster says now, what lies in the run's folder, and the record as it was.

The job table dies with the Ray head and old checkpoints are removed, but what the record has once held stays in it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from config import prices
from config.digest import value_digest
from config.environment import Environment
from config.instances import INSTANCES
from training import checkpoints, evaluations, jobs, layout, provenance, record, results, series
from training.jobs import Attempt
from training.record import AttemptRecord, Checkpoint, Code, Dataset, Evaluation, Event, Export, Image, Nodes, Record, Usage
from training.skyrl_keys import Value

ATTEMPT_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"  # as the job's own script writes it (training/entrypoint.py)
_MODEL_PATH: Final = "trainer.policy.model.path"


def update(
    env: Environment,
    run_id: str,
    *,
    folder: Path,
    attempts: Sequence[Attempt] | None,
    events: Sequence[Event] = (),
    now: datetime | None = None,
) -> Record:
    """Bring the record in the run's folder up to date and return it. The file is left alone if nothing changed.

    Args:
        attempts: what the Ray cluster says of all attempts; None if it was not asked.
        events: added behind those that are there.

    Raises OSError, or Failed if there is a file that is no record.
    """
    with record.locked(folder):
        before = record.read(folder)
        rows = series.read(folder)
        after = build(env, run_id, attempts=attempts, rows=rows, before=before, folder=folder, events=events, now=now)
        if before is None or after.model_copy(update={"updated": before.updated}) != before:
            record.write(folder, after)
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
    # Where a run began stays true of its later attempts, whatever they were submitted with.
    begun_with = [told["from_run"] for a in sorted(attempts or (), key=lambda a: a.number) if "from_run" in (told := a.metadata or {})]
    started = joined[0].step if joined else before.first_step
    return Record(
        run_id=run_id, environment=facts.environment,
        environment_matches=not facts.config or facts.config == value_digest(env.model_dump(mode="json")),
        updated=moment.isoformat(timespec="seconds"), status=its[-1].status if its else before.status,
        code=facts.code, image=facts.image, config=facts.config, specification=facts.specification,
        from_run=begun_with[-1] if begun_with else before.from_run, model=facts.model,
        datasets=_datasets(env, facts.overrides, before.datasets), overrides=facts.overrides, versions=facts.versions, nodes=facts.nodes,
        attempts=its, steps=len(joined) or before.steps, first_step=started, last_step=joined[-1].step if joined else before.last_step,
        missing_steps=tuple(series.gaps(joined)) if joined else before.missing_steps,
        median_step_seconds=series.median_seconds(joined) if joined else before.median_step_seconds,
        checkpoints=_checkpoints(env, run_id, folder, before.checkpoints), exports=_exports(env, run_id, folder, before.exports),
        evaluations=_evaluations(joined, folder, env, facts.overrides, before.evaluations), usage=_usage(env, its, facts.nodes, moment),
        events=(*before.events, *events), results=_results(folder, before.results), verdicts=before.verdicts,
    )  # fmt: skip


def _facts(env: Environment, before: Record, metadata: Mapping[str, str]) -> Record:
    """What the newest attempt was submitted with, as it was told then: no environment file of today is asked for what it says itself."""
    if not metadata or (before.specification and before.specification == metadata.get("specification")):
        return before
    try:
        overrides: dict[str, Value] = dict(json.loads(metadata.get("overrides", "{}")))
    except (ValueError, TypeError):
        overrides = {}
    matches = metadata.get("config") == value_digest(env.model_dump(mode="json"))
    # The file of today says nothing of what was submitted with another one.
    told = provenance.read(metadata.get(provenance.KEY)) or (provenance.of(env) if matches else provenance.Provenance())
    uri = metadata.get("image", "")
    return before.model_copy(
        update={
            "environment": metadata.get("environment", env.name),
            "code": Code(commit=metadata.get("commit", "unknown"), dirty=metadata.get("dirty") != "false"),
            "image": Image(uri=uri, digest=uri.partition("@")[2] or None),
            "config": metadata.get("config", ""),
            "specification": metadata.get("specification", ""),
            "model": provenance.fetched(env, told.model, path=str(overrides.get(_MODEL_PATH) or told.model.path)),
            "overrides": dict(sorted(overrides.items())),
            "versions": told.versions,
            "nodes": told.nodes,
        }
    )


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
                moment = datetime.strptime(path.read_text(encoding="utf-8").strip(), ATTEMPT_TIME).replace(tzinfo=UTC)
                found[int(path.name)] = moment.isoformat(timespec="seconds")
    return found


def remembered(known: Record) -> list[Attempt]:
    """The record's attempts as Ray's job table would tell them, as far as the record holds what that did."""
    return [_as_job(known.run_id, each) for each in known.attempts]


def _as_job(run_id: str, each: AttemptRecord) -> Attempt:
    told = {
        "commit": each.commit, "dirty": "true" if each.dirty else "false", "image": each.image, "specification": each.specification,
        "config": each.config, "submitted_by": each.submitted_by,
        jobs.SUPERVISED_SINCE: str(each.supervised_since or ""),
    }  # fmt: skip
    start, end = (datetime.fromisoformat(time).timestamp() if time else None for time in (each.started, each.ended))
    metadata = {"run_id": run_id, "attempt": str(each.number), **{key: value for key, value in told.items() if value}}
    return Attempt(
        run_id, each.number, each.status, message=each.reason, start=start, end=end, exit_code=each.driver_exit_code, metadata=metadata,
    )  # fmt: skip


def _attempt(env: Environment, attempt: Attempt) -> AttemptRecord:
    told, metadata = attempt.document(), attempt.metadata or {}
    return AttemptRecord(
        number=attempt.number, submission_id=attempt.submission_id, status=attempt.status,
        reason="" if attempt.running or attempt.status == "SUCCEEDED" else attempt.message,
        started=told["started"], ended=told["ended"], driver_exit_code=attempt.exit_code, gpus=_gpus(env, metadata),
        submitted_by=metadata.get("submitted_by", "unknown"), commit=metadata.get("commit", "unknown"),
        dirty=metadata.get("dirty") != "false", image=metadata.get("image", ""), specification=metadata.get("specification", ""),
        config=metadata.get("config", ""), supervised_since=_count(metadata.get(jobs.SUPERVISED_SINCE)),
    )  # fmt: skip


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


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


def _usage(env: Environment, attempts: Sequence[AttemptRecord], nodes: Nodes, now: datetime) -> Usage:
    """GPU hours, and what the run's nodes cost while its attempts ran: a worker node for its GPUs, and the head."""
    seconds, held, complete = 0.0, 0.0, True
    for each in attempts:
        if each.started is None or (each.ended is None and each.status not in ("PENDING", "RUNNING")):
            complete = False  # nobody saw it end
            continue
        end = datetime.fromisoformat(each.ended) if each.ended else now
        lasted = max(0.0, (end - datetime.fromisoformat(each.started)).total_seconds())
        seconds, held = seconds + lasted * each.gpus, held + lasted
    worker, head = prices.INSTANCES.get(nodes.worker_type), prices.INSTANCES.get(nodes.head_type)
    gpus = INSTANCES[nodes.worker_type].gpus if nodes.worker_type in INSTANCES else 0
    usage = Usage(gpu_hours=round(seconds / 3600, 3), complete=complete)
    if env.local:
        return usage.model_copy(update={"cost_usd": 0.0, "cost_note": "the local cloud costs nothing"})
    if worker is None or head is None or not gpus:
        return usage
    cost = seconds / 3600 / gpus * worker.usd_per_hour + held / 3600 * head.usd_per_hour
    note = (
        f"nodes while attempts ran: {nodes.worker_type} {worker.usd_per_hour} USD/h ({worker.sentence}), {nodes.head_type}"
        f" {head.usd_per_hour} USD/h ({head.sentence}); on demand, {prices.TABLE_REGION}; idle nodes, storage and the rest are not in it"
    )
    return usage.model_copy(update={"cost_usd": round(cost, 2), "cost_note": note})


def _datasets(env: Environment, overrides: Mapping[str, Any], before: Sequence[Dataset]) -> tuple[Dataset, ...]:
    known = {each.path: each for each in before if each.sha256}
    found = []
    for purpose, key in (("training", "data.train_data"), ("evaluation", "data.val_data")):
        paths = overrides.get(key)
        for path in paths if isinstance(paths, list | tuple) else ():
            here = layout.here(env, str(path))
            digest = evaluations.file_digest(here) if here is not None and str(path) not in known else None
            found.append(known.get(str(path)) or Dataset(purpose=purpose, path=str(path), sha256=digest))  # type: ignore[arg-type]
    return tuple(found)


def _checkpoints(env: Environment, run_id: str, folder: Path | None, before: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    if folder is None:
        return tuple(before)
    path = layout.run_folder(env, run_id).checkpoints
    found = {each.step: each.model_copy(update={"on_disk": False, "latest": False}) for each in before}
    latest = checkpoints.marked(folder / "checkpoints")
    for step, place in checkpoints.step_folders(folder / "checkpoints"):
        size = evaluations.size(place)
        found[step] = Checkpoint(step=step, path=f"{path}/{place.name}", size_bytes=size, latest=step == latest)
    return tuple(found[step] for step in sorted(found))


def _exports(env: Environment, run_id: str, folder: Path | None, before: Sequence[Export]) -> tuple[Export, ...]:
    found = {each.step: each for each in before}
    path = layout.run_folder(env, run_id).exports
    for step, place in checkpoints.step_folders(folder / "exports") if folder is not None else ():
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


def _results(folder: Path | None, before: Sequence[results.Result]) -> tuple[results.Result, ...]:
    """Result files that lie in the run's folder; those that the record held and that are gone stay."""
    found = {(each.step, each.maze_set, each.export_digest): each for each in before}
    found |= {(each.step, each.maze_set, each.export_digest): each for each in (results.of_run(folder) if folder is not None else ())}
    return tuple(sorted(found.values(), key=lambda each: (each.step if each.step is not None else -1, each.maze_set, each.started)))
