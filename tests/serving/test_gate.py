from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.load import load
from config.problems import Failed, Refused
from serving import export, gate
from serving.export import Export
from serving.gate import Evidence
from serving.releases import Release
from tests.serving.exports import BASELINE, GOOD, RUN, evaluation, make_record, record_of, write_export, write_record
from training import record as records
from training.maze_task import FRESH
from training.record import Evaluation, Record
from training.verdicts import Verdict

ENV = load("local")


def fresh(who: Any, solved: int, *, turns: int = 15, bound: float | None = 44 / 64) -> Evidence:
    return Evidence(who, "fresh", "evaluate", {seed: index < solved for index, seed in enumerate(FRESH)}, turns, 1.0, bound)


def judged(
    shared: Path, record: Record, *, step: int = 10, baseline: Evidence | None = None, played: Evidence | None = None,
    current: Release | None = None, other: Evidence | None = None, env: Any = ENV, found: Export | None = None,
) -> Verdict:  # fmt: skip
    if found is None:
        write_export(shared, step)
        found = export.checked(env, record, step)
    told = [
        gate.of_dump(env, record, 0, "baseline"),
        gate.of_dump(env, record, step, "candidate"),
        other,
        baseline or fresh("baseline", 17),
        played or fresh("candidate", 43),
    ]
    return gate.judge(env, record, found, found=[each for each in told if each is not None], current=current, selected="best")


def rules(verdict: Verdict) -> dict[str, bool]:
    return {rule.name: rule.passed for rule in verdict.rules}


def test_a_candidate_that_is_really_better_passes_with_its_numbers(shared: Path) -> None:
    verdict = judged(shared, record_of(GOOD))
    assert verdict.passed
    assert verdict.reasons == ()
    seen = verdict.of("candidate")
    assert seen is not None
    assert (seen.solved, seen.mazes, seen.of_bound) == (51, 64, 1.0)
    held_out = verdict.comparisons[0]
    assert (held_out.gained, held_out.lost, held_out.p_better) == (32, 0, 2.0**-32)
    assert held_out.low < held_out.difference == 0.5 < held_out.high
    assert verdict.thresholds["significance"] == 0.05
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_two_mazes_more_may_be_luck(shared: Path) -> None:
    verdict = judged(shared, record_of(set(range(43)), baseline=set(range(41))))
    assert rules(verdict)["better than baseline (held-out)"] is False
    assert "2 mazes gained, 0 lost of 64" in verdict.reasons[0]
    assert "p = 0.25" in verdict.reasons[0]


def test_pass_at_1_opens_no_gate(shared: Path) -> None:
    """An agent that stops at once, well-formed: SkyRL's pass_at_1 is 1.0 and nothing is solved."""
    verdict = judged(shared, record_of(set()))
    seen = verdict.of("candidate")
    assert seen is not None
    assert (seen.skyrl_pass_at_1, seen.rate) == (1.0, 0.0)
    assert {"better than baseline (held-out)", "solve rate", "selection bias"} & {n for n, ok in rules(verdict).items() if not ok} == {
        "better than baseline (held-out)", "solve rate"}  # fmt: skip
    assert not verdict.passed


def test_solve_rate_is_held_against_what_can_be_reached(shared: Path) -> None:
    assert rules(judged(shared, record_of(set(range(40)), baseline=set(range(5)))))["solve rate"] is True
    assert rules(judged(shared, record_of(set(range(25)), baseline=set()), step=10, found=export.checked(ENV, make_record(), 10)))[
        "solve rate"] is False  # 25 of the 51 that can be solved: below half  # fmt: skip


def test_an_unknown_bound_lets_nothing_through(shared: Path) -> None:
    bare = tuple(each.model_copy(update={"oracle_bound": None}) for each in record_of(GOOD).evaluations)
    verdict = judged(shared, record_of(GOOD).model_copy(update={"evaluations": bare}))
    assert rules(verdict)["solve rate"] is False
    assert rules(verdict)["selection bias"] is False


def test_bad_format_is_seen(shared: Path) -> None:
    verdict = judged(shared, record_of(GOOD, format_rate=0.9))
    assert [name for name, passed in rules(verdict).items() if not passed] == ["format"]


def test_a_lead_that_fresh_mazes_do_not_show_is_selection(shared: Path) -> None:
    verdict = judged(shared, record_of(GOOD), played=fresh("candidate", 30))
    assert [name for name, passed in rules(verdict).items() if not passed] == ["selection bias"]
    assert "1.000 of the bound on the mazes it was chosen by, 0.682 on fresh ones: +0.318" in verdict.reasons[0]


def test_no_better_on_fresh_mazes_is_no_better(shared: Path) -> None:
    verdict = judged(shared, record_of(GOOD), baseline=fresh("baseline", 41), played=fresh("candidate", 43))
    assert [name for name, passed in rules(verdict).items() if not passed] == ["better than baseline (fresh)"]


