"""What the gate gathers before it judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import run as command
from config.load import load
from serving import evidence, export
from serving.store import Store
from tests.serving.exports import GOOD, RUN, make_record, record_of, write_record
from tests.serving.openai_server import oracle, serving, solving
from training import maze_task, results
from training import record as records
from training.maze_task import FRESH
from training.results import Played, Result

ENV = load("local")


def run(*words: str) -> int:
    return command(["--env", "local", *words])


def models(body: dict[str, Any]) -> Any:
    """`base` solves a third of the mazes, `candidate` what can be solved."""
    return oracle(body) if body["model"] == "candidate" else SOME(body)


SOME = solving({*range(0, 64, 3), *FRESH[::3]})


def test_a_result_counts_if_it_is_about_these_bytes_and_was_played_as_the_run_plays(opened: Store, shared: Path) -> None:
    folder, digest = shared / "runs" / RUN, export.checked(ENV, make_record(), 10).digest
    mazes = tuple(Played(seed=seed, solved=True, turns=13, format_rate=1, stop_reason="stop") for seed in FRESH)
    good = Result(model="m", endpoint="e", task="built-in", maze_set="fresh", max_turns=15, run_id=RUN, step=10, mazes=mazes,
                  export_digest=digest)  # fmt: skip
    for changes, counts in (
        ({}, True), ({"export_digest": None}, True), ({"export_digest": "sha256:old"}, False), ({"max_turns": 17}, False),
        ({"temperature": 1.0}, False), ({"task": "visgym"}, False), ({"mazes": mazes[:63]}, False), ({"run_id": "x"}, False),
    ):  # fmt: skip
        results.write(folder / "evaluations" / results.file_name(10, "fresh"), good.model_copy(update=changes))
        found = evidence.gather(
            ENV, record_of(GOOD), export.checked(ENV, make_record(), 10), folder=folder, current=None, asked=None, bar=None,  # type: ignore[arg-type]
            note=print, evaluates=False,
        )  # fmt: skip
        assert any((each.who, each.maze_set) == ("candidate", "fresh") for each in found) is counts, changes


def test_a_run_without_eval_dumps_is_played_by_the_gate_itself(
    opened: Store, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rough = tuple(each.model_copy(update={"source": "log formula", "results": ()}) for each in record_of(GOOD).evaluations)
    write_record(shared, record_of(GOOD).model_copy(update={"evaluations": rough}))
    monkeypatch.setitem(maze_task.SETS, "fresh", FRESH[:24])  # type: ignore[arg-type]
    monkeypatch.setitem(maze_task.SETS, "held-out", range(24))
    with serving(answer=models) as server:
        asked = ["--endpoint", server.url, "--model", "candidate"]
        assert run("gate", RUN, *asked) == 2
        assert "--baseline-model" in capsys.readouterr().err
        assert run("gate", RUN, *asked, "--baseline-model", "base") == 0
    assert {(each.step, each.maze_set) for each in results.of_run(shared / "runs" / RUN)} == {
        (0, "held-out"), (0, "fresh"), (10, "held-out"), (10, "fresh")}  # fmt: skip
    found = records.read(shared / "runs" / RUN)
    assert found is not None
    seen = found.verdicts[-1].of("candidate")
    assert seen is not None
    solvable = round(24 * maze_task.oracle_bound(range(24), max_turns=15))
    assert (seen.source, seen.solved, seen.skyrl_pass_at_1) == ("evaluate, candidate", solvable, 1.0)
