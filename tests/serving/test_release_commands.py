"""`gate`, `promote`, `releases`, `alias`, `rollback`, `retire` as one types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run as command
from config.load import load
from serving import aliases, export, promote, releases
from serving.store import Store
from tests.serving.exports import GOOD, RUN, make_record, record_of, write_export
from tests.serving.openai_server import base_and_candidate, serving, solving
from training import maze_task, results
from training import record as records
from training.maze_task import FRESH

ENV = load("local")


def run(*words: str) -> int:
    return command(["--env", "local", *words])


def test_gate_promote_alias_rollback_retire(
    opened: Store, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SUBMITTER", "ada")
    assert run("promote", RUN) == 2
    assert "the gate has not judged it" in capsys.readouterr().err
    with serving(answer=base_and_candidate) as server:
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
    assert opened.list("") == []
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
    second = next(release.name for release in releases.list_releases(opened) if release.step == 20)
    assert run("releases") == 0
    listed = capsys.readouterr().out
    assert "overridden" in listed
    assert "passed" in listed
    assert run("retire", second) == 2
    assert run("alias", "current", second, "--reason", "better") == 0
    assert run("rollback", "--dry-run") == 0
    assert run("rollback", "--from", second) == 0
    assert run("rollback", "--from", second) == 0
    alias = aliases.read(opened, "current")
    assert alias is not None
    assert alias.release == name
    assert aliases.read(opened, "canary") is None
    capsys.readouterr()
    assert run("alias", "current") == 0
    history = capsys.readouterr().out
    assert history.index("rollback from") < history.index("better") < history.index("promoted from run demo")
    assert run("alias", "canary", second, "--share", "0.2") == 0
    assert run("alias", "canary", "--remove") == 0
    assert run("retire", second, "--dry-run") == 0
    assert releases.exists(opened, second)
    assert run("retire", second) == 0
    assert run("retire", second) == 2
    assert [release.name for release in releases.list_releases(opened)] == [name]
    found = records.read(shared / "runs" / RUN)
    assert found is not None
    assert [event.kind for event in found.events] == ["gate", "release", "release"]


def test_a_gate_that_says_no_ends_with_1_and_why(
    opened: Store, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    assert opened.list("") == []


def test_a_dry_run_of_the_gate_evaluates_and_writes_nothing(opened: Store, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (shared / "runs" / RUN / records.FILE).read_bytes()
    assert run("gate", RUN, "--dry-run") == 1
    assert "NO  fresh mazes: the candidate was not evaluated" in capsys.readouterr().out
    assert (shared / "runs" / RUN / records.FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gate", RUN, "--step", "11"], "has no export of this step; its exports are of step 10"),
        (["gate", RUN, "--step", "10", "--best"], "exclude each other"),
        (["gate", RUN, "--endpoint", "http://127.0.0.1:1"], "--endpoint and --model go together"),
        (["gate", RUN, "--endpoint", "http://[::1", "--model", "m"], "this is no URL of an endpoint"),
        (["gate", RUN, "--endpoint", "http://127.0.0.1:1", "--model", "m", "--baseline-model", ""], "a model's name is text"),
        (["gate", "other"], "there is no such run"),
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
    opened: Store, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert said in capsys.readouterr().err
    assert opened.list("") == []


def test_without_the_shared_file_system_the_gate_says_where_to_run_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HYPERPOD_RL_SHARED", raising=False)
    assert run("gate", RUN) == 3
    assert "not visible here" in capsys.readouterr().err


def test_promotion_of_a_plan_is_what_the_dry_run_shows(opened: Store, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("promote", RUN, "--override", "x", "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    plan = promote.plan(ENV, record_of(GOOD), export.checked(ENV, make_record(), 10), record_bytes=b"", override="x")
    assert shown["name"] == plan.release.name
    assert shown["would_upload_to"] == f"s3://bucket/lora-adapters/{plan.release.name}/"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["promote", RUN, "--override", "x", "--alias", "canary", "--share", "5"], "use 0 to 1"),
        (["promote", RUN, "--override", "x", "--alias", "canary", "--share", "nan"], "use 0 to 1"),
        (["promote", RUN, "--override", "bad \udcff byte"], "recorded as one line of text"),
        (["promote", RUN, "--override", "two\nlines"], "recorded as one line of text"),
        (["promote", RUN, "--override", "\x1b[2J"], "recorded as one line of text"),
        (["alias", "canary", "maze-grpo-s1-00000000", "--share", "2", "--dry-run"], "use 0 to 1"),
        (["alias", "current", "maze-grpo-s1-00000000", "--share", "0.1"], "only canary has a share"),
        (["alias", "current", "maze-grpo-s1-00000000", "--dry-run"], "there is no such release"),
        (["alias", "current", "maze-grpo-s1-00000000", "--reason", "\udcff"], "recorded as one line of text"),
        (["rollback", "--reason", "\x1b[2J"], "recorded as one line of text"),
        (["rollback", "--dry-run"], "it names no release"),
    ],
)
def test_what_would_be_refused_at_the_end_is_refused_before_anything_is_written(
    opened: Store, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert said in capsys.readouterr().err
    assert opened.list("") == []


def test_the_list_tells_what_it_cannot_read(opened: Store, capsys: pytest.CaptureFixture[str]) -> None:
    write_export_again = ["promote", RUN, "--override", "x"]
    assert run(*write_export_again) == 0
    opened.put("lora-adapters/maze-grpo-s9-00000009/adapter_config.json", b"{}")
    opened.put("lora-adapters/maze-grpo-s9-00000009/release.json", b"garbage")
    capsys.readouterr()
    assert run("releases") == 1
    told = capsys.readouterr()
    assert "maze-grpo-s10-" in told.out
    assert "maze-grpo-s9-00000009/release.json is no record of a release" in told.err
    assert run("releases", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (len(document["releases"]), len(document["unreadable"])) == (1, 1)


def test_a_submitter_that_is_no_text_is_recorded_as_what_can_be_read_of_it(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SUBMITTER", "ada\udcff")
    assert run("promote", RUN, "--override", "x", "--alias", "current") == 0
    (release,) = releases.list_releases(opened)
    assert release.published_by == "ada?"
    alias = aliases.read(opened, "current")
    assert alias is not None
    assert alias.history[-1].by == "ada?"


def test_current_is_not_taken_by_what_was_never_compared_with_it(
    opened: Store, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate said yes when there was no release; since then another one has become current."""
    monkeypatch.setitem(maze_task.SETS, "fresh", FRESH[:16])  # type: ignore[arg-type]
    with serving(answer=base_and_candidate) as server:
        assert run("gate", RUN, "--endpoint", server.url, "--model", "candidate", "--baseline-model", "base") == 0
    write_export(shared, 20)
    assert run("promote", RUN, "--step", "20", "--override", "meanwhile", "--alias", "current") == 0
    meanwhile = next(release.name for release in releases.list_releases(opened) if release.step == 20)
    capsys.readouterr()
    assert run("promote", RUN, "--step", "10", "--alias", "current") == 2
    said = capsys.readouterr().err
    assert f"judged step 10 when no release was current, and did not compare it with {meanwhile}" in said
    assert len(releases.list_releases(opened)) == 1
    assert run("promote", RUN, "--step", "10", "--alias", "canary") == 0
    assert run("promote", RUN, "--step", "10", "--alias", "current", "--override", "known to be better") == 0
    assert run("promote", RUN, "--step", "10", "--alias", "current") == 0, "what is current already needs no comparison"
    alias = aliases.read(opened, "current")
    assert alias is not None
    assert [move.reason for move in alias.history] == ["promoted from run demo: meanwhile", "promoted from run demo: known to be better"]
