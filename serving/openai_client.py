"""OpenAI's chat API, as much of it as an evaluation needs: retries for what passes, a sentence for what does not.

https://platform.openai.com/docs/api-reference/chat. Any server that speaks it will do: Ray Serve LLM, vLLM, a hosted model.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from config.problems import Problem, Refused, Unreachable, without_password
from training.deployed import is_loopback

if TYPE_CHECKING:
    import aiohttp

KEY_VARIABLE: Final = "OPENAI_API_KEY"
RELEASE_HEADER: Final = "x-hyperpod-rl-release"
_AGAIN: Final = (408, 409, 425, 429, 500, 502, 503, 504)
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")  # what the ingress puts into the header; it is shown, and kept
LONGEST_PAUSE: Final = 30.0
_TOO_LONG: Final = ("context length", "max_model_len", "maximum model length", "too long", "at most", "prompt is too")

Message = Mapping[str, Any]


class TooLong(Exception):
    """The conversation no longer fits the model: the episode ends here, as it does in training."""


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask. `tries` counts the first one; seconds for one request."""

    url: str
    model: str
    key_variable: str = KEY_VARIABLE
    tries: int = 6
    timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        found = []
        try:
            split = urlsplit(self.url)
            sound = split.scheme in ("http", "https") and bool(split.hostname) and (split.port is None or split.port > 0)
        except ValueError:  # brackets that do not close, a port that is none
            sound = False
        if not sound or not self.url.isprintable() or " " in self.url:
            found.append(Problem("--endpoint", self.url, "this is no URL of an endpoint", "for example http://127.0.0.1:8000"))
        elif split.query or split.fragment:
            found.append(Problem("--endpoint", self.url, "an endpoint's URL has no ? and no #", "for example http://127.0.0.1:8000/v1"))
        if not self.model.strip() or not self.model.isprintable():
            rule = "a model's name is text, and not empty"
            found.append(Problem("--model", self.model, rule, "name it as the endpoint's /v1/models does"))
        if found:
            raise Refused(found)

    @property
    def base(self) -> str:
        """The URL with `/v1` at its end."""
        root = self.url.rstrip("/")
        return root if root.endswith("/v1") else f"{root}/v1"

    @property
    def shown(self) -> str:
        """The URL as it may be written down."""
        return without_password(self.url)


@dataclass(frozen=True)
class Answer:
    """What the model said, how long that took in seconds, and which release said it where the endpoint tells."""

    text: str
    seconds: float
    release: str | None = None


@dataclass
class Client:
    """One evaluation's connection. Open it with `connected`."""

    endpoint: Endpoint
    session: aiohttp.ClientSession
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    seconds: list[float] = field(default_factory=list)
    retries: int = 0

    async def models(self) -> list[str]:
        """Ids that the endpoint lists. Raises Unreachable, Refused."""
        found, _, _ = await self._asked("GET", "models", None)
        listed = found.get("data", [])
        if not isinstance(listed, list):
            raise Unreachable(f"{self.endpoint.shown} answered something that is no list of models: {str(found)[:200]}")
        return [str(item.get("id")) for item in listed if isinstance(item, dict)]

    async def chat(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, user: str) -> Answer:
        """One answer. Raises TooLong, Refused where the endpoint refuses for good, Unreachable where it does not answer."""
        body = {
            "model": self.endpoint.model, "messages": list(messages), "temperature": temperature, "max_tokens": max_tokens, "user": user,
        }  # fmt: skip
        found, headers, seconds = await self._asked("POST", "chat/completions", body)
        try:
            text = _text(found["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError):
            raise Unreachable(f"{self.endpoint.shown} answered something that is no chat completion: {str(found)[:200]}") from None
        self.seconds.append(seconds)
        release = headers.get(RELEASE_HEADER, "")
        return Answer(text, seconds, release if _PLAIN.fullmatch(release) else None)

    async def _asked(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[dict[str, Any], Mapping[str, str], float]:
        import aiohttp

        said = ""
        for number in range(self.endpoint.tries):
            pause = min(LONGEST_PAUSE, 0.5 * 2**number) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, guards nothing
            began = time.perf_counter()
            try:
                async with self.session.request(method, f"{self.endpoint.base}/{path}", json=body) as response:
                    raw = await response.read()
                    seconds = time.perf_counter() - began
                    if response.status == 200:
                        return await self._json(response, raw), {k.lower(): v for k, v in response.headers.items()}, seconds
                    said = f"status {response.status}: {_message(raw)}"
                    if response.status not in _AGAIN:
                        self._refused(response.status, _message(raw))
                    told = _retry_after(response.headers.get("Retry-After"))
                    pause = pause if told is None else told
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                said = str(error) or type(error).__name__
            if number + 1 < self.endpoint.tries:
                self.retries += 1
                await self.sleep(pause)
        raise Unreachable(f"{self.endpoint.shown} did not answer in {self.endpoint.tries} tries; the last one: {without_password(said)}")

    async def _json(self, response: aiohttp.ClientResponse, raw: bytes) -> dict[str, Any]:
        import json

        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Unreachable(f"{self.endpoint.shown} is no OpenAI endpoint: {response.url.path} answers {raw[:80]!r}")
        return found

    def _refused(self, status: int, said: str) -> None:
        shown, model = self.endpoint.shown, self.endpoint.model
        if status in (400, 413, 422) and any(words in said.lower() for words in _TOO_LONG):
            raise TooLong(said)
        if status in (401, 403):
            fix = f"put the key into ${self.endpoint.key_variable}"
            raise Refused(Problem("--endpoint", shown, f"it asks for an API key that it knows ({status}: {said})", fix))
        if status == 404:
            raise Refused(Problem("--model", model, f"{shown} does not serve it ({said})", "its /v1/models lists what it serves"))
        raise Refused(Problem("--endpoint", shown, f"it refuses the request with status {status}: {said}"))


class connected:
    """Opens a client: `async with connected(endpoint, connections=16) as client`."""

    def __init__(self, endpoint: Endpoint, *, connections: int) -> None:
        self.endpoint, self.connections = endpoint, connections

    async def __aenter__(self) -> Client:
        import aiohttp

        key = os.environ.get(self.endpoint.key_variable, "").strip()  # a file's last line break comes along easily
        if any(ord(character) < 32 or ord(character) == 127 for character in key):
            rule = "it holds control characters, which no HTTP header carries"
            raise Refused(Problem(f"${self.endpoint.key_variable}", "", rule, "set it to one API key"))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.connections), headers=headers,
            trust_env=not is_loopback(self.endpoint.url),  # a proxy does not reach this machine's own ports
            timeout=aiohttp.ClientTimeout(total=self.endpoint.timeout_seconds, sock_connect=10),
        )  # fmt: skip
        return Client(self.endpoint, self.session)

    async def __aexit__(self, *error: object) -> None:
        await self.session.close()


def _text(content: object) -> str:
    """What was said: a text, or the texts among several parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def _retry_after(value: str | None) -> float | None:
    try:
        return min(LONGEST_PAUSE, max(0.0, float(value))) if value else None
    except ValueError:
        return None


def _message(raw: bytes) -> str:
    import json

    try:
        found = json.loads(raw)
        error = found.get("error", found)
        said = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        said = raw.decode("utf-8", "replace")
    return " ".join(str(said).split())[:200].rstrip(".") or "no reason given"
