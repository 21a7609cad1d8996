"""Rules for the network, and for the region that it is in: ranges that EC2 takes, addresses for every pod, services that are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

from config.compute import InstanceGroup
from config.environment import Environment
from config.instances import INSTANCES
from config.names import short_region
from config.problems import Problem

# EC2 keeps five addresses of a subnet: https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
KEPT_BY_EC2 = 5
# Which second range EC2 adds to a first one ("IPv4 CIDR block association restrictions"):
# https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html
PRIVATE = tuple(IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
NEVER_SECOND = tuple(IPv4Network(text) for text in ("198.19.0.0/16", "172.31.0.0/16"))
NO_VPC = tuple(IPv4Network(text) for text in ("169.254.0.0/16", "0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3"))
# Regions of AWS's own templates, the longest list of each: https://github.com/aws/sagemaker-hyperpod-cluster-setup, eks/cloudformation.
PROMETHEUS_REGIONS = frozenset((
    "us-east-1", "us-east-2", "us-west-1", "us-west-2", "ap-south-1", "ap-northeast-1", "ap-northeast-2", "ap-southeast-1",
    "ap-southeast-2", "ap-southeast-3", "ap-southeast-4", "ca-central-1", "eu-central-1", "eu-west-1", "eu-west-2", "eu-north-1",
    "eu-south-2", "sa-east-1",
))  # fmt: skip
GRAFANA_REGIONS = frozenset((
    "us-east-1", "us-east-2", "us-west-2", "ap-northeast-1", "ap-northeast-2", "ap-southeast-1", "ap-southeast-2", "ca-central-1",
    "eu-central-1", "eu-west-1", "eu-west-2",
))  # fmt: skip
# Where EKS takes no subnet: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html
WITHOUT_EKS = frozenset(("use1-az3", "usw1-az2", "cac1-az3"))
# https://docs.aws.amazon.com/eks/latest/userguide/service-quotas.html
MOST_PUBLIC_CIDRS = 40
OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-iso", "eusc-")


def zones_fit_region(env: Environment) -> Iterator[Problem]:
    """Two different AZ ids, of this region."""
    zones = env.network.availability_zone_ids
    prefix = short_region(env.region)
    for index, zone in enumerate(zones):
        if not zone.startswith(f"{prefix}-"):
            yield Problem(
                f"network.availability_zone_ids[{index}]", zone, f"this is no zone of {env.region}", f"its AZ ids begin with {prefix}-az"
            )
        elif zone in WITHOUT_EKS and env.network.existing is None:
            yield Problem(
                f"network.availability_zone_ids[{index}]", zone, "EKS takes no subnet for its control plane there", "name another zone"
            )
    if len(set(zones)) != len(zones):
        yield Problem("network.availability_zone_ids", ", ".join(zones), "EKS wants two different zones", "name each zone once")


def region_has_services(env: Environment) -> Iterator[Problem]:
    """HyperPod's charts and add-ons name registries of AWS's commercial partition only; Prometheus and Grafana are not everywhere."""
    if env.region.startswith(OTHER_PARTITIONS):
        yield Problem(
            "region",
            env.region,
            "HyperPod's charts and images come from registries of AWS's commercial regions, which another partition does not reach",
            "choose a commercial region, for example us-west-2",
        )
    elif env.observability.enabled and env.region not in PROMETHEUS_REGIONS:
        yield Problem(
            "observability.enabled",
            "true",
            f"Amazon Managed Service for Prometheus is not in {env.region}",
            "set it to false, or choose another region",
        )
    elif env.observability.enabled and env.observability.grafana != "none" and env.region not in GRAFANA_REGIONS:
        yield Problem(
            "observability.grafana",
            env.observability.grafana,
            f"Amazon Managed Grafana is not in {env.region}",
            "set it to none, or choose another region",
        )


def networks_apart(env: Environment) -> Iterator[Problem]:
    """The HyperPod range is a second range of the same VPC; both must be real networks of a size that EC2 takes."""
    if env.network.existing is not None:
        return
    ranges = {field: getattr(env.network, field) for field in ("cidr", "hyperpod_cidr")}
    read: dict[str, IPv4Network] = {}
    for field, value in ranges.items():
        try:
            network = read[field] = IPv4Network(value)
        except ValueError as error:
            yield Problem(f"network.{field}", value, f"this is no IPv4 network ({error})", "write it as 10.1.0.0/16")
            continue
        if not 16 <= network.prefixlen <= 24:
            yield Problem(f"network.{field}", value, "a prefix between /16 and /24 leaves room for nodes and fits a VPC", "use /16")
        if any(network.overlaps(other) for other in NO_VPC):
            yield Problem(f"network.{field}", value, "EC2 gives a VPC no addresses of that kind", "use private ones such as 10.1.0.0/16")
    if len(read) == 2:
        first, second = read.values()
        if first.overlaps(second):
            yield Problem("network.hyperpod_cidr", str(second), "it overlaps network.cidr", "choose a range beside it")
        elif fix := _second_refused(first, second):
            yield Problem("network.hyperpod_cidr", str(second), f"EC2 does not add it to a VPC that begins with {first}", fix)


def _second_refused(first: IPv4Network, second: IPv4Network) -> str:
    """What to choose instead, or nothing where EC2 takes the second range."""
    home = next((private for private in PRIVATE if first.overlaps(private)), None)
    elsewhere = any(second.overlaps(private) for private in PRIVATE if private != home)
    if elsewhere or any(second.overlaps(never) for never in NEVER_SECOND):
        return f"choose it from {home} or 100.64.0.0/10" if home else "choose it from 100.64.0.0/10"
    if first.overlaps(IPv4Network("10.0.0.0/15")) and second.overlaps(IPv4Network("10.0.0.0/16")):
        return "choose it from 10.2.0.0 upward"
    return ""


def existing_network_is_whole(env: Environment) -> Iterator[Problem]:
    """A VPC of one's own: a real range, subnets named once, and nothing beside it that would have no effect."""
    existing = env.network.existing
    if existing is None:
        return
    for field in sorted({"cidr", "hyperpod_cidr"} & env.network.model_fields_set):
        yield Problem(f"network.{field}", getattr(env.network, field), "network.existing has its own ranges", "leave one of the two out")
    try:
        IPv4Network(existing.cidr)
    except ValueError as error:
        yield Problem("network.existing.cidr", existing.cidr, f"this is no IPv4 network ({error})", "write it as 10.1.0.0/16")
    subnets = existing.cluster_subnet_ids
    if len(set(subnets)) != len(subnets):
        yield Problem("network.existing.cluster_subnet_ids", ", ".join(subnets), "EKS wants two different zones", "name each subnet once")
    if existing.hyperpod_subnet_id in subnets:
        yield Problem(
            "network.existing.hyperpod_subnet_id",
            existing.hyperpod_subnet_id,
            "pods take the addresses of the nodes' subnet, and the control plane must not run out of them",
            "name a subnet that is not among cluster_subnet_ids",
        )


