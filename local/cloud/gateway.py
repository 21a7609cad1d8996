"""The HTTP front door: our services and the admin routes, everything else goes to ministack."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from local.cloud import WAITS, accounts, apiserver, dispatch, faults, iam, inventory, ministack
from local.cloud.services import grafana_http, pod_identity
from local.cloud.store import Cloud
from local.cloud.wire import Request, Response, ServiceError, access_key_of, service_of

log = logging.getLogger("local.cloud")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ADMIN = "/_hyperpod-rl/"


def gateway(cloud: Cloud, beyond: Application) -> Application:
    """An ASGI application in front of another one."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await beyond(scope, receive, send)
            return
        # The loopback interface stands for TLS: a bucket's policy that refuses everything else is enforced.
        scope["headers"] = [*scope.get("headers", ()), (b"x-forwarded-proto", b"https")]
        request = _head(scope)
        accounts.set_by(access_key_of(request.headers))
        service = service_of(request.headers)
        if service == "cloudformation":
            body = await _body(receive)
            await _hold(body, request.headers)
            await beyond(scope, _again(body, receive), send)
            return
        ours = request.path.startswith(ADMIN) or request.path == pod_identity.CREDENTIALS_PATH
        if not ours and service not in _OWN and not request.path.endswith("/assume-role-for-pod-identity"):
            await beyond(scope, receive, send)
            return
        body = await _body(receive)
        request = Request(request.method, request.path, request.query, request.headers, body)
        if not ours and not dispatch.answers(request):
            await beyond(scope, _again(body, receive), send)
            return
        try:
            response = await asyncio.to_thread(_answer, cloud, request)
        except Exception as error:
            log.exception("%s %s", request.method, request.path)
            response = Response(500, json.dumps({"__type": "InternalFailure", "message": str(error)}).encode())
        await _send(send, response)

    return app


# The CDK CLI asks for a stack's status, and while it is in progress waits five seconds before it asks again: holding its
# answer until the operation is over (or this long) saves those seconds for each stack. Everybody else hears at once that it
# is in progress, unless its user agent says that it waits. A delete waits for the create or update that runs, which AWS would
# cancel: ministack would run both side by side, and leave what the create makes last.
HOLD_SECONDS = {"DescribeStacks": 10.0, "DeleteStack": 50.0}
HELD = ("aws-cdk/", WAITS)


async def _hold(body: bytes, headers: Mapping[str, str]) -> None:
    given = urllib.parse.parse_qs(body.decode("utf-8", "replace"))
    action = given.get("Action", [""])[0]
    seconds = HOLD_SECONDS.get(action, 0.0)
    if "StackName" not in given or (action == "DescribeStacks" and not any(name in headers.get("user-agent", "") for name in HELD)):
        return
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline and ministack.stack_in_progress(given["StackName"][0]):
        await asyncio.sleep(0.05)


_OWN = frozenset({"sagemaker", "fsx", "aps", "grafana", "servicequotas", "pricing", "eks-auth", "ec2", "eks", "sso"})


def _answer(cloud: Cloud, request: Request) -> Response:
    if request.path.startswith(grafana_http.PREFIX):
        return grafana_http.answer(cloud, request)
    if request.path.startswith(ADMIN):
        return _admin(cloud, request)
    if request.path == pod_identity.CREDENTIALS_PATH:
        try:
            return _json(pod_identity.agent(cloud, request.headers.get("authorization", "")))
        except ServiceError as error:
            return _json({"code": error.code, "message": error.message}, error.status)
    return iam.refusal(request) or dispatch.handle(cloud, request)


def _admin(cloud: Cloud, request: Request) -> Response:
    match request.method, request.path.removeprefix(ADMIN):
        case "GET", "health":
            ready = cloud.clusters is None or cloud.kubernetes_endpoint is not None
            return _json({"status": "ok" if ready else "the Kubernetes endpoint is starting"}, 200 if ready else 503)
        case "POST", route if route.startswith(apiserver.REVIEWS):
            return _json(apiserver.token_review(cloud, route.removeprefix(apiserver.REVIEWS), request.body))
        case "GET", "inventory":
            return _json(inventory.inventory(cloud))
        case "GET", "faults":
            return _json(cloud.faults.listed())
        case "POST", "faults":
            try:
                cloud.faults.set(faults.parse(request.body.decode()))
            except faults.InvalidFault as error:
                return _json({"error": str(error)}, 400)
            return _json(cloud.faults.listed())
        case "DELETE", "faults":
            cloud.faults.clear()
            return _json([])
    return _json({"error": f"no route {request.method} {request.path}"}, 404)


def _json(value: object, status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode())


def _head(scope: Scope) -> Request:
    headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope.get("headers", [])}
    raw = scope.get("raw_path") or scope["path"].encode()
    return Request(scope["method"], raw.decode("latin-1").partition("?")[0], scope.get("query_string", b"").decode("latin-1"), headers)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """The same body once more, for the application behind."""
    sent = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _send(send: Send, response: Response) -> None:
    headers = {"content-type": response.content_type, "content-length": str(len(response.body)), **response.headers}
    encoded = [(k.encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body})
