from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from local.trainer.policy import observe, pool
from training.maze import HELD_OUT, SIDE, STOP, Maze, held_out_layouts, maze, oracle_bound, training_maze

seeds = st.integers(min_value=0, max_value=2**63)
few = settings(max_examples=25, deadline=None)


@few
@given(seeds)
def test_every_square_is_reached_by_exactly_one_path(seed: int) -> None:
    found = maze(seed)
    squares = set(found.squares())
    assert set(found.distances()) == squares
    links = sum((row, column + 1) in squares for row, column in squares)
    links += sum((row + 1, column) in squares for row, column in squares)
    assert links == len(squares) - 1  # connected and without a circle: a tree, so every path is the only one


@few
@given(seeds)
def test_start_and_goal_are_opposite_corners(seed: int) -> None:
    found = maze(seed)
    assert {found.start[0] + found.goal[0], found.start[1] + found.goal[1]} == {SIDE - 1}
    assert found.distances()[found.start] >= 2 * (SIDE - 3)


@few
@given(seeds)
def test_following_the_oracle_solves_in_the_shortest_path(seed: int) -> None:
    found = maze(seed)
    square, best = found.start, found.oracle()
    for moves in range(SIDE * SIDE):  # noqa: B007
        if best[square] == STOP:
            break
        square = found.move(square, best[square])
    assert square == found.goal
    assert moves == found.distances()[found.start]


@few
@given(seeds)
def test_picture_tells_every_state_apart_and_is_what_the_policy_sees(seed: int) -> None:
    found = maze(seed)
    squares = found.squares()
    pictures = [found.picture(square) for square in squares]
    assert all(picture.shape == (225, 225, 3) and picture.dtype == np.uint8 for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == len(squares)
    pooled = [observe(found, square) for square in squares]
    assert len({array.tobytes() for array in pooled}) == len(squares)
    for picture, array in zip(pictures, pooled, strict=True):
        assert np.array_equal(pool(picture), array)


def _can_solve(found: Maze, turns: int) -> bool:
    """Brute force: some sequence of `turns` words ends with a stop on the goal."""
    reached = {found.start}
    for _ in range(turns - 1):
        reached |= {found.move(square, action) for square, action in product(reached, range(4))}
    return found.goal in reached


@few
@given(st.lists(seeds, min_size=1, max_size=3), st.integers(min_value=1, max_value=30))
def test_oracle_bound_is_what_brute_force_finds(chosen: list[int], turns: int) -> None:
    mazes = [maze(seed) for seed in chosen]
    assert oracle_bound(mazes, max_turns=turns) == sum(_can_solve(found, turns) for found in mazes)


@few
@given(st.integers(0, 2**32 - 1), st.integers(0, 1000), st.integers(0, 1000))
def test_training_mazes_are_never_held_out_ones(seed: int, step: int, prompt: int) -> None:
    found = training_maze(seed, step, prompt)
    assert found == training_maze(seed, step, prompt)
    assert found.walls not in held_out_layouts()


def test_held_out_bound_with_the_turns_of_the_article() -> None:
    held_out = [maze(seed) for seed in HELD_OUT]
    assert oracle_bound(held_out, max_turns=15) == 51
    assert oracle_bound(held_out, max_turns=12) == 0  # the shortest path has 12 moves, and stop is a turn too
