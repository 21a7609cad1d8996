"""May this export be released? Baseline, candidate and current release on the same mazes, paired, with exact tests.

Solve rates, never SkyRL's pass_at_1, which a policy that stops at once passes with 1.0. A second set of mazes, by which no checkpoint
was chosen, shows how much of the candidate's lead is the luck of having been chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from config.problems import Problem, Refused
from serving.statistics import Paired, difference_interval, paired
from training.maze_task import SETS
from training.solve_rate import environment_bound, wilson
from training.verdicts import Comparison, Measured, Rule, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from config.environment import Environment
    from serving.export import Export
    from serving.releases import Release
    from training.record import Record
    from training.results import Result

MazeSet = Literal["held-out", "fresh"]
Who = Literal["baseline", "candidate", "current release"]
BASELINE_STEP: Final = 0


@dataclass(frozen=True)
class Evidence:
    """One evaluation, maze by maze: seed -> solved."""

    who: Who
    maze_set: MazeSet
    source: str
    solved: Mapping[int, bool]
    max_turns: int | None
    format_rate: float | None
    oracle_bound: float | None
    pass_at_1: float | None = None
    tries: int = 1
    """How often these bytes were played on these mazes, this time included: the last try is the one that is shown."""
    by_row: bool = False
    """The mazes are known by their place in the dump, not by seed: comparable within one run only."""

    def measured(self) -> Measured:
        """As the verdict tells it."""
        solved, mazes = sum(self.solved.values()), len(self.solved)
        low, high = wilson(solved, mazes)
        return Measured(
            who=self.who, maze_set=self.maze_set, source=self.source, solved=solved, mazes=mazes, rate=solved / mazes if mazes else 0.0,
            low=low, high=high, oracle_bound=self.oracle_bound, format_rate=self.format_rate, skyrl_pass_at_1=self.pass_at_1,
            max_turns=self.max_turns,
        )  # fmt: skip


def choose(record: Record, exported: Sequence[int], *, step: int | None) -> int:
    """The candidate: the step that is asked for, else the evaluated export with the highest solve rate, the earliest of equals.

    Raises Refused where there is none.
    """
    if step is not None:
        if step not in exported:
            there = ", ".join(map(str, exported)) or "none"
            raise Refused(
                Problem("--step", str(step), f"run {record.run_id} has no export of this step", f"its exports are of step {there}")
            )
        return step
    rated = [each for each in record.evaluations if each.step in exported and each.step != BASELINE_STEP]
    if not rated:
        rule = f"run {record.run_id} has no export that was evaluated"
        raise Refused(
            Problem("--best", "", rule, "set trainer.eval_interval and trainer.hf_save_interval so that they meet, or name a --step")
        )
    return max(rated, key=lambda each: (each.rate, -each.step)).step


def of_result(result: Result, who: Who, maze_set: MazeSet) -> Evidence:
    """A result file as evidence."""
    return Evidence(
        who, maze_set, f"evaluate, {result.model}", {maze.seed: maze.solved for maze in result.mazes}, result.max_turns, result.format_rate,
        result.oracle_bound, result.pass_at_1, result.tries,
    )  # fmt: skip


def of_dump(env: Environment, record: Record, step: int, who: Who) -> Evidence | None:
    """A step's eval dump, as it is in the record, as evidence on the held-out mazes; None if it cannot be paired maze by maze.

    That is where the record does not have it, where it holds a maze several times (`generator.eval_n_samples_per_prompt`: samples
    of one maze are no further mazes, and would count as such), where it names the seeds of some mazes only, and where the run was
    evaluated on other mazes than the environment's, or on fewer.
    """
    told = next((each for each in record.evaluations if each.step == step), None)
    if told is None or told.source != "eval dump" or not told.results:
        return None
    turns = record.overrides.get("generator.max_turns")
    forms = [maze.format_rate for maze in told.results if maze.format_rate is not None]
    bound = told.oracle_bound
    if bound is None and (stated := environment_bound(env, turns)) is not None:
        bound = stated.rate
    unnamed = sum(maze.seed is None for maze in told.results)
    solved = {maze.seed if maze.seed is not None else maze.row: maze.solved for maze in told.results}
    if len(solved) != len(told.results) or unnamed not in (0, len(told.results)):
        return None
    wanted = SETS["held-out"]
    if len(solved) < len(wanted) or not (unnamed or solved.keys() >= set(wanted)) or _on_other_file(env, record):
        return None
    return Evidence(
        who, "held-out", "eval dump", solved, turns if isinstance(turns, int) else None,
        sum(forms) / len(forms) if forms else None, bound, told.skyrl_pass_at_1, by_row=unnamed > 0,
    )  # fmt: skip


def _on_other_file(env: Environment, record: Record) -> bool:
    """Whether the run is known to have been evaluated on a file of the user's own (`--set data.val_data=...`), or of another maze."""
    from pathlib import PurePosixPath

    from training import entrypoint

    used = record.overrides.get("data.val_data")
    own = PurePosixPath(entrypoint.dataset_folder(env, rows=env.training.eval_rows, held_out=True))
    if not isinstance(used, list | tuple):
        return False
    # Between the maze and the number of rows stand the commits of the code that made them.
    folders = [PurePosixPath(str(path)).parent for path in used]
    return len(folders) != 1 or folders[0].parent.parent != own.parent.parent or not folders[0].name.startswith("eval-")


