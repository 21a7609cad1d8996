"""Gathers what the gate judges: eval dumps of the runs, result files, and, where it is missing, an evaluation of the export itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.problems import Problem, Refused, Unreachable
from serving import candidate, evaluate, tasks
from serving.export import Export
from serving.gate import BASELINE_STEP, Evidence, Who, evidence
from serving.openai_client import Endpoint
from training import layout, results
from training import record as records

if TYPE_CHECKING:
    from config.environment import Environment
    from serving.evaluate import Progress
    from serving.releases import Release
    from training.record import Record
    from training.results import Result

Note = Callable[[str], None]
Bar = Callable[[str], AbstractContextManager["Progress"]]
"""Opens a progress display of this title."""


@dataclass(frozen=True)
class Asked:
    """Where the candidate is served already: its URL and the models' names there; None for the environment's own server."""

    endpoint: str
    model: str
    baseline_model: str | None


def gather(
    env: Environment, record: Record, export: Export, *, folder: Path, current: Release | None, asked: Asked | None, bar: Bar, note: Note,
    evaluates: bool = True,
) -> list[Evidence]:  # fmt: skip
    """All evidence that there is, evaluating on the fresh mazes what was not yet, if `evaluates`.

    Raises Refused, Unreachable, Failed where an evaluation that is needed cannot be made.
    """
    found = [
        evidence(env, record, folder, BASELINE_STEP, who="baseline", maze_set="held-out"),
        evidence(env, record, folder, export.step, who="candidate", maze_set="held-out"),
        _of_current(env, current, note),
    ]
    fresh = {step: _fresh(folder, record.run_id, step, export) for step in (BASELINE_STEP, export.step)}
    missing = [step for step, result in fresh.items() if result is None]
    if missing and evaluates:
        for result in _evaluated(env, record, export, missing, folder=folder, asked=asked, bar=bar, note=note):
            fresh[result.step or BASELINE_STEP] = result
    from serving.gate import of_result

    whose: dict[int, Who] = {BASELINE_STEP: "baseline", export.step: "candidate"}
    found += [of_result(result, whose[step], "fresh") for step, result in fresh.items() if result is not None]
    return [each for each in found if each is not None]


def _fresh(folder: Path, run_id: str, step: int, export: Export) -> Result | None:
    """The result of a step on the fresh mazes, if it is about these very bytes."""
    for result in results.of_run(folder):
        if (result.run_id, result.step, result.maze_set) == (run_id, step, "fresh"):
            same = step == BASELINE_STEP or result.export_digest in (None, export.digest)
            return result if same else None
    return None


def _of_current(env: Environment, current: Release | None, note: Note) -> Evidence | None:
    if current is None:
        return None
    folder = records.folder_here(env, current.run_id)
    record = records.read(folder) if folder is not None else None
    if folder is None or record is None:
        note(f"the run of the current release {current.name}, {current.run_id}, is not on this file system")
        return None
    return evidence(env, record, folder, current.step, who="current release", maze_set="held-out")


def _evaluated(
    env: Environment, record: Record, export: Export, missing: Sequence[int], *, folder: Path, asked: Asked | None, bar: Bar, note: Note
) -> list[Result]:  # fmt: skip
    """Evaluate on the fresh mazes and keep the results in the run's folder."""
    turns = record.overrides.get("generator.max_turns")
    wanted = evaluate.plan(
        env, maze_set="fresh", max_turns=turns if isinstance(turns, int) else None, run_id=record.run_id
    )  # fmt: skip
    task = tasks.task(env, None, max_turns=wanted.max_turns)
    if asked is None:
        base = layout.here(env, env.training.base_model)
        if base is None or not base.is_dir():
            raise Unreachable(f"the base model {env.training.base_model} is not visible here, so the export cannot be served for the gate")
        log = folder / results.FOLDER / "server.log"
        with candidate.served(env, base=base, export=export.folder, log=log, note=note) as url:
            own = Asked(url, candidate.CANDIDATE, candidate.BASE)
            return _play(wanted, task, own, export, missing, folder=folder, bar=bar)
    return _play(wanted, task, asked, export, missing, folder=folder, bar=bar)


def _play(
    wanted: evaluate.Plan, task: tasks.Task, asked: Asked, export: Export, missing: Sequence[int], *, folder: Path, bar: Bar
) -> list[Result]:  # fmt: skip
    done = []
    for step in missing:
        model: Any = asked.model if step == export.step else asked.baseline_model
        if model is None:
            rule = "the base model was not evaluated on the fresh mazes, and it is not said what the endpoint calls it"
            raise Refused(Problem("--baseline-model", "", rule, "give it beside --endpoint and --model"))
        plan = replace(wanted, step=step, export_digest=export.digest if step == export.step else None)
        with bar(f"{'candidate' if step == export.step else 'baseline'} on the fresh mazes") as tell:
            result = evaluate.run(Endpoint(asked.endpoint, model), plan, task, progress=tell)
        results.write(folder / results.FOLDER / results.file_name(step, "fresh"), result)
        done.append(result)
    return done