def test_other_turns_are_not_compared(shared: Path) -> None:
    verdict = judged(shared, record_of(GOOD), baseline=fresh("baseline", 17, turns=17), played=fresh("candidate", 43, turns=17))
    assert [name for name, passed in rules(verdict).items() if not passed] == ["selection bias"]
    verdict = judged(shared, record_of(GOOD), baseline=fresh("baseline", 17, turns=17), found=export.checked(ENV, make_record(), 10))
    assert "the baseline played with 17 turns, the candidate with 15" in verdict.reasons[0]


def current(step: int = 5, digest: str = "sha256:1") -> Release:
    return Release(name=f"maze-grpo-s{step}-00000001", adapter="maze-grpo", step=step, run_id="before", environment="local",
                   content_digest=digest, files=(), rank=8, alpha=8)  # fmt: skip


def held_out(solved: set[int], who: Any = "current release") -> Evidence:
    return Evidence(who, "held-out", "eval dump", {seed: seed in solved for seed in range(64)}, 15, 1.0, 51 / 64)


@pytest.mark.parametrize(("before", "passes"), [(set(range(40)), True), (GOOD, True), (set(range(49)), True), (set(range(60)), False)])
def test_a_candidate_must_not_be_worse_than_what_users_have(shared: Path, before: set[int], passes: bool) -> None:
    verdict = judged(shared, record_of(GOOD), current=current(), other=held_out(before))
    assert rules(verdict)["not worse than current release"] is passes
    assert verdict.current_release == "maze-grpo-s5-00000001"


def test_a_current_release_that_cannot_be_compared_is_said(shared: Path) -> None:
    verdict = judged(shared, record_of(GOOD), current=current())
    assert [name for name, passed in rules(verdict).items() if not passed] == ["not worse than current release"]
    assert "hyperpod-rl evaluate --model BASE:maze-grpo-s5-00000001 --run-id before --step 5" in verdict.reasons[0]


def test_the_current_release_itself_passes_again(shared: Path) -> None:
    write_export(shared, 10)
    found = export.checked(ENV, make_record(), 10)
    same = current(10, found.digest).model_copy(update={"run_id": RUN})
    assert judged(shared, record_of(GOOD), current=same, found=found).passed


def test_a_stand_in_passes_in_environment_local_only(shared: Path) -> None:
    write_export(shared, 10)
    found = export.checked(ENV, make_record(), 10)
    verdict = judged(shared, record_of(GOOD), env=load("reference"), found=found)
    assert [name for name, passed in rules(verdict).items() if not passed] == ["trainer"]
    assert verdict.trainer == "stand-in"


def test_without_evaluations_maze_by_maze_there_is_nothing_to_pair(shared: Path) -> None:
    rough = tuple(each.model_copy(update={"source": "log formula", "results": ()}) for each in record_of(GOOD).evaluations)
    verdict = judged(shared, record_of(GOOD).model_copy(update={"evaluations": rough}))
    assert rules(verdict)["better than baseline (held-out)"] is False
    verdict = judged(shared, make_record(evaluations=(evaluation(10, GOOD),)), found=export.checked(ENV, make_record(), 10))
    assert "the base model (step 0) was not evaluated" in verdict.reasons[0]


def test_samples_of_one_maze_are_no_further_mazes(shared: Path) -> None:
    """Two samples a maze double what is gained and lost, and halve nothing: such a dump is not paired, the gate plays once itself."""
    twice = evaluation(10, GOOD)
    twice = twice.model_copy(update={"results": twice.results * 2})
    verdict = judged(shared, make_record(evaluations=(evaluation(0, BASELINE), twice)))
    assert verdict.of("candidate") is None
    assert rules(verdict)["better than baseline (held-out)"] is False
    assert "the candidate was not evaluated maze by maze (trainer.dump_eval_results with one sample a maze" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("seeds", "file", "counts"),
    [
        (range(64), None, True),
        (range(96), None, True),
        (range(63), None, False),
        (range(8), None, False),
        (range(1, 65), None, False),
        (range(64), "/shared/datasets/{maze}/aaaaaaaa-bbbbbbbb/eval-64/train.parquet", True),
        (range(64), "/shared/datasets/{maze}/aaaaaaaa-bbbbbbbb/train-64/train.parquet", False),
        (range(64), "/shared/datasets/maze_2d-tiny/aaaaaaaa-bbbbbbbb/eval-64/train.parquet", False),
        (range(64), "/shared/mine/easy.parquet", False),
    ],
)
def test_fewer_and_other_mazes_are_no_evidence(seeds: range, file: str | None, counts: bool) -> None:
    """Eight easy mazes gained and none lost would be p = 0.004: the gate plays the held-out set itself instead."""
    told = evaluation(10, GOOD, mazes=96).results
    rows = tuple(replace(told[row], row=row, seed=seed) for row, seed in enumerate(seeds))
    record = make_record(evaluations=(evaluation(10, GOOD).model_copy(update={"results": rows, "mazes": len(rows)}),))
    if file is not None:
        path = file.format(maze=ENV.training.maze.replace("/", "-"))
        record = record.model_copy(update={"overrides": {**record.overrides, "data.val_data": [path]}})
    assert (gate.of_dump(ENV, record, 10, "candidate") is not None) is counts


