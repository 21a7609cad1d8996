"""Service calls that ministack lacks, answered from the same store that the CloudFormation provider fills."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from local.cloud.store import Cloud
from local.cloud.wire import Operation, Request, Response, ServiceError, name_of, parse, service_of


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
        training_plans,
    )

    return {
        "sagemaker": {**sagemaker.OPERATIONS, **removing.SAGEMAKER, **software.OPERATIONS, **training_plans.OPERATIONS},
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


def answers(request: Request) -> bool:
    """Whether the request is for a service of ours (of EC2 and EKS only the operations that ministack lacks)."""
    service = service_of(request.headers)
    if service in _SHARED:
        return name_of(service, request) in _operations()[service]
    # An unsigned call of the Pod Identity credentials service: the token in its body is what identifies the caller.
    return service in _operations() or request.path.endswith("/assume-role-for-pod-identity")


def handle(cloud: Cloud, request: Request) -> Response:
    """Answer one request. Blocks: call it on a worker thread."""
    service = service_of(request.headers) or "eks-auth"
    try:
        name, parameters = parse(service, request)
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


def _encode(value: object) -> Any:
    """Timestamps travel as seconds since 1970 in these protocols."""
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"{type(value).__name__} cannot be sent")
