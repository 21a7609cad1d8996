"""What `ray.serve.llm:build_openai_app` is to the GPU image: a Ray Serve application with OpenAI's chat API.

Takes the same arguments (`llm_configs`), serves `/v1/models` and `/v1/chat/completions`. A model is `<base>` or
`<base>:<adapter>`. Not served: other endpoints, tools, log probabilities, several choices; these are answered with 400 or 404.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from local.serving.policy import Adapters, Rejected, base_weights, picture, say
from serving.ingress import Receive, Scope, Send

_DATA: Final = "data:"
_NOT_SERVED: Final = ("tools", "functions", "logprobs", "top_logprobs", "response_format", "logit_bias")


def build_openai_app(args: dict[str, Any]) -> Any:
    """One deployment that answers for the one model of `llm_configs`. Raises ValueError for more than one."""
    from ray import serve

    configs = args["llm_configs"]
    if len(configs) != 1:
        raise ValueError(f"the stand-in serves one model, not {len(configs)}")
    config = configs[0]
    given = config.get("deployment_config") or {}
    options = {name: given[name] for name in ("num_replicas", "max_ongoing_requests", "graceful_shutdown_timeout_s") if name in given}
    # One GPU a replica, as vLLM takes it; processors are this machine's own and are not reserved.
    made: Any = serve.deployment(name="LLMServer", ray_actor_options={"num_cpus": 0, "num_gpus": 1}, **options)
    served = made(serve.ingress()(StandIn))
    return served.bind(config)


class StandIn:
    """A replica. Ray asks it for its ASGI application when it starts."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        loading, lora = config["model_loading_config"], config["lora_config"]
        base = base_weights(str(loading["model_source"]))
        rank = int(config["engine_kwargs"]["max_lora_rank"])
        self.api = Api(str(loading["model_id"]), Adapters(str(lora["dynamic_lora_loading_path"]), base, rank), config["engine_kwargs"])

    def __serve_build_asgi_app__(self) -> Api:
        return self.api


class Api:
    """The ASGI application."""

    def __init__(self, model: str, adapters: Adapters, engine: Mapping[str, Any]) -> None:
        self.model, self.adapters = model, adapters
        self.images = int((engine.get("limit_mm_per_prompt") or {}).get("image", 1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            await self._answer(scope, receive, send)
        except Rejected as rejected:
            kind = "InvalidModel" if rejected.status == 404 else "invalid_request_error"
            await _json(send, {"error": {"message": str(rejected), "type": kind, "code": rejected.status}}, status=rejected.status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        if scope["method"] == "GET" and path == "/v1/models":
            names = await asyncio.to_thread(self.adapters.names)
            await _json(send, {"object": "list", "data": [self._card(""), *(self._card(name) for name in names)]})
        elif scope["method"] == "GET" and path.startswith("/v1/models/"):
            adapter = self._adapter(path.removeprefix("/v1/models/"))
            if adapter and adapter not in await asyncio.to_thread(self.adapters.names):
                raise Rejected(404, f"there is no model {path.removeprefix('/v1/models/')}")
            await _json(send, self._card(adapter))
        elif scope["method"] == "POST" and path == "/v1/chat/completions":
            await self._chat(await _body(receive), send)
        else:
            raise Rejected(404, f"{scope['method']} {path} is not served")

    def _card(self, adapter: str) -> dict[str, Any]:
        name = f"{self.model}:{adapter}" if adapter else self.model
        return {"id": name, "object": "model", "created": 0, "owned_by": "hyperpod-rl stand-in"}

    def _adapter(self, model: object) -> str:
        base, _, adapter = str(model).partition(":")
        if base != self.model:
            raise Rejected(404, f'Could not find base model with ID "{base}".')
        return adapter

    async def _chat(self, request: Mapping[str, Any], send: Send) -> None:
        unserved = [name for name in _NOT_SERVED if request.get(name)]
        if unserved or request.get("n", 1) != 1:
            raise Rejected(400, f"the stand-in does not serve {', '.join(unserved) or 'several choices'}")
        adapter = self._adapter(request.get("model"))
        images = _images(request.get("messages"))
        if not images:
            raise Rejected(400, "the stand-in's policy sees pictures only, and there is none in messages")
        if len(images) > self.images:
            raise Rejected(400, f"At most {self.images} image(s) may be provided in one prompt.")
        temperature, seed = _temperature(request.get("temperature", 1.0)), request.get("seed")
        text = await asyncio.to_thread(self._say, adapter, images[-1], temperature, seed if isinstance(seed, int) else None)
        usage = {"prompt_tokens": 81 * len(images), "completion_tokens": 1, "total_tokens": 81 * len(images) + 1}
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request["model"]}
        if not request.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}
            await _json(send, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        pieces = [({"role": "assistant", "content": text}, None), ({}, "stop")]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for delta, reason in pieces:
            chunk = {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            await send({"type": "http.response.body", "body": f"data: {json.dumps(chunk)}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def _say(self, adapter: str, image: bytes, temperature: float, seed: int | None) -> str:
        return say(self.adapters.weights(adapter), picture(image), temperature=temperature, seed=seed)


def _temperature(value: object) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise Rejected(400, f"temperature: {value!r} is no number of at least 0")
    return float(value)


def _images(messages: object) -> list[bytes]:
    """Every picture of a conversation, in order. Raises Rejected for what is no data URL: nothing is fetched."""
    if not isinstance(messages, list) or not messages:
        raise Rejected(400, "messages: a list of messages is needed")
    contents = [message.get("content") if isinstance(message, dict) else None for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    images = [part.get("image_url") for part in parts if part.get("type") == "image_url"]
    return [_decoded(str(image.get("url", "") if isinstance(image, dict) else image)) for image in images]


def _decoded(url: str) -> bytes:
    head, _, data = url.partition(",")
    if not head.startswith(_DATA) or not head.endswith(";base64"):
        raise Rejected(400, "image_url: the stand-in takes data URLs in base64 only")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Rejected(400, "image_url: this is not base64") from error


async def _body(receive: Receive) -> dict[str, Any]:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    try:
        found = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise Rejected(400, "the body is not JSON") from error
    if not isinstance(found, dict):
        raise Rejected(400, "the body is no JSON object")
    return found


async def _json(send: Send, content: Mapping[str, Any], *, status: int = 200) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
