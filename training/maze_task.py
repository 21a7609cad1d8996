"""The maze as a conversation: prompt, actions in text, feedback, reward. What the trainer's rollouts and an evaluation agree on.

The contract is that of SkyRL's VisGym example (examples/train/visgym/env_sft.py): an utterance carries one action, one that cannot
be parsed costs a turn, the reward comes with the last turn and is `0.8 * solved + 0.2 * share of well-formed turns`.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any, Final

from training.maze import HELD_OUT, MOVES, STOP, Maze, Square, maze
from training.pictures import png

TASK_SHARE: Final = 0.8
FORMAT_SHARE: Final = 0.2
FRESH: Final = range(1_000_000, 1_000_064)
"""Seeds of a second set of evaluation mazes: no checkpoint is chosen by them, so they show how much choosing has flattered it."""

Message = dict[str, Any]

_STRICT: Final = re.compile(r"<observation>[^<]*</observation><action>\('(move', [0-3]|stop', 'stop')\)</action>")
_TAGS: Final = tuple(re.compile(rf"<{tag}>(.*?)</{tag}>", re.DOTALL) for tag in ("observation", "action"))
_TUPLE: Final = re.compile(r"""\(\s*(['"])(?:(move)\1\s*,\s*([0-3])|stop\1\s*,\s*(['"])stop\4)\s*\)""")

PROMPT: Final = """\
You are navigating a 9x9 maze. Walls are black and paths are white. You are the red square, and your goal is the green square.

Available actions:
1. 'move': go one square. Format: ('move', direction), where direction is 0=right, 1=up, 2=left, 3=down
2. 'stop': end the episode. Format: ('stop', 'stop')

You succeed if you stop on the green square. Say what you see, then exactly one action:
<observation>what you see</observation><action>('move', 0)</action>"""
MOVED: Final = "Action executed successfully."
BLOCKED: Final = "Cannot move into a wall."
UNPARSED: Final = "Action parsing failed. Respond with exactly one action, e.g. ('move', 0) or ('stop', 'stop')."


def reward(*, solved: bool, well_formed: int, turns: int) -> float:
    """The terminal reward of an episode."""
    return TASK_SHARE * solved + FORMAT_SHARE * (well_formed / turns)


def parse_action(text: str) -> int | None:
    """The action in an utterance of the very form that the stand-in speaks, or None when it is not well-formed."""
    match = _STRICT.fullmatch(text)
    if match is None:
        return None
    return STOP if match[1].startswith("stop") else int(match[1][-1])


def find_action(text: str) -> int | None:
    """The first action anywhere in what a model said, or None."""
    match = _TUPLE.search(text)
    if match is None:
        return None
    return int(match[3]) if match[2] else STOP


def well_formed(text: str) -> bool:
    """Whether observation and action are there, each in its tags and not empty."""
    return all((match := pattern.search(text)) is not None and match[1].strip() for pattern in _TAGS)


def message(text: str, picture: bytes) -> Message:
    """A user's message with a PNG, as OpenAI's chat API takes it."""
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]}


@dataclass
class Episode:
    """One maze being played. `done` after `max_turns` utterances or a stop; `solved` when the stop was on the goal."""

    maze: Maze
    max_turns: int
    square: Square = field(init=False)
    turns: int = 0
    formed: int = 0
    stopped: bool = False

    def __post_init__(self) -> None:
        self.square = self.maze.start

    @property
    def solved(self) -> bool:
        return self.stopped and self.square == self.maze.goal

    @property
    def done(self) -> bool:
        return self.stopped or self.turns >= self.max_turns

    @property
    def reward(self) -> float:
        """The terminal reward; 0 before the first turn."""
        return reward(solved=self.solved, well_formed=self.formed, turns=self.turns) if self.turns else 0.0

    def picture(self) -> bytes:
        """The maze with the agent where it stands, as PNG."""
        return png(self.maze.picture(self.square))

    def begin(self) -> Message:
        """The first message: the task and the picture."""
        return message(PROMPT, self.picture())

    def step(self, text: str) -> Message | None:
        """Take what the model said; the next message, or None when the episode is over."""
        if self.done:
            raise ValueError("the episode is over")
        self.turns += 1
        self.formed += well_formed(text)
        action, feedback = find_action(text), UNPARSED
        if action == STOP:
            self.stopped = True
        elif action is not None:
            assert action < len(MOVES)
            target = self.maze.move(self.square, action)
            feedback = BLOCKED if target == self.square else MOVED
            self.square = target
        return None if self.done else message(feedback, self.picture())


def episode(seed: int, *, max_turns: int) -> Episode:
    """A new episode in the maze of a seed."""
    return Episode(maze(seed), max_turns)


def oracle_bound(seeds: range | tuple[int, ...], *, max_turns: int) -> float:
    """The best solve rate that any policy can reach over these mazes."""
    from training.maze import oracle_bound as solvable

    return solvable((maze(seed) for seed in seeds), max_turns=max_turns) / len(seeds)


SETS: Final = {"held-out": HELD_OUT, "fresh": FRESH}
