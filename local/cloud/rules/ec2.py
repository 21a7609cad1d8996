"""EC2: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from local.cloud.rules.asking import Asked, absent, refuses


def _interfaces(asked: Asked, by: str) -> list[dict[str, Any]]:
    found = asked.cloud.client("ec2").describe_network_interfaces()["NetworkInterfaces"]
    if by == "subnet":
        return [i for i in found if i.get("SubnetId") == asked.id]
    return [i for i in found if asked.id in {g.get("GroupId") for g in i.get("Groups", [])}]


@refuses("AWS::EC2::Subnet", "delete", code="InvalidRequest")
def subnet_without_interfaces(asked: Asked) -> Iterator[str]:
    if _interfaces(asked, "subnet"):
        yield f"The subnet '{asked.id}' has dependencies and cannot be deleted. (Service: Ec2, Status Code: 400, DependencyViolation)"


@refuses("AWS::EC2::SecurityGroup", "delete", code="InvalidRequest")
def security_group_without_users(asked: Asked) -> Iterator[str]:
    if _interfaces(asked, "group"):
        yield f"resource {asked.id} has a dependent object (Service: Ec2, Status Code: 400, DependencyViolation)"


@refuses("AWS::EC2::NatGateway", "create", code="NotFound")
def nat_gateway_needs_its_subnet(asked: Asked) -> Iterator[str]:
    yield from absent(asked.cloud, [s for s in [asked.get("SubnetId")] if s], [])
