"""SageMaker's training plans: capacity that is paid for in advance, of one type in one zone, for a time.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingPlan.html and its neighbours. Every search finds one offering,
and a plan is active as soon as it is bought.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from local.cloud import accounts, nodes
from local.cloud.attributes import drawn
from local.cloud.store import Cloud, arn
from local.cloud.wire import Answer, Operation, ServiceError

HOUR = 3600.0
# Where the nodes of the environments that ship live.
ZONE = "usw2-az2"


@dataclass(frozen=True)
class Plan:
    """An offering, and a plan once somebody bought it. Times in seconds since 1970."""

    instance_type: str
    count: int
    hours: int
    targets: tuple[str, ...]
    account: str = ""
    name: str = ""
    begins: float = 0.0

    @property
    def arn(self) -> str:
        """ARN of the plan."""
        return arn("sagemaker", f"training-plan/{self.name}")


def plan(cloud: Cloud, name_or_arn: str) -> Plan | None:
    """The account's plan of this name or ARN."""
    found: Plan | None = cloud.plans.get((accounts.current(), name_or_arn.rsplit("/", 1)[-1]))
    return found


def in_use(cloud: Cloud, wanted: str, *, but: str = "") -> int:
    """Instances that HyperPod clusters take of a plan, by its ARN; those of the cluster `but` (its Ref value) left out."""
    return sum(
        int(group.get("InstanceCount", 0))
        for resource in cloud.store.all(nodes.HYPERPOD) if resource.id != but
        for group in resource.properties.get("InstanceGroups", []) if group.get("TrainingPlanArn") == wanted
    )  # fmt: skip


def search_offerings(cloud: Cloud, given: dict[str, Any]) -> Answer:
    targets = tuple(given.get("TargetResources") or ("hyperpod-cluster",))
    offered = Plan(str(given["InstanceType"]), int(given.get("InstanceCount", 1)), int(given.get("DurationHours", 24)), targets)
    identifier = f"tpo-{drawn('hex', 16)}"
    cloud.offerings[identifier] = offered
    capacity = {"InstanceType": offered.instance_type, "InstanceCount": offered.count, "AvailabilityZoneId": ZONE,
                "DurationHours": offered.hours}  # fmt: skip
    offering = {"TrainingPlanOfferingId": identifier, "TargetResources": list(targets), "DurationHours": offered.hours,
                "UpfrontFee": "0.0", "CurrencyCode": "USD", "ReservedCapacityOfferings": [capacity]}  # fmt: skip
    return {"TrainingPlanOfferings": [offering]}


def create(cloud: Cloud, given: dict[str, Any]) -> Answer:
    offered = cloud.offerings.get(str(given.get("TrainingPlanOfferingId")))
    if offered is None:
        raise ServiceError("ResourceNotFound", f"Training plan offering {given.get('TrainingPlanOfferingId')} does not exist.")
    name = str(given["TrainingPlanName"])
    if plan(cloud, name) is not None:
        raise ServiceError("ResourceInUse", f"Training plan {name} already exists.")
    account = accounts.current()
    made = Plan(offered.instance_type, offered.count, offered.hours, offered.targets, account, name, time.time())
    cloud.plans[account, name] = made
    return {"TrainingPlanArn": made.arn}


def describe(cloud: Cloud, given: dict[str, Any]) -> Answer:
    found = plan(cloud, str(given.get("TrainingPlanName")))
    if found is None:
        raise ServiceError("ResourceNotFound", f"Training plan {given.get('TrainingPlanName')} does not exist.")
    return _described(cloud, found)


def list_plans(cloud: Cloud, given: dict[str, Any]) -> Answer:
    return {"TrainingPlanSummaries": [_described(cloud, found) for found in _all(cloud)]}


def _all(cloud: Cloud) -> Iterator[Plan]:
    return (found for (account, _), found in sorted(cloud.plans.items()) if account == accounts.current())


def _described(cloud: Cloud, found: Plan) -> Answer:
    ends, used = found.begins + found.hours * HOUR, in_use(cloud, found.arn)
    status = "Active" if time.time() < ends else "Expired"
    times = {"DurationHours": found.hours, "StartTime": found.begins, "EndTime": ends}
    return {
        "TrainingPlanArn": found.arn,
        "TrainingPlanName": found.name,
        "Status": status,
        "TotalInstanceCount": found.count,
        "InUseInstanceCount": used,
        "AvailableInstanceCount": max(0, found.count - used),
        "TargetResources": list(found.targets),
        "ReservedCapacitySummaries": [
            {
                "ReservedCapacityArn": arn("sagemaker", f"reserved-capacity/{found.name}"),
                "InstanceType": found.instance_type,
                "TotalInstanceCount": found.count,
                "Status": status,
                "AvailabilityZoneId": ZONE,
                **times,
            }
        ],
        **times,
    }


OPERATIONS: dict[str, Operation] = {
    "SearchTrainingPlanOfferings": search_offerings,
    "CreateTrainingPlan": create,
    "DescribeTrainingPlan": describe,
    "ListTrainingPlans": list_plans,
}
