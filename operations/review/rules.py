"""Which traffic is let through that was not before: security groups, the API server's endpoint, routes to the internet."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from operations.review.sides import Side, StackTemplate
from operations.review.values import named, plain

EVERYWHERE = ("0.0.0.0/0", "::/0")
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "fc00::/7")
_PEERS = (
    "CidrIp", "CidrIpv6", "SourceSecurityGroupId", "DestinationSecurityGroupId", "SourcePrefixListId", "DestinationPrefixListId",
    "SourceSecurityGroupName",
)  # fmt: skip


_WHERE = ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId")
_THROUGH = (
    "GatewayId", "NatGatewayId", "TransitGatewayId", "VpcPeeringConnectionId", "NetworkInterfaceId", "InstanceId", "VpcEndpointId",
    "EgressOnlyInternetGatewayId", "CarrierGatewayId", "LocalGatewayId", "CoreNetworkArn",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One rule of one security group (`Stack/LogicalId`, or the parameter that carries a group of another stack)."""

    group: str
    direction: str
    protocol: str
    low: int
    high: int
    peer: str

    def sentence(self) -> str:
        """For people."""
        ports = "" if self.protocol == "-1" else f" {self.low}" if self.low == self.high else f" {self.low}-{self.high}"
        what = "everything" if self.protocol == "-1" else self.protocol + ports
        return f"{what} {'from' if self.direction == 'in' else 'to'} {self.peer}"

    def covers(self, other: Rule) -> bool:
        """Whether this rule lets through all that the other one does."""
        if (self.group, self.direction) != (other.group, other.direction) or not _within(self.peer, other.peer):
            return False
        if self.protocol == "-1":
            return True
        return self.protocol == other.protocol and self.low <= other.low and self.high >= other.high

    @property
    def public(self) -> bool:
        """Whether it lets in addresses that are not private."""
        # Not by `is_private`: to Pythons before 3.11.10 and 3.12.4 `0.0.0.0/0` is private, since its first and its last address are.
        return self.direction == "in" and "/" in self.peer and not any(_within(net, self.peer) for net in _PRIVATE)


def widened(base: Side, head: Side) -> Iterator[tuple[str, str]]:
    """(what lets through more, the sentence). A new group has nothing behind it in the base: of it, only a public way in counts."""
    before = [rule for stack in base.stacks for rule in of_stack(stack)]
    there = {f"{stack.name}/{logical}" for stack in base.stacks for logical in stack.resources}
    for stack in head.stacks:
        for rule in of_stack(stack):
            known = rule.group in there or not rule.group.startswith(f"{stack.name}/")
            if not any(old.covers(rule) for old in before) and (known or rule.public):
                yield rule.group, rule.sentence()
    known_ways = {way for stack in base.stacks for way in _ways(stack)}
    for stack in head.stacks:
        for table, where, through in _ways(stack):
            if table in there and not any(table == one and _within(other, where) for one, other, _ in known_ways):
                to = "the internet" if where in EVERYWHERE else where
                yield table, f"its subnets have a way to {to} through {through}"
            elif table in there and (table, where, through) not in known_ways and _enters(stack, through):
                yield table, f"its subnets can be reached from {where} through {through}"
    for name, cidrs in _endpoints(head).items():
        old = _endpoints(base).get(name)
        for cidr in cidrs if old is not None else []:
            if not any(_within(one, cidr) for one in old or []):
                yield name, f"the Kubernetes API answers {'everybody' if cidr in EVERYWHERE else cidr}"


def gone(base: Side, head: Side) -> tuple[str, ...]:
    """Groups that let through less: a connection that needs what is gone ends."""
    after = [rule for stack in head.stacks for rule in of_stack(stack)]
    return tuple(
        dict.fromkeys(rule.group for stack in base.stacks for rule in of_stack(stack) if not any(new.covers(rule) for new in after))
    )


def of_stack(stack: StackTemplate) -> Iterator[Rule]:
    """Rules of all security groups of a stack, inline and apart."""
    for logical, body in stack.resources.items():
        properties = plain(body.get("Properties", {}))
        kind = str(body.get("Type"))
        if kind == "AWS::EC2::SecurityGroup":
            here = f"{stack.name}/{logical}"
            for rule in properties.get("SecurityGroupIngress", ()):
                yield _rule(here, "in", rule)
            # A group without a rule for what leaves gets one to everywhere.
            for rule in properties.get("SecurityGroupEgress") or ({"IpProtocol": "-1", "CidrIp": EVERYWHERE[0]},):
                yield _rule(here, "out", rule)
        elif kind in ("AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress"):
            group = re.sub(r"^\$\{([^.}]+)\.GroupId\}$", rf"{stack.name}/\1", str(properties.get("GroupId")))
            yield _rule(group, "in" if kind.endswith("Ingress") else "out", properties)


def _rule(group: str, direction: str, properties: Mapping[str, Any]) -> Rule:
    peer = next((str(properties[name]) for name in _PEERS if name in properties), "?")
    low, high = properties.get("FromPort"), properties.get("ToPort")
    return Rule(
        group, direction, str(properties.get("IpProtocol")), 0 if low is None else int(low), 65535 if high is None else int(high), peer
    )


def _within(wide: str, narrow: str) -> bool:
    if wide == narrow:
        return True
    try:
        one, two = ipaddress.ip_network(wide, strict=False), ipaddress.ip_network(narrow, strict=False)
    except ValueError:
        return False
    return one.version == two.version and two.subnet_of(one)  # type: ignore[arg-type]


def _ways(stack: StackTemplate) -> Iterator[tuple[str, str, str]]:
    """(route table, where to, through what) of each route."""
    for body in stack.resources.values():
        if body.get("Type") != "AWS::EC2::Route":
            continue
        properties = plain(body.get("Properties", {}))
        table = named(stack.name, properties.get("RouteTableId"))
        where = next((str(properties[name]) for name in _WHERE if name in properties), "?")
        yield table, where, next((str(properties[name]) for name in _THROUGH if name in properties), "?")


def _enters(stack: StackTemplate, through: str) -> bool:
    """Whether the other side can begin a connection, as it cannot through a NAT gateway."""
    target = stack.resources.get(named(stack.name, through).removeprefix(f"{stack.name}/"), {})
    return target.get("Type") in ("AWS::EC2::InternetGateway", "AWS::EC2::VPNGateway")


def _endpoints(side: Side) -> dict[str, list[str]]:
    """Addresses that each EKS cluster's public endpoint answers; none where it is private."""
    found = {}
    for stack in side.stacks:
        for logical, body in stack.resources.items():
            if body.get("Type") == "AWS::EKS::Cluster":
                wanted = plain(body.get("Properties", {})).get("ResourcesVpcConfig", {})
                public = wanted.get("EndpointPublicAccess") not in (False, "false")  # EKS's own default is public
                found[f"{stack.name}/{logical}"] = list(wanted.get("PublicAccessCidrs") or [EVERYWHERE[0]]) if public else []
    return found
