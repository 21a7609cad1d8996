from __future__ import annotations

import errno
import json
import os
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import run
from config.load import load
from config.problems import Refused, Unreachable
from serving import evaluate, export, tasks
from serving.evaluate import Plan, latency
from serving.openai_client import Endpoint
from tests.serving.exports import make_record, write_export
from tests.serving.openai_server import Server, oracle, serving, solving, speak
from training import maze_task, results
from training.maze import HELD_OUT, STOP, maze
from training.results import Result

ENV = load("local")


def result(server: Server, *, maze_set: Any = "held-out", mazes: int | None = None, max_turns: int = 15, **more: Any) -> Result:
    wanted = evaluate.plan(ENV, maze_set=maze_set, mazes=mazes, max_turns=max_turns, **more)
    return evaluate.run(Endpoint(server.url, "base"), wanted, tasks.task(ENV, None, max_turns=max_turns))


def test_a_model_that_solves_what_can_be_solved_reaches_the_oracle_bound() -> None:
    with serving() as server:
        found = result(server)
    assert (found.solved, len(found.mazes), found.oracle_bound) == (51, 64, 51 / 64)
    assert found.format_rate == 1.0
    assert {played.stop_reason for played in found.mazes if played.solved} == {"stop"}
    assert {played.stop_reason for played in found.mazes if not played.solved} == {"turns"}
    # Which mazes were solved is decided by the maze, not by the order in which answers came.
    solvable = {seed for seed in HELD_OUT if maze(seed).distances()[maze(seed).start] + 1 <= 15}
    assert {played.seed for played in found.mazes if played.solved} == solvable
    assert found.latency.requests == sum(played.turns for played in found.mazes)


def test_stopping_at_once_passes_everything_for_skyrl_and_solves_nothing() -> None:
    with serving(answer=lambda body: speak(STOP)) as server:
        found = result(server)
    assert (found.rate, found.pass_at_1, found.format_rate) == (0.0, 1.0, 1.0)


def test_each_request_carries_the_whole_conversation_and_every_picture() -> None:
    with serving() as server:
        result(server, mazes=1, max_turns=13)
        turns = len(server.bodies)
        last = server.bodies[-1]
    assert turns == 13
    assert [message["role"] for message in last["messages"]] == ["user", "assistant"] * 12 + ["user"]
    assert sum(part["type"] == "image_url" for m in last["messages"][::2] for part in m["content"]) == 13
    assert (last["model"], last["temperature"], last["user"]) == ("base", 0.0, "evaluation-0")


def test_what_passes_is_tried_again_and_no_maze_is_lost() -> None:
    calls: list[tuple[str, int]] = []

    def sometimes(body: dict[str, Any]) -> Any:
        """Every third turn of a maze is refused twice, in two ways, before it is answered."""
        turn = (body["user"], len(body["messages"]))
        calls.append(turn)
        if turn[1] % 6 == 5 and calls.count(turn) == 1:
            return 503, {"Retry-After": "0"}, {"error": {"message": "busy"}}
        if turn[1] % 6 == 5 and calls.count(turn) == 2:
            return 429, {"Retry-After": "0"}, "slow down"
        return oracle(body)

    with serving(answer=sometimes) as server:
        found = result(server, mazes=8)
    assert found.solved == sum(maze(seed).distances()[maze(seed).start] + 1 <= 15 for seed in range(8))
    assert found.retries == sum(2 for turn in set(calls) if turn[1] % 6 == 5) > 0
    assert found.latency.requests + found.retries == len(calls)


def test_an_endpoint_that_stays_down_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.openai_client.LONGEST_PAUSE", 0.0)
    with serving(answer=lambda body: (500, {}, "boom")) as server:
        endpoint = Endpoint(server.url, "base", tries=3)
        wanted = evaluate.plan(ENV, mazes=4)
        with pytest.raises(Unreachable, match=r"did not answer in 3 tries; the last one: status 500: boom"):
            evaluate.run(endpoint, wanted, tasks.task(ENV, None, max_turns=15))
    with pytest.raises(Unreachable, match="did not answer in 3 tries"):
        evaluate.run(endpoint, wanted, tasks.task(ENV, None, max_turns=15))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {}, {"error": {"message": "The model `base` does not exist."}}), "--model = base: .* does not serve it"),
        ((401, {}, {"error": {"message": "no key"}}), r"asks for an API key.*\$OPENAI_API_KEY"),
        ((400, {}, {"error": {"message": "images are not supported"}}), "status 400: images are not supported"),
    ],
)
def test_what_is_refused_for_good_is_not_tried_again(answer: Any, said: str) -> None:
    with serving(answer=lambda body: answer) as server:
        with pytest.raises(Refused, match=said):
            result(server, mazes=1)
        assert len(server.bodies) == 1


