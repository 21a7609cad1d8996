"""Service Quotas of SageMaker and EC2: https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/

The values are this cloud's own, not those of any account: high enough for the environments that ship, low enough to be hit.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from typing import Any

from local.cloud.store import Cloud, arn
from local.cloud.wire import Answer, Operation, ServiceError

# JSON object of instance type -> quota, for instance {"ml.g7e.12xlarge": 2}; other types have the default.
ENVIRONMENT = "HYPERPOD_RL_QUOTAS"
DEFAULT = 100


def cluster_usage(instance_type: str) -> int:
    """The quota `<type> for cluster usage`."""
    given = json.loads(os.environ.get(ENVIRONMENT) or "{}")
    return int(given.get(instance_type, DEFAULT))


@cache
def _instance_types() -> tuple[str, ...]:
    import botocore.session

    shape = botocore.session.get_session().get_service_model("sagemaker").shape_for("ClusterInstanceType")
    return tuple(sorted(shape.enum))


def _quota(service: str, name: str, value: float, code: str = "") -> Answer:
    code = code or "L-" + hashlib.sha256(name.encode()).hexdigest()[:8].upper()
    return {
        "ServiceCode": service,
        "ServiceName": {"sagemaker": "Amazon SageMaker", "ec2": "Amazon EC2", "vpc": "Amazon VPC"}[service],
        "QuotaArn": arn("servicequotas", f"{service}/{code}"),
        "QuotaCode": code,
        "QuotaName": name,
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _quotas(service: str) -> list[Answer]:
    match service:
        case "sagemaker":
            # Codes of the first three as seen in accounts; those of single types are made up from their names.
            return [
                _quota(service, "Maximum number of instances allowed per SageMaker HyperPod cluster", 100, "L-2CE978FC"),
                _quota(service, "Total number of instances allowed across SageMaker HyperPod clusters", 200, "L-3308CCC7"),
                _quota(service, "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance", 1024, "L-E13DF72A"),
                *[_quota(service, f"{t} for cluster usage", cluster_usage(t)) for t in _instance_types()],
            ]
        case "ec2":
            return [_quota(service, "EC2-VPC Elastic IPs", 5, "L-0263D0A3")]
        case "vpc":
            return [_quota(service, "VPCs per Region", 5, "L-F678F1CE")]
    raise ServiceError("NoSuchResourceException", f"The service code {service} is unknown.")


def list_quotas(cloud: Cloud, given: dict[str, Any]) -> Answer:
    found = _quotas(str(given.get("ServiceCode")))
    size, start = int(given.get("MaxResults", 100)), int(given.get("NextToken") or 0)
    more = {"NextToken": str(start + size)} if start + size < len(found) else {}
    return {"Quotas": found[start : start + size], **more}


def get_quota(cloud: Cloud, given: dict[str, Any]) -> Answer:
    for quota in _quotas(str(given.get("ServiceCode"))):
        if quota["QuotaCode"] == given.get("QuotaCode"):
            return {"Quota": quota}
    raise ServiceError("NoSuchResourceException", f"The quota {given.get('QuotaCode')} is unknown.")


OPERATIONS: dict[str, Operation] = {
    "ListServiceQuotas": list_quotas,
    "ListAWSDefaultServiceQuotas": list_quotas,
    "GetServiceQuota": get_quota,
    "GetAWSDefaultServiceQuota": get_quota,
}
