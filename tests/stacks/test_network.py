"""The network: the project's own, one without a way out, and one that is the user's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from config.environment import Environment
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
    kinds = {body["Type"] for body in made.values()}
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
