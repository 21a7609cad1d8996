"""Whether instances can be had: types by availability zone, training plans."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from operations.aws import Unanswered
from operations.doctor.check import Finding, Subject, failed, ok, warning

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingPlan.html
FOR_HYPERPOD = "hyperpod-cluster"
PLANS_PAGE = "https://console.aws.amazon.com/sagemaker/home#/training-plans"


def offerings(subject: Subject) -> Iterator[Finding]:
    """EC2 offers each type in the AZ id of the nodes. HyperPod's own list of zones cannot be asked for."""
    env, zone = subject.environment, _zone(subject)
    wanted = dict.fromkeys(group.instance_type.removeprefix("ml.") for group in env.instance_groups)
    filters = [{"Name": "instance-type", "Values": list(wanted)}]
    offered: dict[str, set[str]] = {kind: set() for kind in wanted}
    for item in subject.account.pages("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings",
                                      LocationType="availability-zone-id", Filters=filters):  # fmt: skip
        offered.setdefault(item["InstanceType"], set()).add(item["Location"])
    missing = [kind for kind in wanted if zone not in offered[kind]]
    for kind in missing:
        elsewhere = ", ".join(sorted(offered[kind]))
        yield failed(
            f"ml.{kind} is not offered in {zone}" + (f", but in {elsewhere}" if elsewhere else f" nor anywhere in {env.region}"),
            "name such a zone first in network.availability_zone_ids" if elsewhere else "choose another region or another instance type",
        )
    if not missing:
        yield ok(f"{', '.join(f'ml.{kind}' for kind in wanted)} in {zone}")


def _zone(subject: Subject) -> str:
    """AZ id of the nodes."""
    existing = subject.environment.network.existing
    if existing is None:
        return subject.environment.network.availability_zone_ids[0]
    found = subject.account.call("ec2", "describe_subnets", SubnetIds=[existing.hyperpod_subnet_id])["Subnets"]
    return str(found[0]["AvailabilityZoneId"])


def plans(subject: Subject) -> Iterator[Finding]:
    """A training plan is active, of the right type and zone, and holds enough instances."""
    groups = [group for group in subject.environment.instance_groups if group.training_plan_arn]
    if not groups:
        yield ok("no training plan is named: capacity is on demand, which AWS promises to nobody before the nodes join")
    for group in groups:
        arn = str(group.training_plan_arn)
        name = arn.rsplit("/", 1)[-1]
        try:
            plan = subject.account.call("sagemaker", "describe_training_plan", TrainingPlanName=name)
        except Unanswered as error:
            if error.code not in ("ResourceNotFound", "ResourceNotFoundException", "ValidationException"):
                raise
            yield failed(f"group {group.name}: there is no training plan {name}", PLANS_PAGE)
            continue
        status, free = str(plan["Status"]), int(plan.get("AvailableInstanceCount", 0)) + int(plan.get("InUseInstanceCount", 0))
        parts = plan.get("ReservedCapacitySummaries", [])
        kinds = {str(part["InstanceType"]) for part in parts}
        zones = {str(part["AvailabilityZoneId"]) for part in parts if "AvailabilityZoneId" in part}
        targets = plan.get("TargetResources", [])
        end = plan.get("EndTime")
        until = f" until {end:%Y-%m-%d %H:%M} UTC" if isinstance(end, datetime) else ""
        if status in ("Expired", "Failed"):
            yield failed(f"group {group.name}: training plan {name} is {status.lower()}", PLANS_PAGE)
        elif kinds and group.instance_type not in kinds:
            yield failed(
                f"group {group.name}: training plan {name} is for {', '.join(sorted(kinds))}, not {group.instance_type}", PLANS_PAGE
            )
        elif targets and FOR_HYPERPOD not in targets:
            yield failed(f"group {group.name}: training plan {name} is for {', '.join(sorted(targets))}, not for HyperPod", PLANS_PAGE)
        elif zones and (zone := _zone(subject)) not in zones:
            yield failed(
                f"group {group.name}: training plan {name} has its capacity in {', '.join(sorted(zones))}, and the nodes live in {zone}",
                "name such a zone first in network.availability_zone_ids before the first deploy, or buy a plan of this zone",
            )
        elif free < group.count:
            yield failed(f"group {group.name}: training plan {name} holds {free} instances, and {group.count} are asked for", PLANS_PAGE)
        elif status != "Active":
            yield warning(f"group {group.name}: training plan {name} is {status.lower()}{until}: nodes come when it is active", PLANS_PAGE)
        else:
            yield ok(f"group {group.name}: training plan {name} is active with {free} instances{until}")
