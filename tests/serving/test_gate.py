from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import run as command
from config.load import load
from config.problems import Failed, Refused
from serving import aliases, candidate, evidence, export, gate, promote, releases
from serving.export import Export
from serving.gate import Evidence
from serving.releases import Release
from serving.store import Store
from tests.serving.bucket import memory_store
from tests.serving.exports import RUN, evaluation, make_record, write_export, write_record
from tests.serving.openai_server import oracle, serving, solving
from training import maze_task, results
from training import record as records
from training.maze_task import FRESH
from training.record import Record
from training.results import Played, Result
from training.verdicts import Verdict

ENV = load("local")
BASELINE, GOOD = set(range(19)), set(range(51))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    return tmp_path


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


def record_of(candidate_solves: set[int], *, format_rate: float = 1.0, baseline: set[int] = BASELINE) -> Record:
    return make_record(evaluations=(evaluation(0, baseline), evaluation(10, candidate_solves, format_rate=format_rate)))


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


def test_several_samples_a_maze_are_refused(shared: Path) -> None:
    twice = evaluation(10, GOOD)
    twice = twice.model_copy(update={"results": twice.results + twice.results[:1]})
    with pytest.raises(Refused, match="65 rows of 64 mazes; evaluate each maze once"):
        judged(shared, make_record(evaluations=(evaluation(0, BASELINE), twice)))


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


# --- the whole command ---