def test_whoever_tries_often_must_show_more(shared: Path) -> None:
    """By chance alone the best of ten tries passes a level of 5 % in 18 of 100 cases (64 mazes, solve rate 0.4, simulated)."""

    def p_needed(verdict: Verdict) -> tuple[bool, str]:
        rule = next(each for each in verdict.rules if each.name == "better than baseline (fresh)")
        return rule.passed, rule.said

    once = judged(shared, record_of(GOOD), played=fresh("candidate", 23))
    assert p_needed(once)[0]
    assert p_needed(once)[1].startswith("6 mazes gained, 0 lost of 64: +0.094")
    assert p_needed(once)[1].endswith("p = 0.016 (needs 0.05 or less)")
    found = export.checked(ENV, record_of(GOOD), 10)
    again = judged(shared, record_of(GOOD), played=replace(fresh("candidate", 23), tries=2), found=found)
    assert not p_needed(again)[0]
    assert "(needs 0.0083 or less, since this is look 2 at these mazes)" in p_needed(again)[1]
    # Another export of the run was judged on the same fresh mazes; the same one judged again is no further look.
    other = once.model_copy(update={"export_digest": "sha256:another", "step": 20})
    for verdicts, passes in (((once, once), True), ((once, other), False)):
        record = record_of(GOOD).model_copy(update={"verdicts": verdicts})
        assert p_needed(judged(shared, record, played=fresh("candidate", 23), found=found))[0] is passes
    assert sum(gate.level_of(0.05, looks) for looks in range(1, 10_000)) < 0.075


def without_seeds(told: Evaluation, *, of: int = 64) -> Evaluation:
    rows = tuple(replace(maze, seed=None) if maze.row < of else maze for maze in told.results)
    return told.model_copy(update={"results": rows})


def test_rows_without_seeds_pair_within_one_run_only(shared: Path) -> None:
    plain = make_record(evaluations=(without_seeds(evaluation(0, BASELINE)), without_seeds(evaluation(10, GOOD))))
    assert judged(shared, plain).passed
    one = make_record(evaluations=(evaluation(0, BASELINE), without_seeds(evaluation(10, GOOD))))
    verdict = judged(shared, one, found=export.checked(ENV, one, 10))
    assert "only one of them names the seeds of its mazes" in verdict.reasons[0]
    some = without_seeds(evaluation(10, GOOD), of=3)  # row 2 is not the maze of seed 2
    assert gate.of_dump(ENV, make_record(evaluations=(some,)), 10, "candidate") is None


def test_fresh_mazes_can_be_left_out_where_the_environment_says_so(shared: Path) -> None:
    def without(env: Any) -> Verdict:
        told = [held_out(BASELINE, "baseline"), held_out(GOOD, "candidate")]
        return gate.judge(env, record_of(GOOD), found, found=told, current=None, selected="best")

    write_export(shared, 10)
    found = export.checked(ENV, make_record(), 10)
    assert rules(without(ENV))["fresh mazes"] is False
    serving = ENV.serving.model_copy(update={"gate": ENV.serving.gate.model_copy(update={"fresh_mazes_required": False})})
    assert without(ENV.model_copy(update={"serving": serving})).passed


def test_the_best_step_is_the_earliest_of_those_with_the_highest_rate_and_an_export() -> None:
    rated = tuple(evaluation(step, set(range(solved))) for step, solved in ((0, 60), (10, 40), (20, 51), (30, 51), (40, 55)))
    record = make_record(evaluations=rated)
    assert gate.choose(record, [10, 20, 30], step=None) == 20
    assert gate.choose(record, [10, 20, 30], step=30) == 30
    with pytest.raises(Refused, match="its exports are of step 10, 20"):
        gate.choose(record, [10, 20], step=15)
    with pytest.raises(Refused, match="no export that was evaluated"):
        gate.choose(record, [15], step=None)


def test_a_verdict_is_kept_in_the_record_and_survives_its_updates(shared: Path) -> None:
    from training import recording

    verdict = judged(shared, record_of(GOOD))
    folder = shared / "runs" / RUN
    with pytest.raises(Failed, match="is gone"):
        gate.keep(folder, verdict)
    write_record(shared, record_of(GOOD))
    for _ in range(2):
        gate.keep(folder, verdict.model_copy(update={"at": "later"}))
    recording.update(ENV, RUN, folder=folder, attempts=None)
    found = records.read(folder)
    assert found is not None
    assert [each.passed for each in found.verdicts] == [True]
    assert [event.text for event in found.events] == ["step 10 passed"]
    assert gate.latest(found, 10) == verdict.model_copy(update={"at": "later"})
