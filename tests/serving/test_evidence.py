"""What the gate gathers before it judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import run as command
from config.load import load
from serving import evidence, export
from serving.releases import Release
from serving.store import Store
from tests.serving.exports import GOOD, RUN, make_record, record_of, write_export, write_record
from tests.serving.openai_server import base_and_candidate, oracle, serving
from training import maze_task, results
from training import record as records
from training.maze_task import FRESH
from training.record import Dataset, Record
from training.results import Played, Result

ENV = load("local")


def run(*words: str) -> int:
    return command(["--env", "local", *words])


def test_a_result_counts_if_it_is_about_these_bytes_and_was_played_as_the_run_plays(opened: Store, shared: Path) -> None:
    folder, digest = shared / "runs" / RUN, export.checked(ENV, make_record(), 10).digest
    mazes = tuple(Played(seed=seed, solved=True, turns=13, format_rate=1, stop_reason="stop") for seed in FRESH)

    def answered(release: str) -> tuple[Played, ...]:
        """As an alias would have it: one maze was played by this release."""
        return (mazes[0].model_copy(update={"releases": (release,)}), *mazes[1:])

    good = Result(model="m", endpoint="e", task="built-in", maze_set="fresh", max_turns=15, run_id=RUN, step=10, mazes=mazes,
                  export_digest=digest)  # fmt: skip
    for changes, counts in (
        ({}, True), ({"export_digest": None}, True), ({"export_digest": "sha256:old"}, False), ({"max_turns": 17}, False),
        ({"temperature": 1.0}, False), ({"task": "visgym"}, False), ({"mazes": mazes[:63]}, False), ({"run_id": "x"}, False),
        ({"mazes": answered(f"maze-grpo-s10-{digest[7:15]}")}, True), ({"mazes": answered("maze-grpo-s10-00000000")}, False),
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
    with serving(answer=base_and_candidate) as server:
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


def test_an_endpoint_that_answers_with_another_release_is_not_taken_for_the_candidate(
    opened: Store, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--model base:current`, for instance: what the endpoint says of itself is believed."""
    monkeypatch.setitem(maze_task.SETS, "fresh", FRESH[:2])  # type: ignore[arg-type]
    asked = ["--model", "x:current", "--baseline-model", "x"]
    with serving(release="maze-grpo-s5-00000000") as server:
        assert run("gate", RUN, "--endpoint", server.url, *asked) == 2
        assert "--baseline-model = x: maze-grpo-s5-00000000 answered, not the base model" in capsys.readouterr().err
        server.answer = lambda body: oracle(body) if body["model"] == "x:current" else (200, {}, plain(oracle(body)))
        assert run("gate", RUN, "--endpoint", server.url, *asked) == 2
    assert "--model = x:current: maze-grpo-s5-00000000 answered, not this export" in capsys.readouterr().err
    assert [result.step for result in results.of_run(shared / "runs" / RUN)] == [0]


def plain(said: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": said}}]}


def test_runs_that_were_evaluated_on_other_files_are_not_paired(shared: Path) -> None:
    def on(digest: str | None, **more: Any) -> Record:
        return record_of(GOOD).model_copy(update={"datasets": (Dataset(purpose="evaluation", path="/shared/x", sha256=digest),), **more})

    write_export(shared, 10)
    current = Release(name="maze-grpo-s10-00000001", adapter="maze-grpo", step=10, run_id="before", environment="local",
                      content_digest="sha256:1", files=(), rank=8, alpha=8)  # fmt: skip
    for ours, theirs, paired in (("a", "a", True), ("a", "b", False), ("a", None, True), (None, "b", True)):
        write_record(shared, on(theirs, run_id="before"))
        found = evidence.gather(
            ENV, on(ours), export.checked(ENV, make_record(), 10), folder=shared / "runs" / RUN, current=current, asked=None, bar=None,  # type: ignore[arg-type]
            note=print, evaluates=False,
        )  # fmt: skip
        assert ("current release" in [each.who for each in found]) is paired, (ours, theirs)


def test_of_several_results_the_newest_that_can_be_used_counts(shared: Path) -> None:
    def played(solved: int, started: str, **more: Any) -> Result:
        mazes = tuple(Played(seed=seed, solved=n < solved, turns=13, format_rate=1, stop_reason="stop") for n, seed in enumerate(FRESH))
        return Result(model="m", endpoint="e", task="built-in", maze_set="fresh", max_turns=15, run_id=RUN, step=10, mazes=mazes,
                      started=started, **more)  # fmt: skip

    def counted(*found: Result) -> int | None:
        for number, result in enumerate(found):
            results.write(shared / "runs" / RUN / "evaluations" / f"{number}.json", result)
        told = evidence.gather(
            ENV, record, export.checked(ENV, record, 10), folder=shared / "runs" / RUN, current=None, asked=None, bar=None,  # type: ignore[arg-type]
            note=print, evaluates=False,
        )  # fmt: skip
        return next((sum(each.solved.values()) for each in told if (each.who, each.maze_set) == ("candidate", "fresh")), None)

    write_export(shared, 10)
    record = record_of(GOOD)
    record = record.model_copy(update={"overrides": {**record.overrides, "generator.sampling_params.max_generate_length": 64}})
    old, new = played(30, "2026-11-29T10:00:00+00:00"), played(40, "2026-11-29T11:00:00+00:00")
    assert counted(new, old) == 40
    assert counted(played(64, "2026-11-29T12:00:00+00:00", max_tokens=63), old) == 30, "one that was cut short is no reason to play again"
    assert counted(*[old.model_copy(update={"mazes": old.mazes[:-1] + old.mazes[:1]})] * 2) is None


def test_each_result_of_the_same_bytes_tells_how_often_they_were_played(tmp_path: Path) -> None:
    path = tmp_path / "step-10-fresh.json"
    one = Result(model="m", endpoint="e", task="built-in", maze_set="fresh", max_turns=15, run_id=RUN, step=10, mazes=(), export_digest="a")
    unknown, other = (one.model_copy(update={"export_digest": digest}) for digest in (None, "b"))
    elsewhere = other.model_copy(update={"run_id": "other"})
    for result, tries in ((one, 1), (one, 2), (unknown, 3), (one, 4), (other, 1), (elsewhere, 1)):
        counted = results.counted(path, result)
        assert counted.tries == tries
        results.write(path, counted)
    path.write_text("{}")
    assert results.counted(path, one).tries == 1
