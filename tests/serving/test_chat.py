"""`chat`: a maze played for somebody who watches."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cli.main import run
from config.load import load
from serving import chat, evaluate, tasks
from serving.openai_client import Endpoint
from tests.serving import openai_server
from tests.serving.http_endpoint import serving
from tests.serving.test_verify import Models, best, solves, stops
from training.maze import maze
from training.pictures import pixels

MODELS = Models({"": stops, "maze-grpo-s20-aaaaaaaa": solves, "mute": lambda url: "I do not know"})


def play(model: str, *, turns: int = 17, seed: int = 3) -> tuple[chat.Game, list[chat.Turn]]:
    env = load("local")
    wanted = evaluate.plan(env, mazes=1, max_turns=turns)
    seen: list[chat.Turn] = []
    with serving(MODELS) as url:
        endpoint = Endpoint(url, model, tries=1)
        plan = type(wanted)(**{**wanted.__dict__, "seeds": (seed,)})
        return chat.play(endpoint, plan, tasks.task(env, "built-in", max_turns=turns), show=seen.append), seen


def test_a_game_that_is_won() -> None:
    best()
    game, seen = play("visgym:maze-grpo-s20-aaaaaaaa")
    drawn = maze(3)
    assert game.played.solved
    assert tuple(seen) == game.turns
    assert len(game.turns) == drawn.distances()[drawn.start] + 1
    assert game.turns[-1].move == "stop"
    assert {turn.move for turn in game.turns[:-1]} <= {"right", "up", "left", "down"}
    assert game.sentence() == f"maze 3: solved in {len(game.turns)} turns (stopped), answered by maze-grpo-s20-aaaaaaaa"
    square = drawn.start
    for turn in game.turns:
        assert np.array_equal(pixels(turn.picture), drawn.picture(square)), "the picture is the one that the model saw"
        if turn.move != "stop":
            square = drawn.move(square, chat.MOVES.index(turn.move))
    assert json.dumps(game.document())


def test_games_that_are_lost() -> None:
    assert play("visgym")[0].sentence() == "maze 3: not solved in 1 turns (stopped)"
    game, _ = play("visgym:mute", turns=4)
    assert game.sentence() == "maze 3: not solved in 4 turns (had no turn left of 4), answered by mute"
    assert [turn.move for turn in game.turns] == [""] * 4


def test_pictures_for_a_terminal_and_for_a_file() -> None:
    drawn = maze(0)
    picture = drawn.picture(drawn.start)
    text = chat.drawn(picture, columns=18)
    lines = text.plain.splitlines()
    assert len(lines) == 9
    assert {len(line) for line in lines} == {18}
    out = io.StringIO()
    Console(file=out, color_system="truecolor", force_terminal=True).print(text)
    for colour in ("220;40;40", "40;200;60", "30;30;30"):  # agent, goal, wall
        assert colour in out.getvalue()
    sheet = pixels(chat.sheet([picture] * 7))
    assert sheet.shape == (2 * 233 + 8, 5 * 233 + 8, 3)
    assert np.array_equal(sheet[8:233, 8:233], picture)
    assert np.array_equal(sheet[241:466, 241:466], picture)
    with pytest.raises(ValueError, match="pictures of one size"):
        chat.sheet([])


def test_the_command_writes_a_picture_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(MODELS) as url:
        arguments = [
            "--env",
            "local",
            "chat",
            "--endpoint",
            url,
            "--model",
            "visgym:maze-grpo-s20-aaaaaaaa",
            "--seed",
            "3",
            "--max-turns",
            "17",
        ]
        assert run(arguments) == 0
        told = capsys.readouterr()
        assert told.out.splitlines()[-1] == "pictures: maze-3.png"
        assert pixels((tmp_path / "maze-3.png").read_bytes()).ndim == 3
        assert "turn 1: " in told.err
        (tmp_path / "maze-3.png").unlink()
        assert run([*arguments, "--json"]) == 0
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert said["solved"] is True
        assert said["output"] is None
        assert not list(tmp_path.iterdir())
        assert run(["--env", "local", "chat", "--endpoint", url, "--model", "visgym:gone"]) == 2
        assert "does not serve it" in capsys.readouterr().err
    assert run(["--env", "local", "chat", "--endpoint", "nowhere"]) == 2


def test_what_is_no_picture_is_said() -> None:
    assert chat.picture_of({"role": "user", "content": "words only"}) == b""


def test_a_terminal_obeys_nothing_that_a_model_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with openai_server.serving(answer=lambda body: "\x1b[2J\x07('stop', 'stop')", release="\x9b31m evil") as server:
        assert run(["--env", "local", "chat", "--endpoint", server.url, "--model", "m"]) == 0
    told = capsys.readouterr()
    assert "\\x1b[2J\\x07('stop', 'stop')" in told.err
    assert "\x1b" not in told.err + told.out
    assert "answered by" not in told.out, "what no release can be called is no release"


@pytest.mark.parametrize(("output", "said"), [("file/x.png", "is no folder"), (".", "directory")])
def test_where_the_pictures_go_is_looked_at_first(
    output: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert run(["--env", "local", "chat", "--endpoint", "http://127.0.0.1:9", "--output", output]) == 2
    assert said in capsys.readouterr().err