def judge(
    env: Environment, record: Record, export: Export, *, found: Sequence[Evidence], current: Release | None,
    selected: Literal["best", "step"], now: datetime | None = None,
) -> Verdict:  # fmt: skip
    """The verdict. `found` is all evidence there is, `current` the release that the alias names; nothing is written or reached."""
    known = {(each.who, each.maze_set): each for each in found}
    trainer: Literal["skyrl", "stand-in"] = "stand-in" if export.stand_in else "skyrl"
    comparisons: list[Comparison] = []
    rules = [_trainer_rule(env, export)]
    rules += _baseline_rules(env, known, comparisons, "held-out", judged_before=0)
    rules += _level_rules(env, known)
    rules += _current_rules(env, record, export, known, comparisons, current)
    rules += _fresh_rules(env, known, comparisons, judged_before=_judged_before(record, export))
    limits = env.serving.gate.model_dump(exclude={"server"})
    return Verdict(
        at=(now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds"), run_id=record.run_id, step=export.step,
        selected=selected, passed=all(rule.passed for rule in rules), export_digest=export.digest, trainer=trainer,
        current_release=current.name if current is not None else None, measured=tuple(each.measured() for each in found),
        comparisons=tuple(comparisons), rules=tuple(rules), thresholds=limits,
    )  # fmt: skip


Known = Mapping[tuple[Who, MazeSet], Evidence]


def _trainer_rule(env: Environment, export: Export) -> Rule:
    if export.stand_in and not env.local:
        return Rule(name="trainer", passed=False, said="a stand-in trained it, and that is released in environment local only")
    return Rule(name="trainer", passed=True, said="stand-in, in environment local" if export.stand_in else "SkyRL")


def _judged_before(record: Record, export: Export) -> int:
    """Other exports of the run that were judged on the fresh mazes: who asks often enough is lucky once."""
    return len({
        each.export_digest for each in record.verdicts
        if each.export_digest != export.digest and each.of("candidate", "fresh") is not None
    })  # fmt: skip


def level_of(significance: float, looks: int) -> float:
    """The level of the n-th look at the same mazes: the first has it whole, each later one 1 / (n (n + 1)) of it.

    Those later shares (a sixth, a twelfth, ...) add up to a half: however often somebody looks, chance alone passes at most 1.5 times as
    often as at the first look.
    """
    return significance if looks <= 1 else significance / (looks * (looks + 1))


def _baseline_rules(
    env: Environment, known: Known, comparisons: list[Comparison], maze_set: MazeSet, *, judged_before: int
) -> Iterator[Rule]:  # fmt: skip
    name = f"better than baseline ({maze_set})"
    candidate, baseline = known.get(("candidate", maze_set)), known.get(("baseline", maze_set))
    if candidate is None or baseline is None:
        missing = "the candidate" if candidate is None else "the base model (step 0)"
        how = "trainer.dump_eval_results with one sample a maze, or hyperpod-rl evaluate"
        yield Rule(name=name, passed=False, said=f"{missing} was not evaluated maze by maze ({how})")
        return
    compared, why = _compared(candidate, baseline, "baseline", maze_set)
    if compared is None:
        yield Rule(name=name, passed=False, said=why)
        return
    comparisons.append(compared)
    looks = candidate.tries + baseline.tries - 1 + judged_before
    level = level_of(env.serving.gate.significance, looks)
    said = f"{compared.gained} mazes gained, {compared.lost} lost of {compared.mazes}: {_signed(compared)}, p = {compared.p_better:.2g}"
    often = f", since this is look {looks} at these mazes" if looks > 1 else ""
    yield Rule(name=name, passed=compared.p_better <= level, said=f"{said} (needs {level:.2g} or less{often})")


def _level_rules(env: Environment, known: Known) -> Iterator[Rule]:
    candidate = known.get(("candidate", "held-out"))
    if candidate is None:
        return
    limits, seen = env.serving.gate, candidate.measured()
    of_bound = seen.of_bound
    if of_bound is None:
        yield Rule(name="solve rate", passed=False, said=f"{seen.rate:.3f}, but the oracle bound is not known (training.oracle_bounds)")
    else:
        said = f"{seen.rate:.3f} [{seen.low:.3f}, {seen.high:.3f}] is {of_bound:.3f} of the {seen.oracle_bound:.3f} that can be reached"
        yield Rule(name="solve rate", passed=of_bound >= limits.min_of_bound, said=f"{said} (needs {limits.min_of_bound:g})")
    form = seen.format_rate
    shown = "not known" if form is None else f"{form:.3f}"
    yield Rule(
        name="format", passed=form is not None and form >= limits.min_format_rate, said=f"{shown} (needs {limits.min_format_rate:g})"
    )  # fmt: skip


def _current_rules(
    env: Environment, record: Record, export: Export, known: Known, comparisons: list[Comparison], current: Release | None
) -> Iterator[Rule]:  # fmt: skip
    name = "not worse than current release"
    if current is None:
        yield Rule(name=name, passed=True, said="there is no current release")
        return
    if (current.run_id, current.step, current.content_digest) == (record.run_id, export.step, export.digest):
        yield Rule(name=name, passed=True, said=f"{current.name} is this export")
        return
    candidate, other = known.get(("candidate", "held-out")), known.get(("current release", "held-out"))
    if candidate is None or other is None:
        how = f"hyperpod-rl evaluate --model BASE:{current.name} --run-id {current.run_id} --step {current.step} --endpoint URL"
        said = f"{current.name} was not evaluated on these mazes where it can be read here: {how}"
        yield Rule(name=name, passed=False, said=said)
        return
    compared, why = _compared(candidate, other, "current release", "held-out")
    if compared is None:
        yield Rule(name=name, passed=False, said=why)
        return
    comparisons.append(compared)
    level = env.serving.gate.significance
    counted = f"{compared.gained} mazes gained, {compared.lost} lost against {current.name}"
    said = f"{counted}: {_signed(compared)}, p(worse) = {compared.p_worse:.2g}"
    yield Rule(name=name, passed=compared.p_worse > level, said=f"{said} (needs more than {level:g})")


def _fresh_rules(env: Environment, known: Known, comparisons: list[Comparison], *, judged_before: int) -> Iterator[Rule]:
    limits = env.serving.gate
    fresh, held_out = known.get(("candidate", "fresh")), known.get(("candidate", "held-out"))
    if fresh is None:
        if limits.fresh_mazes_required:
            said = "the candidate was not evaluated on the fresh mazes: give --endpoint, or hyperpod-rl evaluate --set fresh"
            yield Rule(name="fresh mazes", passed=False, said=said)
        return
    yield from _baseline_rules(env, known, comparisons, "fresh", judged_before=judged_before)
    if held_out is None:
        return
    if fresh.max_turns != held_out.max_turns and held_out.max_turns is not None:
        said = f"the fresh mazes were played with {fresh.max_turns} turns, the held-out ones with {held_out.max_turns}"
        yield Rule(name="selection bias", passed=False, said=said)
        return
    a, b = held_out.measured().of_bound, fresh.measured().of_bound
    if a is None or b is None:
        yield Rule(name="selection bias", passed=False, said="the oracle bound of one set is not known, so the sets cannot be compared")
        return
    gap = a - b
    said = f"{a:.3f} of the bound on the mazes it was chosen by, {b:.3f} on fresh ones: {gap:+.3f} (at most {limits.max_selection_gap:g})"
    yield Rule(name="selection bias", passed=gap <= limits.max_selection_gap, said=said)


def _compared(
    candidate: Evidence, other: Evidence, against: Literal["baseline", "current release"], maze_set: MazeSet
) -> tuple[Comparison | None, str]:  # fmt: skip
    """The comparison, or None and why there is none."""
    if None not in (candidate.max_turns, other.max_turns) and candidate.max_turns != other.max_turns:
        return None, f"the {against} played with {other.max_turns} turns, the candidate with {candidate.max_turns}"
    if candidate.by_row != other.by_row:
        return None, f"the {against} and the candidate cannot be paired: only one of them names the seeds of its mazes"
    try:
        found: Paired = paired(other.solved, candidate.solved)
    except ValueError as error:
        return None, f"the {against} and the candidate did not play the same mazes ({error})"
    low, high = difference_interval(found)
    return Comparison(
        against=against, maze_set=maze_set, mazes=found.mazes, gained=found.gained, lost=found.lost, difference=found.difference,
        low=low, high=high, p_better=found.better, p_worse=found.worse,
    ), ""  # fmt: skip


def _signed(compared: Comparison) -> str:
    return f"{compared.difference:+.3f} [{compared.low:+.3f}, {compared.high:+.3f}]"


def keep(folder: Path, verdict: Verdict) -> None:
    """Write the verdict into the run's record, with an event; one that says what the last one of this step said is not written again.

    Raises Failed if there is no record to write into, OSError.
    """
    from config.problems import Failed
    from training import record as records

    with records.locked(folder):
        before = records.read(folder)
        if before is None:
            raise Failed(f"{folder / records.FILE} is gone; hyperpod-rl report {verdict.run_id} makes it anew")
        last = latest(before, verdict.step)
        if last is not None and last.same_as(verdict):
            return
        word = "passed" if verdict.passed else f"did not pass: {'; '.join(verdict.reasons)}"
        happened = records.event("gate", f"step {verdict.step} {word}")
        after = before.model_copy(update={"verdicts": (*before.verdicts, verdict), "events": (*before.events, happened)})
        records.write(folder, after)


def latest(record: Record, step: int) -> Verdict | None:
    """The last verdict on a step; None if there is none."""
    return next((each for each in reversed(record.verdicts) if each.step == step), None)
