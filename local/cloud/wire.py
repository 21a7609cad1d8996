"""What travels between a client and the services of ours: requests, answers, errors, and which operation a request is."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from local.cloud.store import Cloud

Answer = dict[str, Any]
Operation = Callable[[Cloud, dict[str, Any]], Answer]


class ServiceError(Exception):
    """An error of an AWS service: its code, its message, the HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


# botocore's name of a service where it differs from the name in the signature.
_MODELS = {"aps": "amp", "servicequotas": "service-quotas", "sso": "sso-admin"}
_SCOPE = re.compile(r"Credential=([^/]+)/\d+/[^/]*/([^/]+)/aws4_request")


def service_of(headers: Mapping[str, str]) -> str | None:
    """The service that a request is signed for; None for an unsigned one."""
    match = _SCOPE.search(headers.get("authorization", ""))
    return match.group(2) if match else None


def access_key_of(headers: Mapping[str, str]) -> str:
    """The access key id that signed a request; empty for an unsigned one."""
    match = _SCOPE.search(headers.get("authorization", ""))
    return match.group(1) if match else ""


def operation(service: str, request: Request) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a call of ours; an empty name where it cannot be understood, which the dispatch then says."""
    try:
        return parse(service, request)
    except (ServiceError, KeyError):
        return "", {}


def parse(service: str, request: Request) -> tuple[str, dict[str, Any]]:
    if service == "ec2":
        parameters = _query_parameters(request)
        return str(parameters["Action"]), parameters
    try:
        body: dict[str, Any] = json.loads(request.body) if request.body else {}
    except ValueError as error:
        raise ServiceError("SerializationException", f"the body is no JSON: {error}") from error
    target = request.headers.get("x-amz-target")
    if target:
        return target.rsplit(".", 1)[-1], body
    for method, pattern, name in _routes(service):
        match = pattern.fullmatch(request.path)
        if method == request.method and match:
            query = {k: v[0] for k, v in urllib.parse.parse_qs(request.query).items()}
            named = {k: urllib.parse.unquote(v) for k, v in match.groupdict().items()}
            return name, {**query, **body, **named}
    raise ServiceError("UnknownOperationException", f"no operation of {service} at {request.method} {request.path}", 404)


def _query_parameters(request: Request) -> dict[str, Any]:
    text = request.body.decode("utf-8", "replace") or request.query
    return {k: v[0] for k, v in urllib.parse.parse_qs(text, keep_blank_values=True).items()}


def name_of(service: str, request: Request) -> str | None:
    """Which operation a request of a shared service is."""
    if service == "ec2":
        return str(_query_parameters(request).get("Action"))
    found = (name for method, pattern, name in _routes(service) if method == request.method and pattern.fullmatch(request.path))
    return next(found, None)


@cache
def _routes(service: str) -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """The HTTP method and path of every operation of a REST-JSON service, from botocore's model of it."""
    import botocore.session

    model = botocore.session.get_session().get_service_model(_MODELS.get(service, service))
    routes = []
    for name in model.operation_names:
        http = model.operation_model(name).http
        path = http["requestUri"].partition("?")[0]
        pattern = re.sub(r"\\\{(\w+)(\\\+)?\\\}", lambda m: f"(?P<{m[1]}>{'.+' if m[2] else '[^/]+'})", re.escape(path))
        routes.append((http["method"], re.compile(pattern + "/?"), name))
    # The more of a path is literal, the earlier it is tried.
    return tuple(sorted(routes, key=lambda r: r[1].pattern.count("(?P")))
