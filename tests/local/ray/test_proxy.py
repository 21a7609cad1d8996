"""Tokens, sessions and the TLS proxy, before a dashboard of the test's own."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession, CookieJar, TCPConnector, WSMsgType, web

from local.kubernetes import certificates
from local.kubernetes.server import listen
from local.ray import proxy
from local.ray.processes import free_port
from local.ray.sessions import Sessions, Target

HERE = Target("demo", "training", "skyrl-visgym")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_good_once_and_for_a_while() -> None:
    clock = Clock()
    sessions = Sessions(token_seconds=900, session_seconds=3600, clock=clock)
    first, late = sessions.token(HERE), sessions.token(HERE)
    assert first != late
    session = sessions.exchange(first)
    assert session is not None
    assert sessions.target(session) == HERE
    assert sessions.exchange(first) is None
    clock.now = 901
    assert sessions.exchange(late) is None
    assert sessions.target(session) == HERE
    clock.now = 3601
    assert sessions.target(session) is None
    assert sessions.target("made up") is None
    assert sessions.exchange("") is None


async def dashboard(port: int) -> web.AppRunner:
    async def upload(request: web.Request) -> web.Response:
        digest, size = hashlib.sha256(), 0
        async for piece in request.content.iter_chunked(2**16):
            digest.update(piece)
            size += len(piece)
        return web.json_response({"sha256": digest.hexdigest(), "size": size, "cookie": request.headers.get("Cookie")})

    async def tail(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for line in ("one", "two"):
            await socket.send_str(line)
        await socket.close(code=1000)
        return socket

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path_qs})

    app = web.Application(client_max_size=2**40)
    app.router.add_put("/api/packages/x.zip", upload)
    app.router.add_get("/api/jobs/a1/logs/tail", tail)
    app.router.add_get("/api/{rest:.*}", version)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner


def through_proxy(tmp_path: Path, work: Callable[[ClientSession, str, Sessions, Clock], Awaitable[None]], *, alive: bool = True) -> None:
    async def run() -> None:
        files = certificates.make(tmp_path)
        clock = Clock()
        sessions = Sessions(clock=clock)
        behind, port = free_port("127.0.0.1"), free_port("127.0.0.1")
        app = proxy.application(sessions, lambda target: f"http://127.0.0.1:{behind}" if alive and target == HERE else None)
        runners = [await dashboard(behind), await listen(app, port, files)]
        trust = ssl.create_default_context(cafile=files.authority)
        try:
            async with ClientSession(connector=TCPConnector(ssl=trust), cookie_jar=CookieJar(unsafe=True)) as client:
                await work(client, f"https://127.0.0.1:{port}", sessions, clock)
        finally:
            for runner in runners:
                await runner.cleanup()

    asyncio.run(run())


def test_the_way_of_the_toolkit(tmp_path: Path) -> None:
    async def work(client: ClientSession, url: str, sessions: Sessions, clock: Clock) -> None:
        async with client.get(f"{url}/api/version") as reply:
            assert reply.status == 401
        async with client.get(f"{url}/bearer-auth", params={"token": "wrong"}, allow_redirects=False) as reply:
            assert reply.status == 401
        token = sessions.token(HERE)
        async with client.get(f"{url}/bearer-auth", params={"token": token}, allow_redirects=False) as reply:
            assert reply.status == 302
            cookie = reply.headers["Set-Cookie"]
        assert cookie.startswith("ray_session=")
        assert "HttpOnly" in cookie
        assert "Secure" in cookie
        async with client.get(f"{url}/api/version?a=b%20c") as reply:
            assert (reply.status, await reply.json()) == (200, {"path": "/api/version?a=b%20c"})
        async with client.ws_connect(f"{url}/api/jobs/a1/logs/tail") as socket:
            lines = [message.data async for message in socket if message.type == WSMsgType.TEXT]
        assert (lines, socket.close_code) == (["one", "two"], 1000)
        clock.now = 6 * 3600 + 1
        async with client.get(f"{url}/api/version") as reply:
            assert reply.status == 401

    through_proxy(tmp_path, work)


def test_a_large_package_passes_in_pieces(tmp_path: Path) -> None:
    piece = b"x" * 2**20

    async def body() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield piece

    async def work(client: ClientSession, url: str, sessions: Sessions, clock: Clock) -> None:
        await client.get(f"{url}/bearer-auth", params={"token": sessions.token(HERE)}, allow_redirects=False)
        async with client.put(f"{url}/api/packages/x.zip", data=body()) as reply:
            got = await reply.json()
        assert got == {"sha256": hashlib.sha256(piece * 40).hexdigest(), "size": 40 * 2**20, "cookie": None}

    through_proxy(tmp_path, work)


@pytest.mark.parametrize("path", ["/api/version", "/api/jobs/a1/logs/tail"])
def test_a_head_that_does_not_answer(tmp_path: Path, path: str) -> None:
    async def work(client: ClientSession, url: str, sessions: Sessions, clock: Clock) -> None:
        await client.get(f"{url}/bearer-auth", params={"token": sessions.token(HERE)}, allow_redirects=False)
        async with client.get(url + path) as reply:
            assert reply.status == 503
            assert "training/skyrl-visgym does not answer" in await reply.text()

    through_proxy(tmp_path, work, alive=False)


def test_a_session_leads_to_its_own_cluster_only(tmp_path: Path) -> None:
    async def work(client: ClientSession, url: str, sessions: Sessions, clock: Clock) -> None:
        other = sessions.token(Target("demo", "training", "other"))
        await client.get(f"{url}/bearer-auth", params={"token": other}, allow_redirects=False)
        async with client.get(f"{url}/api/version") as reply:
            assert reply.status == 503

    through_proxy(tmp_path, work)