@pytest.fixture
def store(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    made = memory_store()
    monkeypatch.setattr("serving.store.open_store", lambda env, aws=None: made)
    write_export(shared, 10)
    write_record(shared, record_of(GOOD))
    return made


def run(*words: str) -> int:
    return command(["--env", "local", *words])


def models(body: dict[str, Any]) -> Any:
    """`base` solves a third of the mazes, `candidate` what can be solved."""
    return oracle(body) if body["model"] == "candidate" else SOME(body)


SOME = solving({*range(0, 64, 3), *FRESH[::3]})


def test_gate_promote_alias_rollback_retire(
    store: Store, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SUBMITTER", "ada")
    assert run("promote", RUN) == 2
    assert "the gate has not judged it" in capsys.readouterr().err
    with serving(answer=models) as server:
        asked = ["--endpoint", server.url, "--model", "candidate", "--baseline-model", "base"]
        assert run("gate", RUN, "--best", *asked) == 0
        requests = len(server.bodies)
        assert requests > 500
        assert run("gate", RUN) == 0  # what was evaluated on these bytes is not evaluated again
        assert len(server.bodies) == requests
    told = capsys.readouterr().out
    assert "the gate says yes: step 10 may be released" in told
    assert "PASS_AT_1" in told
    played = {result.step: result for result in results.of_run(shared / "runs" / RUN)}
    assert played[10].export_digest == export.checked(ENV, make_record(), 10).digest
    assert played[0].solved < played[10].solved == 44

    assert run("promote", RUN, "--dry-run") == 0
    assert store.list("") == []
    assert run("promote", RUN, "--alias", "current", "--json") == 0
    out = capsys.readouterr().out
    document = json.loads(out[out.index("{") :])
    name = document["name"]
    assert (document["new"], document["gate"]["passed"], document["gate"]["fresh_rate"]) == (True, True, 44 / 64)
    assert run("promote", RUN) == 0
    assert "was there already" in capsys.readouterr().out

    write_export(shared, 20)
    assert run("promote", RUN, "--step", "20", "--override", "second one", "--alias", "canary", "--share", "0.25") == 0
    said = capsys.readouterr().out
    assert "against the gate: second one" in said
    assert "for 25% of the requests" in said
    second = next(release.name for release in releases.list_releases(store) if release.step == 20)
    assert run("releases") == 0
    listed = capsys.readouterr().out
    assert "overridden" in listed
    assert "passed" in listed
    assert run("retire", second) == 2
    assert run("alias", "current", second, "--reason", "better") == 0
    assert run("rollback", "--dry-run") == 0
    assert run("rollback", "--from", second) == 0
    assert run("rollback", "--from", second) == 0
    alias = aliases.read(store, "current")
    assert alias is not None
    assert alias.release == name
    assert aliases.read(store, "canary") is None
    capsys.readouterr()
    assert run("alias", "current") == 0
    history = capsys.readouterr().out
    assert history.index("rollback from") < history.index("better") < history.index("promoted from run demo")
    assert run("retire", second, "--dry-run") == 0
    assert releases.exists(store, second)
    assert run("retire", second) == 0
    assert run("retire", second) == 2
    assert [release.name for release in releases.list_releases(store)] == [name]
    found = records.read(shared / "runs" / RUN)
    assert found is not None
    assert [event.kind for event in found.events] == ["gate", "release", "release"]


def test_a_gate_that_says_no_ends_with_1_and_why(
    store: Store, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(maze_task.SETS, "fresh", FRESH[:16])  # type: ignore[arg-type]
    with serving(answer=solving(set(FRESH))) as server:  # the same model twice: no better than the baseline
        asked = ["--endpoint", server.url, "--model", "candidate", "--baseline-model", "base"]
        assert run("gate", RUN, *asked) == 1
    told = capsys.readouterr().out
    assert "NO  better than baseline (fresh): 0 mazes gained, 0 lost of 16" in told
    assert "the gate says no: step 10 must not be released" in told
    assert run("promote", RUN) == 2
    assert "the gate did not pass it (better than baseline (fresh)" in capsys.readouterr().err
    assert store.list("") == []


def test_a_dry_run_of_the_gate_evaluates_and_writes_nothing(store: Store, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (shared / "runs" / RUN / records.FILE).read_bytes()
    assert run("gate", RUN, "--dry-run") == 1
    assert "NO  fresh mazes: the candidate was not evaluated" in capsys.readouterr().out
    assert (shared / "runs" / RUN / records.FILE).read_bytes() == before


def test_a_result_counts_if_it_is_about_these_bytes_and_was_played_as_the_run_plays(store: Store, shared: Path) -> None:
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
    store: Store, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gate", RUN, "--step", "11"], "has no export of this step; its exports are of step 10"),
        (["gate", RUN, "--step", "10", "--best"], "exclude each other"),
        (["gate", RUN, "--endpoint", "http://127.0.0.1:1"], "--endpoint and --model go together"),
        (["gate", "other"], "there is no record of it"),
        (["gate", "Bad_Run"], "1 to 48 of a-z"),
        (["promote", RUN, "--share", "0.5"], "only the canary has a share"),
        (["promote", RUN, "--register"], "the local cloud has no Model Registry"),
        (["promote", RUN, "--register", "--in-cluster"], "promote again with --register here"),
        (["alias", "newest"], "there is no such alias"),
        (["alias", "current", "maze-grpo-s1-00000000"], "there is no such release"),
        (["alias", "canary", "--remove", "--share", "0.1"], "--remove goes with neither"),
        (["alias", "canary", "--share", "0.1"], "--share needs a release"),
        (["rollback"], "it names no release"),
        (["rollback", "--from", "x"], "a release is named"),
        (["retire", "maze-grpo-s1-00000000"], "there is no such release"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_written(
    store: Store, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert said in capsys.readouterr().err
    assert store.list("") == []


def test_without_the_shared_file_system_the_gate_says_where_to_run_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HYPERPOD_RL_SHARED", raising=False)
    assert run("gate", RUN) == 3
    assert "not visible here" in capsys.readouterr().err


# --- the server for exports ---


def served_by(template: str | None) -> Any:
    serving = ENV.serving.model_copy(update={"gate": ENV.serving.gate.model_copy(update={"server": template})})
    return ENV.model_copy(update={"serving": serving})


def test_the_environments_server_is_filled_in() -> None:
    words = candidate.command(load("reference"), base=Path("/b c"), export=Path("/e"), port=7)
    assert words[:3] == ["vllm", "serve", "/b c"]
    assert "candidate=/e" in words
    assert words[words.index("--max-lora-rank") + 1] == "32"


@pytest.mark.parametrize(
    ("template", "said"),
    [(None, "names no server"), ("", "is empty"), ("vllm {model}", "cannot be filled in"), ("vllm '{base}", "cannot be filled in")],
)
def test_a_server_that_cannot_be_run_is_refused(template: str | None, said: str) -> None:
    with pytest.raises(Refused, match=said):
        candidate.command(served_by(template), base=Path("b"), export=Path("e"), port=1)


def test_a_server_that_ends_or_is_missing_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    broken = served_by("python -c \"import sys; print('no GPU here'); sys.exit(3)\"")
    with pytest.raises(Failed, match="ended with code 3: no GPU here"), candidate.served(broken, base=tmp_path, export=tmp_path, log=log):
        pass
    with (
        pytest.raises(Refused, match=r"cannot be started .*run the gate where it is installed"),
        candidate.served(served_by("no-such-program"), base=tmp_path, export=tmp_path, log=log),
    ):
        pass
    slow = served_by('python -c "import time; time.sleep(60)"')
    with pytest.raises(Failed, match="did not answer"), candidate.served(slow, base=tmp_path, export=tmp_path, log=log, seconds=0.1):
        pass


def test_promotion_of_a_plan_is_what_the_dry_run_shows(store: Store, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("promote", RUN, "--override", "x", "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    plan = promote.plan(ENV, record_of(GOOD), export.checked(ENV, make_record(), 10), record_bytes=b"", override="x")
    assert shown["name"] == plan.release.name
    assert shown["would_upload_to"] == f"s3://bucket/lora-adapters/{plan.release.name}/"
