"""Who may speak to whom, as explicit rules in both directions.

A group that is made without an egress rule gets one to everywhere, and EFA's health check wants the nodes' own group named on both
sides ("EFA health checks did not run successfully" otherwise):
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_cdk import aws_ec2 as ec2

from config.names import LUSTRE_PORTS
from stacks.stack import EnvironmentStack, Shared

# A rule that matches nothing: it keeps EC2 from adding its rule to everywhere.
_NOTHING: dict[str, Any] = {
    "ipProtocol": "icmp",
    "fromPort": 252,
    "toPort": 86,
    "cidrIp": "255.255.255.255/32",
    "description": "Nothing leaves but by the rules beside this",
}
Ports = tuple[int, int]
HTTPS: Ports = (443, 443)
# Webhooks of controllers listen where they like; 988 and the rest of the low ports are not among them.
WEBHOOKS: Ports = (1025, 65535)


class SecurityGroups:
    """The groups: nodes, control plane, file system, and the functions that speak to the API server (handlers)."""

    def __init__(self, stack: EnvironmentStack, *, vpc_id: str, cidrs: Sequence[str]) -> None:
        self._stack = stack
        self._vpc = vpc_id
        self._cidrs = cidrs
        # The route table decides where this leads: to the NAT gateway, or, in a closed network, to S3's gateway endpoint alone,
        # whose addresses are public ones.
        anywhere = [{"ipProtocol": "-1", "cidrIp": "0.0.0.0/0", "description": "To wherever the subnet's routes lead"}]
        web = [{"ipProtocol": "tcp", "fromPort": 443, "toPort": 443, "cidrIp": "0.0.0.0/0", "description": "AWS APIs and the API server"}]
        self.nodes = self._group("Nodes", "HyperPod nodes", egress=anywhere)
        self.control_plane = self._group("ControlPlane", "EKS control plane")
        self.file_system = self._group("FileSystem", "FSx for Lustre")
        self.handlers = self._group("Handlers", "Functions that speak to the Kubernetes API", egress=web)
        self._allow(self.nodes, self.nodes, "EFA and pods")
        self._allow(self.nodes, self.control_plane, "API server", HTTPS)
        self._allow(self.control_plane, self.nodes, "Webhooks and kubelet", WEBHOOKS)
        self._allow(self.control_plane, self.nodes, "Webhooks on 443", HTTPS)
        self._allow(self.handlers, self.control_plane, "API server", HTTPS)
        # Both ranges: with 988 alone a mount ends in "Is the MGS running?".
        for ports in LUSTRE_PORTS:
            self._allow(self.nodes, self.file_system, "Lustre", ports)
            self._allow(self.file_system, self.nodes, "Lustre", ports)
            self._allow(self.file_system, self.file_system, "Lustre", ports)

    @property
    def all(self) -> Sequence[ec2.CfnSecurityGroup]:
        """Every group of the VPC that is always there."""
        return (self.nodes, self.control_plane, self.file_system, self.handlers)

    def publish(self, stack: EnvironmentStack) -> None:
        """Write the groups' ids for the stacks above."""
        stack.publish(Shared.NODES_GROUP, self.nodes.attr_group_id)
        stack.publish(Shared.CONTROL_PLANE_GROUP, self.control_plane.attr_group_id)
        stack.publish(Shared.FILE_SYSTEM_GROUP, self.file_system.attr_group_id)
        stack.publish(Shared.HANDLER_GROUP, self.handlers.attr_group_id)

    def endpoints(self, stack: EnvironmentStack) -> ec2.CfnSecurityGroup:
        """A group for interface endpoints: HTTPS from inside the VPC."""
        return ec2.CfnSecurityGroup(
            stack,
            "EndpointsGroup",
            group_description="Interface endpoints",
            vpc_id=self._vpc,
            security_group_egress=[_NOTHING],
            security_group_ingress=[
                {"ipProtocol": "tcp", "fromPort": 443, "toPort": 443, "cidrIp": cidr, "description": "From the VPC"} for cidr in self._cidrs
            ],
        )

    def _group(self, name: str, description: str, *, egress: Sequence[dict[str, Any]] = ()) -> ec2.CfnSecurityGroup:
        return ec2.CfnSecurityGroup(
            self._stack,
            f"{name}Group",
            group_description=description,
            vpc_id=self._vpc,
            security_group_egress=list(egress) or [_NOTHING],
            tags=[{"key": "Name", "value": f"{self._stack.stack_name}-{name}"}],
        )

    def _allow(self, source: ec2.CfnSecurityGroup, target: ec2.CfnSecurityGroup, why: str, ports: Ports | None = None) -> None:
        """A rule at the source to let it out and one at the target to let it in; without ports, everything."""
        protocol = "-1" if ports is None else "tcp"
        low, high = ports or (None, None)
        pair = f"{source.node.id.removesuffix('Group')}To{target.node.id.removesuffix('Group')}" + ("" if ports is None else str(low))
        ec2.CfnSecurityGroupEgress(
            self._stack,
            f"{pair}Egress",
            group_id=source.attr_group_id,
            destination_security_group_id=target.attr_group_id,
            ip_protocol=protocol,
            from_port=low,
            to_port=high,
            description=why,
        )
        ec2.CfnSecurityGroupIngress(
            self._stack,
            f"{pair}Ingress",
            group_id=target.attr_group_id,
            source_security_group_id=source.attr_group_id,
            ip_protocol=protocol,
            from_port=low,
            to_port=high,
            description=why,
        )
