"""ASGI without a server: one call of an application, and what it answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: Any, path: str = "/v1/chat/completions", *, method: str = "POST", body: bytes | Mapping[str, Any] = b"",
    headers: Mapping[str, str] | None = None, pieces: int = 1,
) -> Answer:  # fmt: skip
    """`pieces`: in how many messages the body arrives."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "headers": [(k.encode(), v.encode()) for k, v in sent.items()]
    }  # fmt: skip
    step = max(1, -(-len(data) // pieces))
    parts = [data[low : low + step] for low in range(0, len(data), step)] or [b""]
    found = Answer()

    async def receive() -> dict[str, Any]:
        part = parts.pop(0) if parts else None
        return {"type": "http.disconnect"} if part is None else {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]
            found.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            found.body += message.get("body", b"")

    await app(scope, receive, send)
    return found
