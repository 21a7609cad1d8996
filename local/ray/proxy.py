"""The TLS proxy in front of Ray's dashboards, as HyperPod's Ray Endpoint Operator has one.

`GET /bearer-auth?token=` sets the cookie `ray_session`; with it everything, HTTP and websocket, goes to the dashboard of the
RayCluster that the token was made for. Without it: 401.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import ClientError, ClientSession, ClientTimeout, ClientWebSocketResponse, TCPConnector, WSMsgType, web

from local.ray.sessions import Sessions, Target

COOKIE = "ray_session"
DashboardOf = Callable[[Target], str | None]
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "host")
)


def application(sessions: Sessions, dashboard_of: DashboardOf) -> web.Application:
    """The proxy. `dashboard_of` gives the URL of a RayCluster's dashboard, or None while it does not answer."""

    async def authenticate(request: web.Request) -> web.Response:
        session = sessions.exchange(request.query.get("token", ""))
        if session is None:
            return web.Response(status=401, text="the token is unknown, used or too old")
        response = web.Response(status=302, headers={"Location": "/"})
        response.set_cookie(COOKIE, session, httponly=True, secure=True, samesite="Lax", max_age=int(sessions.session_seconds))
        return response

    async def forward(request: web.Request) -> web.StreamResponse:
        target = sessions.target(request.cookies.get(COOKIE, ""))
        if target is None:
            return web.Response(status=401, text="no session, or it is too old")
        dashboard = await asyncio.to_thread(dashboard_of, target)
        if dashboard is None:
            text = f"the head of RayCluster {target.namespace}/{target.name} does not answer"
            return web.Response(status=503, text=text)
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await _websocket(request, dashboard + request.path_qs)
        return await _http(request, dashboard + request.path_qs)

    async def upstream(app: web.Application) -> AsyncIterator[None]:
        # A job's log can be silent for hours, so there is no limit for a whole answer.
        timeout = ClientTimeout(total=None, sock_connect=10)
        async with ClientSession(timeout=timeout, auto_decompress=False, connector=TCPConnector(limit=0)) as session:
            app[UPSTREAM] = session
            yield

    app = web.Application(client_max_size=2**40)
    app.cleanup_ctx.append(upstream)
    app.router.add_get("/bearer-auth", authenticate)
    app.router.add_route("*", "/{path:.*}", forward)
    return app


UPSTREAM = web.AppKey("upstream", ClientSession)


async def _http(request: web.Request, url: str) -> web.StreamResponse:
    """Bodies pass in pieces both ways: a package may have half a gigabyte."""
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP and name.lower() != "cookie"}
    body = request.content if request.can_read_body else None
    try:
        async with request.app[UPSTREAM].request(request.method, url, data=body, headers=headers, allow_redirects=False) as reply:
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=reply.status, reason=reply.reason, headers=kept)
            await response.prepare(request)
            async for piece in reply.content.iter_chunked(2**16):
                await response.write(piece)
            await response.write_eof()
            return response
    except ClientError as error:
        return web.Response(status=502, text=f"the dashboard did not answer: {type(error).__name__}")


async def _websocket(request: web.Request, url: str) -> web.StreamResponse:
    socket = web.WebSocketResponse(max_msg_size=0)
    try:
        async with request.app[UPSTREAM].ws_connect(url, max_msg_size=0) as dashboard:
            await socket.prepare(request)
            pumps = [asyncio.ensure_future(_pump(dashboard, socket)), asyncio.ensure_future(_pump(socket, dashboard))]
            _, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pending:
                pump.cancel()
            # The dashboard's close code decides whether the client takes the log for complete.
            await socket.close(code=dashboard.close_code or 1011)
    except ClientError as error:
        if not socket.prepared:
            return web.Response(status=502, text=f"the dashboard did not answer: {type(error).__name__}")
    return socket


Socket = web.WebSocketResponse | ClientWebSocketResponse


async def _pump(source: Socket, sink: Socket) -> None:
    with contextlib.suppress(ConnectionError, ClientError):
        async for message in source:
            if message.type == WSMsgType.TEXT:
                await sink.send_str(message.data)
            elif message.type == WSMsgType.BINARY:
                await sink.send_bytes(message.data)
