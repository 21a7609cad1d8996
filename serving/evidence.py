"""Gathers what the gate judges: eval dumps of the runs, result files, and, where it is missing, an evaluation of the export itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config.problems import Problem, Refused, Unreachable
from serving import candidate, evaluate, tasks
from serving.export import Export
from serving.gate import BASELINE_STEP, Evidence, MazeSet, Who, of_dump, of_result
from serving.openai_client import Endpoint
from training import layout, results
from training import record as records
from training.maze_task import SETS as MAZES

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
    """All evidence that there is, after playing what is not there yet, if `evaluates`: both models on both sets of mazes.

    Raises Refused, Unreachable, Failed where an evaluation that is needed cannot be made.
    """
    needed = [Needed(step, maze_set) for maze_set in SETS for step in (BASELINE_STEP, export.step)]
    found = {each: _known(env, record, folder, each, export) for each in needed}
    missing = [each for each in needed if found[each] is None]
    if missing and evaluates:
        for each, result in _evaluated(env, record, export, missing, folder=folder, asked=asked, bar=bar, note=note):
            found[each] = of_result(result, each.who, each.maze_set)
    return [each for each in (*found.values(), _of_current(env, record, current, note)) if each is not None]


SETS: Final[tuple[MazeSet, ...]] = ("held-out", "fresh")


@dataclass(frozen=True)
class Needed:
    """One evaluation that the gate wants."""

    step: int
    maze_set: MazeSet

    @property
    def who(self) -> Who:
        return "baseline" if self.step == BASELINE_STEP else "candidate"


def _known(env: Environment, record: Record, folder: Path, needed: Needed, export: Export) -> Evidence | None:
    """From the run's eval dump, else from a result file about these very bytes, played as the run is evaluated."""
    if needed.maze_set == "held-out" and (told := of_dump(env, record, needed.step, needed.who)) is not None:
        return told
    digest = None if needed.step == BASELINE_STEP else export.digest
    found = _newest(env, record, folder, needed.step, needed.maze_set, digest)
    return of_result(found, needed.who, needed.maze_set) if found is not None else None


def _newest(env: Environment, record: Record, folder: Path, step: int, maze_set: MazeSet, digest: str | None) -> Result | None:
    """The newest result file about these bytes (`digest`; None: the base model) that was played as the run is evaluated."""
    usable = [
        result for result in results.of_run(folder)
        if (result.run_id, result.step, result.maze_set) == (record.run_id, step, maze_set)
        and (digest is None or result.export_digest in (None, digest)) and _usable(env, record, result, digest)
    ]  # fmt: skip
    return max(usable, key=lambda result: result.started, default=None)


def _usable(env: Environment, record: Record, result: Result, digest: str | None) -> bool:
    """Whether a result was played as the run plays: its task, its turns, greedily, every maze of the set, and by nobody else."""
    turns, tokens = _turns(record), _tokens(record)
    whole = result.maze_set in MAZES and sorted(maze.seed for maze in result.mazes) == sorted(MAZES[result.maze_set])
    same = result.task == env.training.evaluation_task and result.temperature == 0 and turns in (None, result.max_turns)
    same = same and (tokens is None or result.max_tokens >= tokens)  # who is cut short is beaten easily
    return whole and same and not _others(result, digest)


def _others(result: Result, digest: str | None) -> list[str]:
    """Releases that answered, as the endpoint says, and do not hold these bytes; without a digest, the base model's, any is another."""
    end = None if digest is None else f"-{digest.removeprefix('sha256:')[:8]}"
    return sorted({name for maze in result.mazes for name in maze.releases if end is None or not name.endswith(end)})


def _turns(record: Record) -> int | None:
    turns = record.overrides.get("generator.max_turns")
    return turns if isinstance(turns, int) else None


def _tokens(record: Record) -> int | None:
    """The longest answer that the run was evaluated with, in tokens; None where it was not said."""
    tokens = record.overrides.get("generator.sampling_params.max_generate_length")
    return tokens if isinstance(tokens, int) else None


def _other_mazes(one: Record, other: Record) -> bool:
    """Whether two runs are known to have been evaluated on different files: the same seeds then need not be the same mazes."""
    files = [{each.sha256 for each in record.datasets if each.purpose == "evaluation" and each.sha256} for record in (one, other)]
    return bool(files[0] and files[1]) and files[0] != files[1]


def _of_current(env: Environment, judged: Record, current: Release | None, note: Note) -> Evidence | None:
    """What is known of the current release on the held-out mazes: from its own run, if that is on this file system."""
    if current is None:
        return None
    folder = records.folder_here(env, current.run_id)
    record = records.read(folder) if folder is not None else None
    if folder is None or record is None:
        note(f"the run of the current release {current.name}, {current.run_id}, is not on this file system")
        return None
    told = of_dump(env, record, current.step, "current release")
    if told is not None and not told.by_row and not _other_mazes(judged, record):
        return told
    found = _newest(env, record, folder, current.step, "held-out", current.content_digest)
    return of_result(found, "current release", "held-out") if found is not None else None


def _evaluated(
    env: Environment, record: Record, export: Export, missing: Sequence[Needed], *, folder: Path, asked: Asked | None, bar: Bar, note: Note
) -> list[tuple[Needed, Result]]:  # fmt: skip
    """Play what is missing, and keep the results in the run's folder."""
    plans = {
        each: evaluate.plan(
            env, maze_set=each.maze_set, run_id=record.run_id, step=each.step, max_turns=_turns(record), max_tokens=_tokens(record)
        )
        for each in missing
    }
    task = tasks.task(env, None, max_turns=plans[missing[0]].max_turns)
    if asked is None:
        base = layout.here(env, env.training.base_model)
        if base is None or not base.is_dir():
            raise Unreachable(f"the base model {env.training.base_model} is not visible here, so the export cannot be served for the gate")
        log = folder / results.FOLDER / "server.log"
        with candidate.served(env, base=base, export=export.folder, log=log, note=note) as url:
            own = Asked(url, candidate.CANDIDATE, candidate.BASE)
            return _play(plans, task, own, export, folder=folder, bar=bar)
    return _play(plans, task, asked, export, folder=folder, bar=bar)


def _play(
    plans: Mapping[Needed, evaluate.Plan], task: tasks.Task, asked: Asked, export: Export, *, folder: Path, bar: Bar
) -> list[tuple[Needed, Result]]:  # fmt: skip
    if asked.baseline_model is None and any(each.who == "baseline" for each in plans):
        rule = "the base model was not evaluated on these mazes, and it is not said what the endpoint calls it"
        raise Refused(Problem("--baseline-model", "", rule, "give it beside --endpoint and --model"))
    done = []
    for each, plan in plans.items():
        model = asked.model if each.who == "candidate" else asked.baseline_model or ""
        digest = export.digest if each.who == "candidate" else None
        with bar(f"{each.who} on the {each.maze_set} mazes") as tell:
            result = evaluate.run(Endpoint(asked.endpoint, model), replace(plan, export_digest=digest), task, progress=tell)
        if others := _others(result, digest):
            rule = f"{' and '.join(others)} answered, not {'this export' if digest else 'the base model'}"
            raise Refused(Problem("--model" if digest else "--baseline-model", model, rule, "name the one that is to be judged"))
        path = folder / results.FOLDER / results.file_name(each.step, each.maze_set)
        result = results.counted(path, result)
        results.write(path, result)
        done.append((each, result))
    return done
