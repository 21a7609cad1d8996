"""The network: one of the user's own as the stacks need it, or the environment's where it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

from config import names
from config.network import CLOSED_ENDPOINTS, ExistingNetwork
from config.network_rules import WITHOUT_EKS, addresses
from operations.aws import Unanswered
from operations.doctor.check import Finding, Subject, failed, ok, warning
from operations.doctor.nodes import enough

# EKS's own interfaces, and more of them while it is upgraded: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html
NEEDED_ADDRESSES, BETTER_ADDRESSES = 6, 16
MEND = "mend network.existing"
Json = Mapping[str, Any]


def subnets(subject: Subject) -> Iterator[Finding]:
    """What a deploy would find out in the middle, or after it: subnets, their routes and room."""
    existing = subject.environment.network.existing
    found = list(_placed(subject) if existing is None else _given(subject, existing))
    yield from found or [ok("not needed: the subnets are the environment's own")]


def _placed(subject: Subject) -> Iterator[Finding]:
    """Subnets that are there stay where they are, whatever the file says by now."""
    env = subject.environment
    cidr, zones = env.network.hyperpod_cidr, env.network.availability_zone_ids
    wanted = {"HyperPodSubnet": zones[0], "ClusterSubnet1": zones[0], "ClusterSubnet2": zones[1]}
    called = {f"{names.PREFIX}-{env.name}-{name}": name for name in wanted}
    moved = []
    there = list(subject.account.pages("ec2", "describe_subnets", "Subnets", Filters=[{"Name": "tag:Name", "Values": list(called)}]))
    for item in there:
        name = called.get(next((tag["Value"] for tag in item.get("Tags", ()) if tag["Key"] == "Name"), ""))
        if name is not None and item["AvailabilityZoneId"] != wanted[name]:
            moved.append(f"{name} ({item['SubnetId']}) lies in {item['AvailabilityZoneId']}, and the environment names {wanted[name]}")
        if name == "HyperPodSubnet" and item.get("CidrBlock", cidr) != cidr:
            moved.append(f"{name} ({item['SubnetId']}) has {item['CidrBlock']}, and network.hyperpod_cidr is {cidr}")
    if moved:
        fix = "take it back, or deploy an environment of another name: file system, clusters and nodes cannot move"
        yield failed("; ".join(moved), fix)
    elif there:
        yield ok("the subnets are where the environment wants them")


def _given(subject: Subject, existing: ExistingNetwork) -> Iterator[Finding]:
    """Each subnet is there and lies in the VPC, which has what EKS, HyperPod and FSx need."""
    env, account = subject.environment, subject.account
    wanted = (existing.hyperpod_subnet_id, *existing.cluster_subnet_ids)
    try:
        there = {str(item["SubnetId"]): item for item in account.call("ec2", "describe_subnets", SubnetIds=list(wanted))["Subnets"]}
    except Unanswered as error:
        if "NotFound" not in error.code:
            raise
        yield failed(f"a subnet of network.existing is not in {env.region}: {error.message}", MEND)
        return
    elsewhere = [f"{name} lies in {item['VpcId']}, not in {existing.vpc_id}" for name, item in there.items()
                 if item["VpcId"] != existing.vpc_id]  # fmt: skip
    if elsewhere:
        yield failed("; ".join(elsewhere), MEND)
        return
    yield from _for_control_plane([there[name] for name in existing.cluster_subnet_ids if name in there])
    nodes = there[existing.hyperpod_subnet_id]
    free = int(nodes["AvailableIpAddressCount"])
    yield enough(addresses(env.instance_groups), free, f"{existing.hyperpod_subnet_id} has {free} left", "choose a larger subnet")
    yield from _vpc(subject, existing)
    yield from _routes(subject, existing)
    if env.network.egress == "closed":
        yield from _endpoints(subject, existing)


def _for_control_plane(subnets: Sequence[Json]) -> Iterator[Finding]:
    zones = {str(item["AvailabilityZoneId"]) for item in subnets}
    if len(zones) < 2:
        yield failed(f"cluster_subnet_ids all lie in {', '.join(sorted(zones))}, and EKS wants two zones", MEND)
    for item in subnets:
        name, zone, free = item["SubnetId"], str(item["AvailabilityZoneId"]), int(item["AvailableIpAddressCount"])
        if zone in WITHOUT_EKS:
            yield failed(f"{name} lies in {zone}, where EKS takes no subnet for its control plane", MEND)
        if free < NEEDED_ADDRESSES:
            yield failed(f"{name} has {free} addresses left, and EKS needs {NEEDED_ADDRESSES}", "choose a larger subnet")
        elif free < BETTER_ADDRESSES:
            yield warning(f"{name} has {free} addresses left: EKS wants {BETTER_ADDRESSES} for its upgrades", "choose a larger subnet")


def _vpc(subject: Subject, existing: ExistingNetwork) -> Iterator[Finding]:
    """Its ranges, and its names: API server, file system and endpoints are found by DNS."""
    (vpc,) = subject.account.call("ec2", "describe_vpcs", VpcIds=[existing.vpc_id])["Vpcs"]
    ranges = [str(item["CidrBlock"]) for item in vpc.get("CidrBlockAssociationSet", ())] or [str(vpc["CidrBlock"])]
    if not any(IPv4Network(existing.cidr).subnet_of(IPv4Network(text)) for text in ranges):
        yield failed(f"network.existing.cidr is {existing.cidr}, and {existing.vpc_id} has {', '.join(ranges)}", MEND)
    for attribute, option in (("enableDnsSupport", "--enable-dns-support"), ("enableDnsHostnames", "--enable-dns-hostnames")):
        answer = subject.account.call("ec2", "describe_vpc_attribute", VpcId=existing.vpc_id, Attribute=attribute)
        if not answer[attribute[0].upper() + attribute[1:]]["Value"]:
            yield failed(
                f"{attribute} is off in {existing.vpc_id}: nodes find neither API server nor file system by name",
                f"aws ec2 modify-vpc-attribute --region {subject.environment.region} --vpc-id {existing.vpc_id} {option}",
            )


def _routes(subject: Subject, existing: ExistingNetwork) -> Iterator[Finding]:
    """Nodes have no public address, so their way out is no internet gateway; and they read their scripts from S3."""
    tables = list(subject.account.pages("ec2", "describe_route_tables", "RouteTables",
                                        Filters=[{"Name": "vpc-id", "Values": [existing.vpc_id]}]))  # fmt: skip
    links = [(table, link) for table in tables for link in table.get("Associations", ())]
    own = [table for table, link in links if link.get("SubnetId") == existing.hyperpod_subnet_id]
    table: Json = next(iter(own or [table for table, link in links if link.get("Main")]), {})
    routes = [route for route in table.get("Routes", ()) if route.get("State") != "blackhole"]
    out = [route for route in routes if route.get("DestinationCidrBlock") == "0.0.0.0/0"]
    place = f"the route table of {existing.hyperpod_subnet_id} ({table.get('RouteTableId', 'none')})"
    if any(str(route.get("GatewayId", "")).startswith("igw-") for route in out):
        yield failed(f"{place} leads to an internet gateway: HyperPod's nodes have no public address", "name a private subnet")
    elif not out and not any(str(route.get("GatewayId", "")).startswith("vpce-") for route in routes):
        yield failed(
            f"{place} leads neither out nor to S3: nodes cannot read their lifecycle script",
            f"aws ec2 create-vpc-endpoint --region {subject.environment.region} --vpc-id {existing.vpc_id} "
            f"--service-name com.amazonaws.{subject.environment.region}.s3 --route-table-ids {table.get('RouteTableId', 'ID')}",
        )
    elif not out and subject.environment.network.egress == "nat":
        yield failed(f"{place} has no way out, and network.egress is nat", "add a route to a NAT gateway, or set network.egress to closed")


def _endpoints(subject: Subject, existing: ExistingNetwork) -> Iterator[Finding]:
    """The stacks make none in a VPC of somebody else's."""
    env = subject.environment
    wanted = [*CLOSED_ENDPOINTS, *(["aps-workspaces"] if env.observability.enabled else [])]
    there = {str(item["ServiceName"]) for item in subject.account.pages(
        "ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=[{"Name": "vpc-id", "Values": [existing.vpc_id]}])}  # fmt: skip
    missing = [service for service in wanted if f"com.amazonaws.{env.region}.{service}" not in there]
    if missing:
        yield failed(
            f"{existing.vpc_id} has no endpoint for {', '.join(missing)}, and network.egress is closed",
            f"aws ec2 create-vpc-endpoint --region {env.region} --vpc-id {existing.vpc_id} --vpc-endpoint-type Interface "
            f"--service-name com.amazonaws.{env.region}.{missing[0]} ... for each",
        )