def test_what_is_no_openai_endpoint_is_said() -> None:
    with serving(answer=lambda body: (200, {}, "<html>")) as server, pytest.raises(Unreachable, match="is no OpenAI endpoint"):
        result(server, mazes=1)
    with serving(answer=lambda body: (200, {}, {"choices": []})) as server, pytest.raises(Unreachable, match="no chat completion"):
        result(server, mazes=1)


def test_a_conversation_that_grows_too_long_ends_its_maze_only() -> None:
    def short(body: dict[str, Any]) -> Any:
        if len(body["messages"]) > 4:
            return 400, {}, {"error": {"message": "This model's maximum context length is 4096 tokens."}}
        return oracle(body)

    with serving(answer=short) as server:
        found = result(server, mazes=3)
    assert [(played.stop_reason, played.turns, played.solved) for played in found.mazes] == [("context", 2, False)] * 3


def test_concurrency_is_what_was_asked_for() -> None:
    with serving(delay=0.005) as server:
        result(server, mazes=12, concurrency=4)
        assert server.busy == 4
        server.busy = 0
        result(server, mazes=3, concurrency=1)
        assert server.busy == 1


def test_the_key_goes_into_a_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with serving(release="maze-grpo-s10-00000001") as server:
        found = result(server, mazes=1)
        assert server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in found.text()
    assert found.mazes[0].releases == ("maze-grpo-s10-00000001",)


def test_both_forms_of_an_endpoint_are_taken_and_passwords_are_not_shown() -> None:
    assert Endpoint("http://h:1", "m").base == Endpoint("http://h:1/v1/", "m").base == "http://h:1/v1"
    assert Endpoint("http://me:pw@h/v1", "m").shown == "http://***@h/v1"


def test_all_that_is_wrong_with_a_plan_is_said_at_once() -> None:
    with pytest.raises(Refused) as refused:
        evaluate.plan(ENV, mazes=65, max_turns=0, concurrency=0, temperature=-1, max_tokens=0)
    assert len(refused.value.problems) == 5


@given(st.lists(st.floats(0, 100, allow_nan=False), min_size=1, max_size=300))
def test_percentiles_are_latencies_that_were_seen(seconds: list[float]) -> None:
    found = latency(seconds)
    rounded = [round(each, 4) for each in seconds]
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value in rounded
        assert sum(each <= value for each in rounded) >= share * len(rounded)
        assert sum(each < value for each in rounded) < share * len(rounded) + 1e-9 or value == min(rounded)
    assert found.longest == max(rounded)


class FakeVisGymEnv:
    """The interface of SkyRL's VisGymEnv, over a maze of ours."""

    def __init__(self, config: Any, extras: dict[str, Any]) -> None:
        self.extras = extras
        self.episode = maze_task.episode(extras["seed"], max_turns=extras["max_turns"])
        self.format_successes = 0

    def init(self, prompt: Any) -> Any:
        return [self.episode.begin()], {}

    def step(self, text: str) -> Any:
        message = self.episode.step(text)
        self.format_successes = self.episode.formed
        done = message is None
        return {"observations": [] if done else [message], "reward": self.episode.reward if done else 0.0, "done": done,
                "metadata": {"terminated": self.episode.stopped}}  # fmt: skip

    def close(self) -> None:
        pass


