"""One maze, played through the endpoint for somebody who watches: pictures, words, moves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from serving import evaluate
from serving.evaluate import Plan
from serving.openai_client import Endpoint, connected
from serving.tasks import Task
from training.maze_task import find_action
from training.results import Played

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.text import Text

    Picture = NDArray[np.uint8]

MOVES: Final = ("right", "up", "left", "down", "stop")
_GAP: Final = 8  # pixels between the pictures of a sheet
_PER_ROW: Final = 5


@dataclass(frozen=True)
class Turn:
    """One turn: the picture that was shown (as it was sent), what the model said, and the move in it ('' where there is none)."""

    number: int
    picture: bytes
    said: str
    move: str


@dataclass(frozen=True)
class Game:
    """A maze that was played to its end."""

    turns: tuple[Turn, ...]
    played: Played
    max_turns: int

    def sentence(self) -> str:
        """For people."""
        ended = {"stop": "stopped", "turns": f"had no turn left of {self.max_turns}", "context": "reached the end of its context"}
        word = "solved" if self.played.solved else "not solved"
        by = f", answered by {' and '.join(self.played.releases)}" if self.played.releases else ""
        return f"maze {self.played.seed}: {word} in {self.played.turns} turns ({ended[self.played.stop_reason]}){by}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        turns = [{"turn": turn.number, "move": turn.move, "said": turn.said} for turn in self.turns]
        return {**self.played.model_dump(mode="json"), "max_turns": self.max_turns, "moves": turns}


def play(endpoint: Endpoint, wanted: Plan, task: Task, *, show: Callable[[Turn], None] = lambda turn: None) -> Game:
    """Play the first maze of a plan; `show` is told each turn as it comes. Raises Refused and Unreachable as the evaluation does."""
    turns: list[Turn] = []

    def seen(message: dict[str, Any], text: str) -> None:
        action = find_action(text)
        turns.append(Turn(len(turns) + 1, picture_of(message), text, MOVES[action] if action is not None else ""))
        show(turns[-1])

    async def work() -> Played:
        async with connected(endpoint, connections=1) as client:
            return await evaluate.play(client, wanted, task, wanted.seeds[0], seen=seen)

    return Game(played=asyncio.run(work()), turns=tuple(turns), max_turns=wanted.max_turns)


def picture_of(message: dict[str, Any]) -> bytes:
    """The bytes of a message's last picture; b'' where there is none."""
    parts = message.get("content")
    urls = [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"] if isinstance(parts, list) else []
    return base64.b64decode(urls[-1].partition(",")[2]) if urls else b""


def drawn(picture: Picture, *, columns: int) -> Text:
    """A picture for a terminal with colours: each character is two pixels, one above the other. `columns` wide at most."""
    from rich.style import Style
    from rich.text import Text

    rows, width = picture.shape[:2]
    across = min(columns, width)
    down = max(2, round(rows * across / width) // 2 * 2)
    small = picture[[row * rows // down + rows // down // 2 for row in range(down)]]
    small = small[:, [column * width // across + width // across // 2 for column in range(across)]]
    text = Text()
    for upper in range(0, down, 2):
        for above, below in zip(small[upper].tolist(), small[upper + 1].tolist(), strict=True):
            text.append("▀", Style(color="#{:02x}{:02x}{:02x}".format(*above), bgcolor="#{:02x}{:02x}{:02x}".format(*below)))
        text.append("\n")
    return text


def sheet(pictures: Sequence[Picture]) -> bytes:
    """One PNG with all pictures of a game, in reading order. Raises ValueError without pictures, or where their sizes differ."""
    import numpy as np

    from training.pictures import png

    if not pictures or len({picture.shape for picture in pictures}) != 1:
        raise ValueError("a sheet is made of pictures of one size")
    height, width = pictures[0].shape[:2]
    across = min(_PER_ROW, len(pictures))
    down = -(-len(pictures) // across)
    made = np.full((down * (height + _GAP) + _GAP, across * (width + _GAP) + _GAP, 3), 128, np.uint8)
    for number, picture in enumerate(pictures):
        row, column = divmod(number, across)
        top, left = _GAP + row * (height + _GAP), _GAP + column * (width + _GAP)
        made[top : top + height, left : left + width] = picture
    return png(made)
