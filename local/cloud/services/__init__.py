"""Service calls that ministack lacks, answered from the same store that the CloudFormation provider fills."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
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


def _operations() -> Mapping[str, Mapping[str, Operation]]:
    """Signing name -> operation -> what answers it. Imported late: only the daemon needs them."""
    from local.cloud.services import (
        addons,
        ec2,
        fsx,
        identity_center,
        observability,
        pod_identity,
        pricing,
        quotas,
        removing,
        sagemaker,
        software,
    )

    return {
        "sagemaker": {**sagemaker.OPERATIONS, **removing.SAGEMAKER, **software.OPERATIONS},
        "fsx": {**fsx.OPERATIONS, **removing.FSX},
        "aps": {**observability.PROMETHEUS, **removing.PROMETHEUS},
        "grafana": {**observability.GRAFANA, **removing.GRAFANA},
        "servicequotas": quotas.OPERATIONS,
        "pricing": pricing.OPERATIONS,
        "eks-auth": pod_identity.OPERATIONS,
        "ec2": ec2.OPERATIONS,
        "eks": {**addons.OPERATIONS, **removing.EKS_OPERATIONS},
        "sso": identity_center.OPERATIONS,
    }


# Of these ministack answers everything else.
_SHARED = frozenset({"ec2", "eks"})


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


def answers(request: Request) -> bool:
    """Whether the request is for a service of ours (of EC2 and EKS only the operations that ministack lacks)."""
    service = service_of(request.headers)
    if service in _SHARED:
        return _name(service, request) in _operations()[service]
    # An unsigned call of the Pod Identity credentials service: the token in its body is what identifies the caller.
    return service in _operations() or request.path.endswith("/assume-role-for-pod-identity")


def handle(cloud: Cloud, request: Request) -> Response:
    """Answer one request. Blocks: call it on a worker thread."""
    service = service_of(request.headers) or "eks-auth"
    try:
        name, parameters = _parse(service, request)
        operation = _operations()[service].get(name)
        if operation is None:
            raise ServiceError("UnknownOperationException", f"The local cloud does not answer {service}:{name}.")
        answer = operation(cloud, parameters)
    except ServiceError as error:
        body = json.dumps({"__type": error.code, "message": error.message, "Message": error.message}).encode()
        return Response(error.status, body, headers={"x-amzn-errortype": error.code})
    if service == "ec2":
        return Response(200, answer["xml"], "text/xml")
    protocol = "application/x-amz-json-1.1" if "x-amz-target" in request.headers else "application/json"
    return Response(200, json.dumps(answer, default=_encode).encode(), protocol)


def operation(service: str, request: Request) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a call of ours; an empty name where it cannot be understood, which `handle` then says."""
    try:
        return _parse(service, request)
    except (ServiceError, KeyError):
        return "", {}


def _encode(value: object) -> Any:
    """Timestamps travel as seconds since 1970 in these protocols."""
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _parse(service: str, request: Request) -> tuple[str, dict[str, Any]]:
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


def _name(service: str, request: Request) -> str | None:
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
