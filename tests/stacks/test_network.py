"""The network: the project's own, one without a way out, and one that is the user's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from config.environment import Environment
from stacks.handlers import guard
from stacks.network import Network, ranges
from tests.stacks.conftest import Resources, by_type

Variant = Callable[..., Environment]
EXISTING = {
    "vpc_id": "vpc-0123456789abcdef0",
    "cidr": "10.0.0.0/16",
    "hyperpod_subnet_id": "subnet-0aaaaaaaaaaaaaaa0",
    "cluster_subnet_ids": ["subnet-0bbbbbbbbbbbbbbb1", "subnet-0ccccccccccccccc2"],
}
WAY_OUT = {
    "InternetGateway": "AWS::EC2::InternetGateway",
    "InternetGatewayAttachment": "AWS::EC2::VPCGatewayAttachment",
    "Nat": "AWS::EC2::NatGateway",
    "NatAddress": "AWS::EC2::EIP",
    "PrivateDefaultRoute": "AWS::EC2::Route",
    "PublicDefaultRoute": "AWS::EC2::Route",
    "PublicRoutes": "AWS::EC2::RouteTable",
    "PublicSubnet1": "AWS::EC2::Subnet",
    "PublicSubnet2": "AWS::EC2::Subnet",
    "PublicSubnet1Routes": "AWS::EC2::SubnetRouteTableAssociation",
    "PublicSubnet2Routes": "AWS::EC2::SubnetRouteTableAssociation",
}
INSIDE = {
    "Vpc": "AWS::EC2::VPC",
    "HyperPodRange": "AWS::EC2::VPCCidrBlock",
    "PrivateRoutes": "AWS::EC2::RouteTable",
    "ClusterSubnet1": "AWS::EC2::Subnet",
    "ClusterSubnet2": "AWS::EC2::Subnet",
    "HyperPodSubnet": "AWS::EC2::Subnet",
    "ClusterSubnet1Routes": "AWS::EC2::SubnetRouteTableAssociation",
    "ClusterSubnet2Routes": "AWS::EC2::SubnetRouteTableAssociation",
    "HyperPodSubnetRoutes": "AWS::EC2::SubnetRouteTableAssociation",
    "S3Endpoint": "AWS::EC2::VPCEndpoint",
    "FlowLog": "AWS::EC2::FlowLog",
    "FlowLogRole": "AWS::IAM::Role",
    "FlowLogs": "AWS::Logs::LogGroup",
}
# What a closed network reaches instead; `Lambda` is for CDK's kubectl provider.
SERVICES = ("SagemakerApi", "Eks", "EksAuth", "Ec2", "Elasticloadbalancing", "EcrApi", "EcrDkr", "Sts", "Kms", "Logs", "Monitoring", "Fsx",
            "Lambda", "ApsWorkspaces", "GrafanaWorkspace")  # fmt: skip


def test_an_own_network_gets_our_security_groups_and_nothing_else(variant: Variant, resources: Callable[..., Resources]) -> None:
    plain, made = resources(Network, variant("reference", {})), resources(Network, variant("reference", {"network.existing": EXISTING}))
    assert by_type(plain, made) == {**WAY_OUT, **INSIDE}
    assert by_type(made, plain) == {}
    kinds = {body["Type"] for name, body in made.items() if not name.startswith("Guard")}
    assert kinds == {"AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress", "AWS::SSM::Parameter"}
    published = {
        body["Properties"]["Name"].rsplit("/", 1)[-1]: body["Properties"]["Value"]
        for body in made.values()
        if body["Type"] == "AWS::SSM::Parameter"
    }  # type: ignore[index]
    assert published["vpc-id"] == EXISTING["vpc_id"]
    assert published["hyperpod-subnet-id"] == EXISTING["hyperpod_subnet_id"]
    assert [published["cluster-subnet-id-1"], published["cluster-subnet-id-2"]] == EXISTING["cluster_subnet_ids"]


@pytest.mark.parametrize("changes", [{}, {"network.existing": EXISTING}], ids=["ours", "own"])
def test_where_data_is_retained_so_are_the_groups_of_its_interfaces(
    variant: Variant, resources: Callable[..., Resources], changes: dict[str, object]
) -> None:
    made = resources(Network, variant("reference", {**changes, "storage.removal": "retain"}))
    kept = {name for name, body in made.items() if body.get("DeletionPolicy") == "RetainExceptOnCreate"}
    groups = {"NodesGroup", "FileSystemGroup"}
    assert kept == (groups if changes else {*groups, "Vpc", "HyperPodRange", "HyperPodSubnet"})


def test_a_closed_network_has_endpoints_instead_of_a_way_out(variant: Variant, resources: Callable[..., Resources]) -> None:
    plain = resources(Network, variant("reference", {}))
    closed = resources(Network, variant("reference", {"network.egress": "closed", "access.endpoint": "private"}))
    assert by_type(plain, closed) == WAY_OUT
    endpoints = {f"Endpoint{service}": "AWS::EC2::VPCEndpoint" for service in SERVICES}
    assert by_type(closed, plain) == {**endpoints, "EndpointsGroup": "AWS::EC2::SecurityGroup"}


@pytest.mark.parametrize(("cidr", "zones", "prefix"), [("10.192.0.0/16", 2, 24), ("10.192.0.0/24", 3, 27), ("10.192.0.0/20", 2, 24)])
def test_subnets_fit_the_range_and_do_not_overlap(cidr: str, zones: int, prefix: int) -> None:
    from ipaddress import IPv4Network

    cut = ranges(cidr, zones)
    made = [IPv4Network(text) for text in (*cut.cluster, *cut.public)]
    assert len(cut.cluster) == len(cut.public) == zones
    assert {network.prefixlen for network in made} == {prefix}
    assert all(network.subnet_of(IPv4Network(cidr)) for network in made)
    assert not any(one.overlaps(two) for index, one in enumerate(made) for two in made[index + 1 :])


def test_a_zone_more_moves_no_subnet_that_is_there(variant: Variant, resources: Callable[..., Resources]) -> None:
    """A subnet whose range changes is replaced, and its successor's range would still be taken."""
    two = resources(Network, variant("reference", {}))
    three = resources(Network, variant("reference", {"network.availability_zone_ids": ["usw2-az2", "usw2-az1", "usw2-az3"]}))
    subnets = {name: body for name, body in two.items() if body["Type"] == "AWS::EC2::Subnet"}
    assert {name: three[name] for name in subnets} == subnets
    assert set(by_type(three, two)) == {f"{kind}Subnet3{more}" for kind in ("Cluster", "Public") for more in ("", "Routes")} | {
        "PublishClusterSubnetId3"
    }
    assert three["Guard"] == two["Guard"], "so the guard lets it come"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"network.availability_zone_ids": ["usw2-az1", "usw2-az2"]}, "availability_zone_ids 1, availability_zone_ids 2"),
        ({"network.availability_zone_ids": ["usw2-az2", "usw2-az3"]}, "availability_zone_ids 2"),
        ({"network.hyperpod_cidr": "10.2.0.0/16"}, "hyperpod_cidr"),
        ({"network.cidr": "10.193.0.0/16"}, "cidr"),
        ({"network.existing": EXISTING}, "vpc_id"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_would_make_a_second_network_is_refused_before_anything_is_made(
    variant: Variant, resources: Callable[..., Resources], changes: dict[str, object], named: str
) -> None:
    """Without that, file system and clusters stay in the old one, which no stack owns any more, and there is no way back."""
    old, new = (resources(Network, variant("reference", each))["Guard"]["Properties"] for each in ({}, changes))
    event = {"RequestType": "Update", "StackId": "s", "PhysicalResourceId": guard.digest(old["Kept"]),  # type: ignore[index, call-overload]
             "ResourceProperties": new, "OldResourceProperties": old}  # fmt: skip
    with pytest.raises(RuntimeError, match=f"changing .*{named}.* would replace the network, .*nothing was changed. Take it back"):
        guard.work(event)
    made = resources(Network, variant("reference", changes))
    kinds = ("AWS::EC2::VPC", "AWS::EC2::VPCCidrBlock") if "Vpc" in made else ("AWS::EC2::SecurityGroup",)
    first = {name: body for name, body in made.items() if body["Type"] in kinds or name in ("HyperPodSubnet", "ClusterSubnet1")}
    assert first
    assert {name for name, body in first.items() if "Guard" not in body.get("DependsOn", [])} == set()  # type: ignore[operator]