def addresses(groups: Iterable[InstanceGroup]) -> int:
    """Addresses that nodes take: one for each, and one for each pod that it may carry (the CNI keeps a whole interface's)."""
    return sum(group.count * (1 + group.instance.max_pods) for group in groups)


def addresses_for_every_pod(env: Environment) -> Iterator[Problem]:
    """A HyperPod node takes one address and one for each pod that it can hold, from the nodes' subnet."""
    if env.network.existing is not None:
        return
    try:
        there = IPv4Network(env.network.hyperpod_cidr).num_addresses - KEPT_BY_EC2
    except ValueError:
        return
    known = [group for group in env.instance_groups if group.figures is not None or group.instance_type in INSTANCES]
    wanted = addresses(known)
    if wanted > there:
        prefix = next((prefix for prefix in range(24, 15, -1) if 2 ** (32 - prefix) - KEPT_BY_EC2 >= wanted), 16)
        yield Problem(
            "network.hyperpod_cidr",
            env.network.hyperpod_cidr,
            f"its {there} addresses are fewer than the {wanted} that {sum(group.count for group in known)} nodes and their pods take",
            f"use a /{prefix}" if prefix < IPv4Network(env.network.hyperpod_cidr).prefixlen else "lower the groups' counts",
        )


def closed_network_is_private(env: Environment) -> Iterator[Problem]:
    """In a closed network CDK's handler reaches the API server only by its private endpoint."""
    if env.network.egress == "closed" and env.access.endpoint == "public":
        yield Problem("access.endpoint", "public", "a closed network has no way to a public endpoint", "set private")


def public_endpoint_is_restricted(env: Environment) -> Iterator[Problem]:
    """An API server open to the world is a decision to write down, not a default."""
    if env.access.endpoint == "private" and env.access.public_cidrs:
        yield Problem(
            "access.public_cidrs",
            ", ".join(env.access.public_cidrs),
            "a private endpoint has no public ranges",
            "leave them out",
        )
    if len(env.access.public_cidrs) > MOST_PUBLIC_CIDRS:
        yield Problem(
            "access.public_cidrs",
            f"{len(env.access.public_cidrs)} ranges",
            f"EKS takes at most {MOST_PUBLIC_CIDRS}",
            "join neighbouring ranges, or set access.endpoint: private",
        )
    for cidr in env.access.public_cidrs:
        try:
            network = IPv4Network(cidr)
        except ValueError as error:
            yield Problem("access.public_cidrs", cidr, f"this is no IPv4 network ({error})", "write it as 203.0.113.0/24")
            continue
        if any(network.subnet_of(private) for private in PRIVATE):
            # https://docs.aws.amazon.com/eks/latest/userguide/cluster-endpoint.html
            yield Problem("access.public_cidrs", cidr, "EKS takes no private range here", "write the public address that people come from")


def principals_can_enter(env: Environment) -> Iterator[Problem]:
    """Whom EKS takes as the principal of an access entry: https://docs.aws.amazon.com/eks/latest/userguide/creating-access-entries.html"""
    access = env.access
    named = [(f"access.administrators[{index}]", arn) for index, arn in enumerate(access.administrators)]
    for field in ("training_users", "inference_users"):
        named += [(f"access.{field}[{index}].role_arn", user.role_arn) for index, user in enumerate(getattr(access, field))]
    for place, arn in named:
        if not arn.startswith("arn:aws:"):
            yield Problem(place, arn, f"it is in another partition than {env.region}", "name a role whose ARN begins with arn:aws:iam")
        elif ":role/aws-service-role/" in arn:
            yield Problem(place, arn, "EKS lets no service-linked role in", "name a role that people or workflows take on")


RULES = (
    principals_can_enter,
    zones_fit_region,
    region_has_services,
    networks_apart,
    existing_network_is_whole,
    addresses_for_every_pod,
    closed_network_is_private,
    public_endpoint_is_restricted,
)