def test_visgym_is_played_in_skyrls_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(tasks.VISGYM_ENVIRONMENT)
    module.VisGymEnv = FakeVisGymEnv  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, tasks.VISGYM_ENVIRONMENT, module)
    for parent in ("examples", "examples.train", "examples.train.visgym"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setattr(tasks, "visgym_bound", lambda env, seeds, max_turns: 0.5)
    with serving(answer=solving(set(range(3)))) as server:
        found = evaluate.run(
            Endpoint(server.url, "base"), Plan(tuple(range(5)), "held-out", 21), tasks.task(load("reference"), None, max_turns=21)
        )
    assert (found.task, found.solved, found.oracle_bound) == ("visgym", 3, 0.5)
    assert found.format_rate == 1.0


def test_visgym_that_is_not_installed_is_refused_with_what_to_do() -> None:
    with pytest.raises(Refused, match=r"cannot be imported here.*--task built-in"):
        tasks.task(load("reference"), None, max_turns=15)


def test_the_command_writes_a_result_into_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    write_export(tmp_path, 50)
    with serving() as server:
        command = ["--env", "local", "evaluate", "--endpoint", server.url, "--model", "base", "--set", "fresh",
                   "--run-id", "demo", "--step", "50", "--json"]  # fmt: skip
        assert run(command) == 0
        document = json.loads(capsys.readouterr().out)
        elsewhere = tmp_path / "fresh.json"
        assert run([*command[:-5], "--mazes", "2", "--output", str(elsewhere)]) == 0
        assert results.read(elsewhere).maze_set == "fresh"
    path = tmp_path / "runs" / "demo" / "evaluations" / "step-50-fresh.json"
    assert document["output"] == str(path)
    written = results.read(path)
    assert (written.run_id, written.step, written.maze_set, written.rate) == ("demo", 50, "fresh", document["rate"])
    assert written.export_digest == export.checked(ENV, make_record(), 50).digest
    assert results.of_run(path.parent.parent) == [written]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--run-id", "demo"], "--run-id and --step say together"),
        (["--run-id", "demo", "--step", "1", "--mazes", "3"], "whole sets"),
        (["--mazes", "0"], "has 64 mazes"),
    ],
)
def test_the_command_refuses_before_it_asks(
    more: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    with serving() as server:
        assert run(["--env", "local", "evaluate", "--endpoint", server.url, "--model", "base", *more]) == 2
        assert server.bodies == []
    assert said in capsys.readouterr().err


def test_a_dry_run_reaches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--env", "local", "evaluate", "--endpoint", "http://127.0.0.1:9", "--model", "base", "--dry-run"]
    assert run(command) == 0
    assert "would play 64 held-out mazes (built-in, 15 turns)" in capsys.readouterr().out


def test_a_file_that_is_no_result_is_passed_over_and_said_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / results.FOLDER).mkdir()
    (tmp_path / results.FOLDER / "x.json").write_text("{}")
    assert results.of_run(tmp_path) == []
    from config.problems import Failed

    with pytest.raises(Failed, match="no result of"):
        results.read(tmp_path / results.FOLDER / "x.json")


def test_a_result_without_mazes_has_no_rate() -> None:
    empty = Result(model="m", endpoint="e", task="built-in", maze_set="other", max_turns=1, mazes=())
    assert (empty.rate, empty.format_rate, empty.pass_at_1, empty.interval) == (0.0, 0.0, 0.0, (0.0, 1.0))
    assert "oracle bound unknown" in empty.sentence()
    assert replace(Plan((), "fresh", 1), step=1).step == 1


def test_a_model_that_takes_no_picture_did_not_play_and_solved_nothing() -> None:
    """vLLM's words where --limit-mm-per-prompt is 0: a solve rate of 0 would be a result that nobody played for."""
    no_pictures = (400, {}, {"error": {"message": "At most 0 image(s) may be provided in one prompt."}})
    with serving(answer=lambda body: no_pictures) as server, pytest.raises(Refused, match="does not take even the first prompt of a maze"):
        result(server, mazes=2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--run-id", "typo", "--step", "50"], "--run-id = typo: there is no such run"),
        (["--run-id", "demo", "--step", "51"], "run demo has no export of this step; its steps are 0, 50"),
        (["--output", "{}/no/../file/deep/x.json"], "is no folder"),
        (["--model", ""], "--model: a model's name is text"),
    ],
)
def test_where_the_result_is_to_go_is_looked_at_before_anything_is_played(
    more: list[str], said: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_export(shared, 50)
    (shared / "file").write_text("")
    before = sorted(shared.rglob("*"))
    with serving() as server:
        words = [word.format(shared) for word in more]
        assert run(["--env", "local", "evaluate", "--endpoint", server.url, "--model", "base", *words]) == 2
        assert server.bodies == []
    assert said in capsys.readouterr().err
    assert sorted(shared.rglob("*")) == before


def test_a_result_that_cannot_be_written_is_told_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full when all mazes are played."""

    def full(path: Path, found: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("training.results.write", full)
    with serving(answer=lambda body: speak(STOP)) as server:
        command = ["--env", "local", "evaluate", "--endpoint", server.url, "--model", "base", "--mazes", "2"]
        assert run([*command, "--output", str(tmp_path / "x.json")]) == 3
    told = capsys.readouterr()
    assert "base: solve rate 0.000" in told.out
    assert "no space is left on this device" in told.err


def test_a_device_is_written_to_and_a_link_is_followed(tmp_path: Path) -> None:
    found = Result(model="m", endpoint="e", task="built-in", maze_set="other", max_turns=1, mazes=())
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        results.write(tmp_path / "pipe", found)
        assert os.read(reader, 1 << 16).decode() == found.text()
        assert (tmp_path / "pipe").is_fifo(), "nothing takes the place of a device"
    finally:
        os.close(reader)
    (tmp_path / "link").symlink_to(tmp_path / "real.json")
    results.write(tmp_path / "link", found)
    assert (tmp_path / "link").is_symlink()
    assert results.read(tmp_path / "real.json") == found
