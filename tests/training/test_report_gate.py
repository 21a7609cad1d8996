"""What the report tells of the gate and of evaluations over an endpoint."""

from __future__ import annotations

from pathlib import Path

from config.load import load
from training import recording, results
from training.keeping import History
from training.record import Record
from training.report.page import page
from training.results import Latency, Played, Result
from training.verdicts import Measured, Rule, Verdict

MAZES = tuple(Played(seed=seed, solved=seed < 3, turns=13, format_rate=1.0, stop_reason="stop") for seed in range(4))
RESULT = Result(
    model="base:<x>", endpoint="http://h", task="built-in", maze_set="fresh", max_turns=15, run_id="r", step=10, oracle_bound=1.0,
    latency=Latency(requests=52, p50=0.125), mazes=MAZES,
)  # fmt: skip
SEEN = Measured(who="candidate", maze_set="held-out", source="eval dump", solved=3, mazes=4, rate=0.75, low=0.3, high=0.9, oracle_bound=0.8)
VERDICT = Verdict(
    at="2026-11-29T10:00:00+00:00", run_id="r", step=10, selected="best", passed=False, export_digest="d", trainer="skyrl",
    measured=(SEEN,), rules=(Rule(name="format", passed=False, said="0.5 < 0.95"),),
)  # fmt: skip


def test_the_page_shows_verdict_and_results_and_escapes_them() -> None:
    record = Record(run_id="r", environment="local", results=(RESULT,), verdicts=(VERDICT,))
    text = page([History(record, (), "saved copy")])
    assert "did not pass" in text
    assert "0.5 &lt; 0.95" in text
    assert '<data value="0.9375">' in text  # 0.75 of 0.8
    assert "base:&lt;x&gt;" in text
    assert '<data value="0.125">' in text
    assert "<h2>Gate</h2>" not in page([History(Record(run_id="r", environment="local"), (), "saved copy")])


def test_results_enter_the_record_and_stay_when_their_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / results.FOLDER / results.file_name(10, "fresh")
    results.write(path, RESULT)
    (tmp_path / results.FOLDER / "other.json").write_text("[]")
    record = recording.update(load("local"), "r", folder=tmp_path, attempts=None)
    assert record.results == (RESULT,)
    path.unlink()
    assert recording.update(load("local"), "r", folder=tmp_path, attempts=None).results == (RESULT,)
    results.write(path, RESULT.model_copy(update={"seconds": 2.0}))
    assert [each.seconds for each in recording.update(load("local"), "r", folder=tmp_path, attempts=None).results] == [2.0]
