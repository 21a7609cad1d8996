"""The maze: a 9 x 9 grid of squares, its picture, its shortest path.

Own code with the figures of VisGym's `maze_2d/easy` (https://github.com/visgym/VisGym): 4 x 4 cells carved by Wilson's
algorithm, start and goal in opposite corners, a move goes one square, an episode ends when the agent says stop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

CELLS: Final = 4  # cells per side
SIDE: Final = 2 * CELLS + 1  # squares per side: cells and the walls around and between them
PIXELS: Final = 25  # pixels per side of a square
HELD_OUT: Final = range(64)
"""Seeds of the evaluation mazes. No training maze has the layout of one of them."""

MOVES: Final = ((0, 1), (-1, 0), (0, -1), (1, 0))  # 0 right, 1 up, 2 left, 3 down, as (rows, columns)
STOP: Final = 4
Square = tuple[int, int]

_WALL: Final = np.array([30, 30, 30], np.uint8)
_FREE: Final = np.array([240, 240, 240], np.uint8)
_GOAL: Final = np.array([40, 200, 60], np.uint8)
_AGENT: Final = np.array([220, 40, 40], np.uint8)
_MARGIN: Final = 3  # pixels around the agent's mark, so that the square beneath it stays visible


@dataclass(frozen=True)
class Maze:
    """One maze. `walls` holds one byte per square, row by row: 1 is a wall."""

    walls: bytes
    start: Square
    goal: Square

    def free(self, square: Square) -> bool:
        return self.walls[square[0] * SIDE + square[1]] == 0

    def squares(self) -> list[Square]:
        """Free squares in reading order."""
        return [(row, column) for row in range(SIDE) for column in range(SIDE) if self.free((row, column))]

    def move(self, square: Square, action: int) -> Square:
        """The square after a move; a wall leaves the agent where it is."""
        rows, columns = MOVES[action]
        target = (square[0] + rows, square[1] + columns)
        return target if self.free(target) else square

    def distances(self) -> dict[Square, int]:
        """Moves from each free square to the goal, by breadth-first search."""
        found = {self.goal: 0}
        queue = deque([self.goal])
        while queue:
            square = queue.popleft()
            for action in range(len(MOVES)):
                if (near := self.move(square, action)) not in found:
                    found[near] = found[square] + 1
                    queue.append(near)
        return found

    def oracle(self) -> dict[Square, int]:
        """The best action on each free square: towards the goal, and stop on it."""
        distances = self.distances()
        best = {self.goal: STOP}
        for square in self.squares():
            if square != self.goal:
                best[square] = min(range(len(MOVES)), key=lambda action: distances[self.move(square, action)])
        return best

    def picture(self, agent: Square | None) -> NDArray[np.uint8]:
        """The maze as the policy sees it: 225 x 225 x 3, uint8. None leaves the agent out."""
        grid = np.frombuffer(self.walls, np.uint8).reshape(SIDE, SIDE)
        colours = np.where(grid[:, :, None] == 1, _WALL, _FREE)
        colours[self.goal] = _GOAL
        picture = colours.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        if agent is not None:
            top, left = agent[0] * PIXELS, agent[1] * PIXELS
            picture[top : top + PIXELS, left : left + PIXELS] = self.block(agent, agent=True)
        return picture

    def block(self, square: Square, *, agent: bool) -> NDArray[np.uint8]:
        """One square of the picture, 25 x 25 x 3, with or without the agent on it."""
        colour = _GOAL if square == self.goal else _FREE if self.free(square) else _WALL
        block = np.broadcast_to(colour, (PIXELS, PIXELS, 3)).copy()
        if agent:
            block[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = _AGENT
        return block


@lru_cache(maxsize=4096)
def maze(seed: int) -> Maze:
    """The maze of a seed: a uniform spanning tree of the cells by Wilson's algorithm (loop-erased random walks)."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    grid = np.ones((SIDE, SIDE), np.uint8)
    corner = int(rng.integers(4))
    root = (int(rng.integers(CELLS)), int(rng.integers(CELLS)))
    grid[_square(root)] = 0
    inside = {root}
    for index in range(CELLS * CELLS):
        first = divmod(index, CELLS)
        leaving: dict[Square, Square] = {}  # the last exit taken from each cell; later visits erase loops
        cell = first
        while cell not in inside:
            near = [(cell[0] + rows, cell[1] + columns) for rows, columns in MOVES]
            near = [other for other in near if 0 <= other[0] < CELLS and 0 <= other[1] < CELLS]
            leaving[cell] = near[int(rng.integers(len(near)))]
            cell = leaving[cell]
        cell = first
        while cell not in inside:
            inside.add(cell)
            here, there = _square(cell), _square(leaving[cell])
            grid[here] = 0
            grid[(here[0] + there[0]) // 2, (here[1] + there[1]) // 2] = 0
            cell = leaving[cell]
    low, high = 1, SIDE - 2
    corners = ((low, low), (low, high), (high, high), (high, low))
    return Maze(grid.tobytes(), corners[corner], corners[(corner + 2) % 4])


def _square(cell: Square) -> Square:
    return 2 * cell[0] + 1, 2 * cell[1] + 1


@lru_cache(maxsize=1)
def held_out_layouts() -> frozenset[bytes]:
    return frozenset(maze(seed).walls for seed in HELD_OUT)


def training_maze(*words: int) -> Maze:
    """The maze that the words (seed, step, prompt) name; drawn again while its layout is one of the evaluation's."""
    for attempt in range(1000):
        state = np.random.SeedSequence([*words, attempt]).generate_state(2, np.uint64)
        found = maze(int(state[0]) + len(HELD_OUT))
        if found.walls not in held_out_layouts():
            return found
    raise AssertionError("a thousand draws hit the 64 held-out layouts of about a hundred thousand")


def oracle_bound(mazes: Iterable[Maze], *, max_turns: int) -> int:
    """How many of the mazes any policy can solve: the shortest path and one stop must fit into `max_turns`."""
    return sum(maze.distances()[maze.start] + 1 <= max_turns for maze in mazes)
