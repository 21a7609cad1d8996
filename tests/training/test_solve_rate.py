"""Solve rate: from the dump where it can be read, by the formula otherwise, with interval and bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.load import load
from training import layout, solve_rate

STOPS_AT_ONCE = {
    "eval/all/avg_score": 0.2, "eval/all/pass_at_1": 1.0, "eval/all/environment/avg_format_success_rate": 1.0,
}  # fmt: skip


def dump(folder: Path, scores: list[object], *, aggregated: dict[str, object] | None) -> None:
    folder.mkdir(parents=True)
    (folder / "unknown.jsonl").write_text(
        "".join(json.dumps({"score": score, "env_extras": {"seed": n}}) + "\n" for n, score in enumerate(scores))
    )
    if aggregated is not None:
        (folder / solve_rate.AGGREGATED).write_text(json.dumps(aggregated) + "\n")


def test_wilson_against_published_values() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81/263, 15/148, 0/20, 1/29 by the score method.
    for (successes, tries), expected in {
        (81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611), (1, 29): (0.0061, 0.1718),
    }.items():  # fmt: skip
        assert solve_rate.wilson(successes, tries) == pytest.approx(expected, abs=5e-5)


@given(st.integers(0, 500), st.integers(1, 500))
def test_the_interval_holds_the_share(successes: int, tries: int) -> None:
    successes = min(successes, tries)
    low, high = solve_rate.wilson(successes, tries)
    assert 0 <= low <= successes / tries <= high <= 1


def test_an_agent_that_stops_at_once_passes_all_and_solves_none() -> None:
    rate = solve_rate.of_step(load("reference"), "r", step=0, metrics=STOPS_AT_ONCE, max_turns=15)
    assert rate is not None
    assert rate.rate == 0
    assert rate.pass_at_1 == 1
    assert rate.source == "log formula"
    assert rate.bound == solve_rate.Bound(0.78125, "environment, max_turns=15")
    assert "of 0.781 reachable" in rate.sentence()


def test_the_dump_counts_mazes_by_their_last_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    env = load("reference")
    folder = tmp_path / "runs/r/exports/dumped_evals/global_step_10_evals"
    dump(folder, [[0, 0, 1.0], [0, 0.8], [0.0, 0.79], [0.2], [1.0, 0.2]], aggregated={"eval/all/avg_score": 0.6})
    rate = solve_rate.of_step(env, "r", step=10, metrics=STOPS_AT_ONCE, max_turns=17)
    assert rate is not None
    assert (rate.solved, rate.mazes, rate.source) == (2, 5, "eval dump")
    assert rate.bound == solve_rate.Bound(1.0, "environment, max_turns=17")


def test_a_bound_in_the_dump_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    dump(tmp_path / "runs/r/exports/dumped_evals/global_step_0_evals", [[1.0], [0.2]], aggregated={"oracle_bound": 0.5})
    rate = solve_rate.of_step(load("reference"), "r", step=0, metrics=STOPS_AT_ONCE, max_turns=15)
    assert rate is not None
    assert rate.bound == solve_rate.Bound(0.5, "eval dump")
    assert rate.of_bound == 1.0


@pytest.mark.parametrize("broken", ["missing", "no aggregate", "half a row", "not json"])
def test_a_dump_that_is_not_whole_is_not_believed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    folder = tmp_path / "runs/r/exports/dumped_evals/global_step_0_evals"
    if broken != "missing":
        dump(folder, [[1.0]], aggregated=None if broken == "no aggregate" else {})
    if broken == "half a row":
        (folder / "unknown.jsonl").write_text('{"score": [0.0, 1.')
    if broken == "not json":
        (folder / solve_rate.AGGREGATED).write_text("\x00")
    rate = solve_rate.of_step(load("reference"), "r", step=0, metrics=STOPS_AT_ONCE, max_turns=15)
    assert rate is not None
    assert rate.source == "log formula"


def test_an_unknown_bound_is_said() -> None:
    rate = solve_rate.of_step(load("reference"), "r", step=0, metrics=STOPS_AT_ONCE, max_turns=16)
    assert rate is not None
    assert "oracle bound unknown" in rate.sentence()
    assert rate.of_bound is None


def test_no_evaluation_no_rate() -> None:
    assert solve_rate.of_step(load("reference"), "r", step=0, metrics={"reward/avg_raw_reward": 0.5}, max_turns=15) is None
