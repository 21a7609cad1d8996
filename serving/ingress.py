"""The thin application in front of Ray Serve LLM's: aliases, canary, API keys. Serve imports `serving.ingress:build`.

Ray caches an adapter for a replica's life, so releases have immutable names and an alias decides at each request which one
answers: a rollback is one write to S3, seen by every request that arrives after it. Delivered through the artifact bucket
(`serving.delivery`), so that AWS's serving image stays as it is: only the standard library, boto3 and ray are imported.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib
import json
import logging
import os
import random
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from serving.routing import ALIAS_HEADER, CANARY, CURRENT, RELEASE_HEADER, Alias, Aliases, Asked, Route, asked, read_alias, rewritten, route

KEYS_VARIABLE: Final = "HYPERPOD_RL_API_KEYS"
"""Environment variable with the API keys, from a Secret: one a line; empty lines and those that begin with # count for nothing."""

FRONT: Final = "front"
APPLICATION: Final = "ray.serve.llm:build_openai_app"
LARGEST_BODY: Final = 64 << 20
_LOG: Final = logging.getLogger("ray.serve")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Fetch = Callable[[], Aliases]


def build(args: dict[str, Any]) -> Any:
    """The Serve application that Ray's builder makes of `args`, with `Front` around its ASGI application.

    Args:
        args: what `build_openai_app` takes, and under `front` ours: `aliases` (S3 folder), `authentication` (none, api-key or
            internal-load-balancer), `application` (the builder, `module:function`).
    """
    from ray.serve import Application

    inner_args = {name: value for name, value in args.items() if name != FRONT}
    settings: Mapping[str, str] = args[FRONT]
    module, _, function = settings.get("application", APPLICATION).partition(":")
    inner = getattr(importlib.import_module(module), function)(inner_args)
    deployment = inner._bound_deployment
    behind: Any = deployment.func_or_class
    with_keys = settings.get("authentication") == "api-key"
    folder = settings["aliases"]

    class Fronted(behind):  # type: ignore[misc]
        """The ingress deployment of the application: Ray takes its `app`, or calls it as an ASGI application, by the way in."""

        @property
        def app(self) -> Any:
            if not hasattr(self, "_front"):
                self._front = Front(super().app, read=Reader(AliasObjects(folder)), keys=api_keys(os.environ) if with_keys else None)
            return self._front

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self.app(scope, receive, send)

    Fronted.__name__, Fronted.__qualname__ = behind.__name__, behind.__qualname__
    return Application(deployment.options(func_or_class=Fronted))


def api_keys(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    """Digests of the keys. Raises RuntimeError where there is none: an endpoint that was to ask for a key does not start without.

    The same where a line holds more than one word: in `alice: 1a2b` the name would be a key.
    """
    # An editor's byte order mark and Windows' line ends are no part of a key.
    lines = [line.strip() for line in environment.get(KEYS_VARIABLE, "").removeprefix("\ufeff").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if wrong := [number for number, line in enumerate(lines, 1) if line in keys and len(line.split()) > 1]:
        raise RuntimeError(f"{KEYS_VARIABLE} holds one API key a line, and line {wrong[0]} of it holds blanks")
    if not keys:
        raise RuntimeError(f"{KEYS_VARIABLE} holds no API key, and this endpoint asks for one")
    return tuple(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() for key in dict.fromkeys(keys))


class AliasObjects:
    """Reads the two alias objects of an S3 folder, with the pod's own credentials. Called in a thread."""

    def __init__(self, folder: str, client: Any = None) -> None:
        parts = urlsplit(folder)
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._client = client
        self._last: dict[str, tuple[str, Alias | None]] = {}

    def __call__(self) -> Aliases:
        return Aliases(self._read(CURRENT), self._read(CANARY))

    def _read(self, name: str) -> Alias | None:
        etag, known = self._last.get(name, ("", None))
        try:
            found = self._s3().get_object(
                Bucket=self._bucket, Key=f"{self._prefix}/{name}.json", **({"IfNoneMatch": etag} if etag else {})
            )  # fmt: skip
            known, etag = self._understood(name, found["Body"].read(), known), str(found["ETag"])
        except Exception as error:
            said = _said(error)
            if said & {"404", "NoSuchKey"}:
                known, etag = None, ""
            elif "403" in said and not etag:
                # S3 says 403 for a missing key to a role that may list below a prefix only.
                return None
            elif "304" not in said:
                raise
        self._last[name] = (etag, known)
        return known

    def _understood(self, name: str, body: bytes, known: Alias | None) -> Alias | None:
        """The alias in an object. Of one that is garbled, what was known before stays, and no canary is no reason to fail `current`."""
        try:
            return read_alias(body)
        except (ValueError, RecursionError) as error:
            if known is None and name != CANARY:
                raise
            _LOG.warning("the alias %s cannot be read, so what was read before stays: %s", name, error)
            return known

    def _s3(self) -> Any:
        if self._client is None:
            import boto3
            from botocore.config import Config

            self._client = boto3.client("s3", config=Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 2}))
        return self._client


def _said(error: Exception) -> set[str]:
    """Status and code of what S3 answered."""
    response: Mapping[str, Mapping[str, Any]] = getattr(error, "response", {})
    status, code = response.get("ResponseMetadata", {}).get("HTTPStatusCode"), response.get("Error", {}).get("Code")
    return {str(status), str(code)}


