"""An OpenAI endpoint on this machine: what answers is a function, by default one that sees the maze in the picture and solves it."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from training.maze import CELLS, PIXELS, SIDE, STOP, Maze, maze
from training.maze_task import FRESH
from training.pictures import pixels

Said = str | tuple[int, dict[str, str], Any]
"""What the model says, or (status, headers, body) for an answer of another kind."""


def speak(action: int) -> str:
    text = "('stop', 'stop')" if action == STOP else f"('move', {action})"
    return f"<observation>a maze</observation><action>{text}</action>"


def seen(body: dict[str, Any]) -> tuple[Maze, tuple[int, int]]:
    """The maze and the agent's square, from the last picture of a request alone."""
    url = body["messages"][-1]["content"][-1]["image_url"]["url"]
    picture = pixels(base64.b64decode(url.partition(",")[2]))
    centres = picture[PIXELS // 2 :: PIXELS, PIXELS // 2 :: PIXELS].astype(int)
    corners = picture[::PIXELS, ::PIXELS].astype(int)
    agent = next(map(tuple, np.argwhere((centres[:, :, 0] > 200) & (centres[:, :, 1] < 100)).tolist()))
    goal = next(map(tuple, np.argwhere((corners[:, :, 1] > 150) & (corners[:, :, 0] < 100)).tolist()))
    walls = (corners.max(axis=2) < 100).astype(np.uint8)
    assert walls.shape == (SIDE, SIDE) == (2 * CELLS + 1,) * 2
    return Maze(walls.tobytes(), agent, goal), agent  # type: ignore[return-value,arg-type]


def oracle(body: dict[str, Any]) -> str:
    found, agent = seen(body)
    return speak(found.oracle()[agent])


def solving(seeds: set[int]) -> Callable[[dict[str, Any]], str]:
    """A model that solves these mazes, and stops at once, well-formed, in all others."""
    known = {maze(seed).walls for seed in seeds}
    return lambda body: oracle(body) if seen(body)[0].walls in known else speak(STOP)


@dataclass
class Server:
    """`answer` may be changed while it runs. `bodies` are the requests that came, `busy` the most that were open at once."""

    url: str = ""
    answer: Callable[[dict[str, Any]], Said] = oracle
    models: list[str] = field(default_factory=lambda: ["base"])
    release: str | None = None
    delay: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    open_now: int = 0
    busy: int = 0

    async def handle(self, request: Any) -> Any:
        from aiohttp import web

        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.open_now += 1
        self.busy = max(self.busy, self.open_now)
        try:
            await asyncio.sleep(self.delay)
            said = self.answer(body)
        finally:
            self.open_now -= 1
        if isinstance(said, tuple):
            status, headers, content = said
            if isinstance(content, str):
                return web.Response(status=status, headers=headers, text=content)
            return web.json_response(content, status=status, headers=headers)
        extra = {"X-HyperPod-RL-Release": self.release} if self.release else {}
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "model": body["model"], "choices": [choice]}, headers=extra)


@contextmanager
def serving(**settings: Any) -> Iterator[Server]:
    """A server on a free port of the loopback interface; it ends with the block."""
    from aiohttp import web

    server, ready, loop = Server(**settings), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def listen() -> None:
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{tail:.*}", server.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(listen()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


def base_and_candidate(body: dict[str, Any]) -> str:
    """`base` solves a third of the mazes, `candidate` what can be solved."""
    return oracle(body) if body["model"] == "candidate" else _A_THIRD(body)


_A_THIRD = solving({*range(0, 64, 3), *FRESH[::3]})
