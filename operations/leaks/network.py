"""What keeps a VPC from being deleted: load balancers, interfaces, security groups, endpoints, and the VPC's own parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from config import prices
from config.names import Stack
from operations.aws import Aws
from operations.leaks.leak import Leak, Ours, physical_ids, tags_of

FREE = "free, but it keeps its VPC from being deleted"
# That its groups outlive the domain and keep a VPC: https://github.com/singlestore-labs/private-llm-aws/issues/9
STUDIO = "made by SageMaker Studio for the home folders of its domain"
GUARDDUTY = "made by GuardDuty's runtime monitoring of the account, not by this environment"


def vpcs(aws: Aws, ours: Ours) -> frozenset[str]:
    """The environment's own VPCs. One that the environment only uses (network.existing) is never among them."""
    given = ours.environment.network.existing
    found = {vpc["VpcId"] for vpc in aws.pages("ec2", "describe_vpcs", "Vpcs") if ours.tagged(tags_of(vpc.get("Tags")))}
    return frozenset(found - ({given.vpc_id} if given else set()))


def load_balancers(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Network and application load balancers: made for services and ingresses, gone only if their controller was there to remove them."""
    for item, made_by in _elb(aws, ours, "describe_load_balancers", "LoadBalancers", "LoadBalancerArn"):
        yield Leak(
            "load balancer", item["LoadBalancerArn"], made_by, "about 0.0225 USD an hour and traffic (unverified)",
            (ours.command("elbv2", "delete-load-balancer", "--load-balancer-arn", item["LoadBalancerArn"]),),
            name=item.get("LoadBalancerName", ""), alive_with=Stack.PLATFORM, ids=physical_ids(item["LoadBalancerArn"]),
        )  # fmt: skip


def target_groups(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Target groups stay when their load balancer goes."""
    for item, made_by in _elb(aws, ours, "describe_target_groups", "TargetGroups", "TargetGroupArn"):
        yield Leak(
            "target group", item["TargetGroupArn"], made_by, "free",
            (ours.command("elbv2", "delete-target-group", "--target-group-arn", item["TargetGroupArn"]),),
            name=item.get("TargetGroupName", ""), alive_with=Stack.PLATFORM, ids=physical_ids(item["TargetGroupArn"]),
        )  # fmt: skip


def classic_balancers(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """What Kubernetes' own service controller makes where the load balancer controller is not installed."""
    found = [item["LoadBalancerName"] for item in aws.pages("elb", "describe_load_balancers", "LoadBalancerDescriptions")]
    for start in range(0, len(found), 20):
        for described in aws.call("elb", "describe_tags", LoadBalancerNames=found[start : start + 20])["TagDescriptions"]:
            if made_by := ours.tagged(tags_of(described.get("Tags"))):
                name = described["LoadBalancerName"]
                yield Leak(
                    "classic load balancer", name, made_by, "about 0.025 USD an hour and traffic (unverified)",
                    (ours.command("elb", "delete-load-balancer", "--load-balancer-name", name),), alive_with=Stack.PLATFORM,
                )  # fmt: skip


def _elb(aws: Aws, ours: Ours, operation: str, key: str, arn: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    items = {item[arn]: item for item in aws.pages("elbv2", operation, key)}
    arns = list(items)
    # At most 20 a call: https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTags.html
    for start in range(0, len(arns), 20):
        for described in aws.call("elbv2", "describe_tags", ResourceArns=arns[start : start + 20])["TagDescriptions"]:
            if made_by := ours.tagged(tags_of(described.get("Tags"))):
                yield items[described["ResourceArn"]], made_by


def interfaces(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Interfaces that nothing uses any more; one that a service still holds goes with what holds it, and AWS refuses to detach it."""
    for item in aws.pages("ec2", "describe_network_interfaces", "NetworkInterfaces"):
        tags, text = tags_of(item.get("TagSet")), str(item.get("Description", ""))
        made_by = ours.tagged(tags)
        if made_by is None and item.get("VpcId") in ours.vpcs and not ours.foreign(tags):
            made_by = _maker(ours, text)
        if made_by is None or item.get("Status") == "in-use":
            continue
        identifier = item["NetworkInterfaceId"]
        yield Leak(
            "network interface", identifier, made_by, FREE,
            (ours.command("ec2", "delete-network-interface", "--network-interface-id", identifier),),
            name=text, alive_with=Stack.CLUSTER, ids=physical_ids(identifier),
        )  # fmt: skip


def _maker(ours: Ours, description: str) -> str | None:
    """Who writes such a description on an interface."""
    if description == f"Amazon EKS {ours.base}":
        return "made by the EKS control plane"
    if match := re.match(r"AWS Lambda VPC ENI-(\S+)", description):
        return f"{made} (a function in the VPC)" if (made := ours.named(match.group(1))) else None
    if re.match(r"aws-K8S-i-[0-9a-f]+$", description):
        return "made by the VPC CNI for pods of a node that is gone"
    return None


def security_groups(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Groups of load balancers, of the EKS control plane, of GuardDuty's endpoint, of Studio. A VPC's default group goes with it."""
    there = list(aws.pages("ec2", "describe_security_groups", "SecurityGroups"))
    found = {item["GroupId"]: made_by for item in there if (made_by := _owner(ours, item)) and item["GroupName"] != "default"}
    for item in there:
        identifier = item["GroupId"]
        made_by = found.get(identifier)
        if made_by is None:
            continue
        # A group that another one's rules name cannot go: such rules go first, of groups that are listed here alone.
        before = [command for other in there if other["GroupId"] in found for command in _revocations(ours, other, identifier)]
        stack = {GUARDDUTY: Stack.NETWORK, STUDIO: Stack.STUDIO}.get(made_by, Stack.CLUSTER)
        yield Leak(
            "security group", identifier, made_by, FREE, (*before, ours.command("ec2", "delete-security-group", "--group-id", identifier)),
            name=item["GroupName"], alive_with=stack, ids=physical_ids(identifier),
        )  # fmt: skip


def _owner(ours: Ours, group: Mapping[str, Any]) -> str | None:
    """Who made a security group: by its tags, else by the names that services give in our own VPC."""
    tags, name = tags_of(group.get("Tags")), str(group["GroupName"])
    if made_by := ours.tagged(tags):
        return made_by
    if group.get("VpcId") not in ours.vpcs or ours.foreign(tags):
        return None
    if name == f"GuardDutyManagedSecurityGroup-{group['VpcId']}":
        return GUARDDUTY
    if re.fullmatch(rf"eks-cluster-sg-{re.escape(ours.base)}-\d+", name):
        return "made by the EKS control plane"
    return STUDIO if re.fullmatch(r"security-group-for-(in|out)bound-nfs-d-[a-z0-9]+", name) else None


def _revocations(ours: Ours, group: Mapping[str, Any], named: str) -> Iterator[str]:
    """Commands that take the rules out of a group which name another one."""
    if group["GroupId"] == named:
        return
    for key, operation in (("IpPermissions", "revoke-security-group-ingress"), ("IpPermissionsEgress", "revoke-security-group-egress")):
        for rule in group.get(key, ()):
            pairs = [{"GroupId": named} for pair in rule.get("UserIdGroupPairs", ()) if pair.get("GroupId") == named]
            if pairs:
                ports = {name: rule[name] for name in ("IpProtocol", "FromPort", "ToPort") if name in rule}
                permissions = json.dumps([{**ports, "UserIdGroupPairs": pairs}])
                yield ours.command("ec2", operation, "--group-id", group["GroupId"], "--ip-permissions", permissions)


def endpoints(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """VPC endpoints, among them the one that GuardDuty adds to every VPC that it watches."""
    for item in aws.pages("ec2", "describe_vpc_endpoints", "VpcEndpoints"):
        tags = tags_of(item.get("Tags"))
        made_by = ours.tagged(tags)
        guard = str(item.get("ServiceName", "")).endswith(".guardduty-data")
        if made_by is None and guard and item.get("VpcId") in ours.vpcs and not ours.foreign(tags):
            made_by = GUARDDUTY
        if made_by is None or str(item.get("State", "")).lower() in ("deleting", "deleted"):
            continue
        cost = "free" if item.get("VpcEndpointType") == "Gateway" else "about 0.01 USD an hour for each zone (unverified)"
        yield Leak(
            "VPC endpoint", item["VpcEndpointId"], made_by, cost,
            (ours.command("ec2", "delete-vpc-endpoints", "--vpc-endpoint-ids", item["VpcEndpointId"]),),
            name=str(item.get("ServiceName", "")), alive_with=Stack.NETWORK, ids=physical_ids(item["VpcEndpointId"]),
        )  # fmt: skip


def _of_stack(kind: str, operation: str, key: str, identifier: str, cost: str, delete: Sequence[str]) -> Any:
    """A kind that only the Network stack makes, found by its tags; `delete` ends before the id."""

    def scan(aws: Aws, ours: Ours) -> Iterator[Leak]:
        for item in aws.pages("ec2", operation, key):
            made_by = ours.tagged(tags_of(item.get("Tags")))
            if made_by is None or item.get("State") in ("deleted", "deleting"):
                continue
            if kind == "VPC" and item["VpcId"] not in ours.vpcs:
                continue
            before = [
                ours.command("ec2", "detach-internet-gateway", "--internet-gateway-id", item[identifier], "--vpc-id", attached["VpcId"])
                for attached in (item.get("Attachments", ()) if kind == "internet gateway" else ())
            ]
            yield Leak(
                kind, item[identifier], made_by, cost, (*before, ours.command("ec2", *delete, item[identifier])),
                ids=physical_ids(item[identifier], item.get("PublicIp")),
            )  # fmt: skip

    return scan


NAT_COST = f"about {prices.NAT_GATEWAY.usd_per_hour} USD an hour and traffic ({prices.NAT_GATEWAY.certainty})"
ADDRESS_COST = f"about {prices.PUBLIC_ADDRESS.usd_per_hour} USD an hour ({prices.PUBLIC_ADDRESS.certainty})"
nat_gateways = _of_stack("NAT gateway", "describe_nat_gateways", "NatGateways", "NatGatewayId", NAT_COST,
                         ("delete-nat-gateway", "--nat-gateway-id"))  # fmt: skip
addresses = _of_stack("Elastic IP address", "describe_addresses", "Addresses", "AllocationId", ADDRESS_COST,
                      ("release-address", "--allocation-id"))  # fmt: skip
internet_gateways = _of_stack("internet gateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId", "free",
                              ("delete-internet-gateway", "--internet-gateway-id"))  # fmt: skip
subnets = _of_stack("subnet", "describe_subnets", "Subnets", "SubnetId", "free", ("delete-subnet", "--subnet-id"))
route_tables = _of_stack("route table", "describe_route_tables", "RouteTables", "RouteTableId", "free",
                         ("delete-route-table", "--route-table-id"))  # fmt: skip
networks = _of_stack("VPC", "describe_vpcs", "Vpcs", "VpcId", "free, but an account has few (5 by default)", ("delete-vpc", "--vpc-id"))