class Reader:
    """The aliases as they stand when a request arrives: requests share a reading, but never one that began before they came.

    After a reading that failed nobody waits for the next one: S3 takes many seconds to not answer.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._running: asyncio.Future[Aliases] | None = None
        self._next: asyncio.Future[Aliases] | None = None
        self._known: Aliases | None = None
        self._failing = False

    async def __call__(self) -> Aliases:
        """Raises what the reading raised where nothing was ever read; else the last that was known stands in."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
        if self._failing and self._known is not None:
            return self._known
        return await asyncio.shield(self._next)

    async def _after(self, earlier: asyncio.Future[Aliases] | None) -> Aliases:
        if earlier is not None:
            await asyncio.wait([earlier])
        # From here on a newcomer must wait for another reading: the alias may change while this one is under way.
        self._running, self._next = self._next, None
        try:
            self._known = await asyncio.to_thread(self._fetch)
            self._failing = False
        except Exception as error:
            self._failing = True
            if self._known is None:
                raise
            _LOG.warning("the aliases cannot be read, so what was read before stays: %s: %s", type(error).__name__, error)
        return self._known


class Front:
    """ASGI application around another. Whatever is not its business passes through, byte for byte."""

    def __init__(
        self,
        app: App,
        *,
        read: Callable[[], Awaitable[Aliases]],
        keys: tuple[bytes, ...] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`keys`: digests of which a request must present one, or None where nothing is asked for."""
        self._app, self._read, self._keys, self._draw = app, read, keys, draw

    def __getattr__(self, name: str) -> Any:
        # Ray adds exception handlers to the application and reads its routes.
        if name.startswith("__") or name == "_app":
            raise AttributeError(name)
        return getattr(self._app, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {bytes(name).lower(): bytes(value) for name, value in scope["headers"]}
        # A browser asks with OPTIONS whether it may ask, and sends no key with it.
        if self._keys is not None and scope.get("method") != "OPTIONS" and not self._known_key(headers.get(b"authorization", b"")):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            challenge = ((b"www-authenticate", b"Bearer"),)
            await _refuse(send, 401, "Incorrect API key provided, or none", "invalid_api_key", challenge)
            return
        if scope["type"] == "http" and scope["method"] == "POST" and _is_json(headers):
            await self._completion(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _known_key(self, authorization: bytes) -> bool:
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        # All are compared, whichever fits: the time tells nothing.
        fits = [hmac.compare_digest(digest, known) for known in self._keys or ()]
        return scheme.lower() == b"bearer" and any(fits)

    async def _completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _read_body(receive)
        except _Left:
            return  # nobody is there to be answered, and half a request is none
        if body is None:
            await _refuse(send, 413, f"The request is larger than {LARGEST_BODY >> 20} MiB", "request_too_large")
            return
        content = _object(body)
        which = asked(content.get("model")) if content is not None else None
        if content is None or which is None or not which.adapter:
            await self._app(scope, _replay(body, receive), send)
            return
        if which.adapter not in (CURRENT, CANARY):
            # A header is made of it, so what no release can be called gets none.
            known = _PLAIN.fullmatch(which.adapter) is not None
            await self._app(scope, _replay(body, receive), _saying(send, Route(which.adapter, "")) if known else send)
            return
        chosen = await self._choose(which, content.get("user"), send)
        if chosen is None:
            return
        body = rewritten(content, f"{which.base}:{chosen.release}")
        others = [(name, value) for name, value in scope["headers"] if bytes(name).lower() != b"content-length"]
        resized = {**scope, "headers": [*others, (b"content-length", str(len(body)).encode())]}
        await self._app(resized, _replay(body, receive), _saying(send, chosen))

    async def _choose(self, which: Asked, user: object, send: Send) -> Route | None:
        try:
            aliases = await self._read()
        except Exception as error:  # noqa: BLE001 - whatever S3 says, a client gets an answer
            _LOG.warning("the aliases cannot be read: %s: %s", type(error).__name__, error)
            await _refuse(send, 503, f"The alias {which.adapter} cannot be read at the moment", "service_unavailable")
            return None
        found = route(aliases, which.adapter, user=user, draw=self._draw)
        if found is None:
            text = f"The alias {which.adapter} names no release (or the endpoint's role may not read it): hyperpod-rl promote, or alias"
            await _refuse(send, 404, text, "model_not_found")
        return found


def _is_json(headers: Mapping[bytes, bytes]) -> bool:
    encoded = headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b"")
    return not encoded and headers.get(b"content-type", b"").split(b";")[0].strip().lower() in (b"application/json", b"")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class _Left(Exception):
    """The client has gone before its request was whole."""


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None where it is too large. Raises _Left."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _Left
        part = message.get("body", b"")
        size += len(part)
        if size > LARGEST_BODY:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _saying(send: Send, chosen: Route) -> Send:
    """`send` with the headers that name who answers; an unknown adapter's error is nobody's answer."""
    added = [(RELEASE_HEADER.encode(), chosen.release.encode())]
    if chosen.alias:
        added.append((ALIAS_HEADER.encode(), chosen.alias.encode()))

    async def say(message: Message) -> None:
        if message["type"] == "http.response.start" and (chosen.alias or message["status"] < 400):
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return say


async def _refuse(send: Send, status: int, text: str, code: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """An error as OpenAI's API words it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = json.dumps({"error": {"message": text, "type": kind, "code": code}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
