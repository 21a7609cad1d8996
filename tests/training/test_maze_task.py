from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.trainer.policy import WORDS
from local.trainer.rollout import utterance
from training import maze_task, pictures
from training.maze import HELD_OUT, STOP, held_out_layouts, maze
from training.maze_task import FRESH, episode, find_action, parse_action, well_formed

few = settings(max_examples=25, deadline=None)


def spoken(action: int) -> str:
    return utterance(action)


@few
@given(st.integers(0, 2**40))
def test_the_oracle_solves_every_maze_within_its_path_and_a_stop(seed: int) -> None:
    found = maze(seed)
    best = found.oracle()
    playing = episode(seed, max_turns=40)
    playing.begin()
    while not playing.done:
        playing.step(spoken(best[playing.square]))
    assert playing.solved
    assert playing.reward == pytest.approx(1.0)
    assert playing.turns == found.distances()[found.start] + 1


@pytest.mark.parametrize("word", range(len(WORDS)))
def test_an_evaluation_reads_the_stand_in_as_its_trainer_does(word: int) -> None:
    text = utterance(word)
    assert find_action(text) == parse_action(text)
    assert well_formed(text) == (parse_action(text) is not None)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("<observation>I see</observation> <justification>so</justification>\n<action>('move', 3)</action>", 3),
        ('```("stop", "stop")```', STOP),
        ("( 'move' ,1 )", 1),
        ("('move', 4)", None),
        ("('move', '1')", None),
        ("move right", None),
        ("", None),
        ("('stop', 'move')", None),
        ("first ('move', 2), then ('move', 0)", 2),
    ],
)
def test_actions_are_found_in_what_models_say(said: str, action: int | None) -> None:
    assert find_action(said) == action


def test_stopping_at_once_with_good_format_is_rewarded_and_solves_nothing() -> None:
    playing = episode(3, max_turns=15)
    assert playing.step(spoken(STOP)) is None
    assert (playing.done, playing.solved) == (True, False)
    assert playing.reward == pytest.approx(0.2)  # above 0: SkyRL's pass_at_1 would call it passed


def test_an_episode_ends_with_its_turns() -> None:
    playing = episode(3, max_turns=2)
    first = playing.step("nonsense")
    assert first is not None
    assert first["content"][0]["text"] == maze_task.UNPARSED
    assert playing.step("nonsense") is None
    assert (playing.solved, playing.reward) == (False, 0.0)
    with pytest.raises(ValueError, match="over"):
        playing.step("nonsense")


def test_walls_are_told_and_the_picture_shows_where_the_agent_is() -> None:
    playing = episode(5, max_turns=15)
    for action in range(4):
        before = playing.square
        told = playing.step(spoken(action))
        assert told is not None
        text, url = told["content"][0]["text"], told["content"][1]["image_url"]["url"]
        assert (text == maze_task.BLOCKED) == (playing.square == before)
        seen = pictures.pixels(base64.b64decode(url.removeprefix("data:image/png;base64,")))
        assert np.array_equal(seen, playing.maze.picture(playing.square))


def test_fresh_mazes_are_not_those_that_a_checkpoint_is_chosen_by() -> None:
    assert not set(FRESH) & set(HELD_OUT)
    assert len(FRESH) == len(HELD_OUT) == 64
    assert not {maze(seed).walls for seed in FRESH} & held_out_layouts()
    assert 0 < maze_task.oracle_bound(FRESH, max_turns=15) < 1
    assert maze_task.oracle_bound(FRESH, max_turns=15) < maze_task.oracle_bound(FRESH, max_turns=17)


@few
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_a_picture_survives_png_with_any_filter(rows: int, columns: int, kind: int, seed: int) -> None:
    picture = np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), np.uint8)
    assert np.array_equal(pictures.pixels(pictures.png(picture)), picture)
    assert np.array_equal(pictures.pixels(filtered(picture, kind)), picture)


def filtered(picture: np.ndarray, kind: int) -> bytes:
    """As another PNG writer would write it: each line filtered by the standard's own formula."""
    rows, columns, _ = picture.shape
    flat = picture.reshape(rows, columns * 3).astype(int)
    lines = b""
    for row in range(rows):
        line = []
        for index in range(columns * 3):
            a = flat[row, index - 3] if index >= 3 else 0
            b = flat[row - 1, index] if row else 0
            c = flat[row - 1, index - 3] if row and index >= 3 else 0
            p = a + b - c
            nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line.append((flat[row, index] - (0, a, b, (a + b) // 2, nearest)[kind]) % 256)
        lines += bytes([kind, *line])
    content = pictures.png(picture)
    start = content.index(b"IDAT") - 4
    return content[:start] + pictures._chunk(b"IDAT", zlib.compress(lines)) + pictures._chunk(b"IEND", b"")


@pytest.mark.parametrize("content", [b"", b"GIF89a", pictures._SIGNATURE, pictures.png(np.zeros((2, 2, 3), np.uint8))[:50]])
def test_what_is_no_picture_is_said(content: bytes) -> None:
    with pytest.raises(ValueError):
        pictures.pixels(content)
