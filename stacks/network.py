"""Network: the VPC, its subnets by AZ id, and every security group, so that no later stack edits another's rules.

HyperPod's subnet is a second range of the VPC in the first AZ, where FSx lives too: EFA does not cross AZs and a file system wants its
clients beside it (https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites.html). The control plane's subnets
lie in the VPC's first range, one in each AZ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from aws_cdk import CfnResource, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from config import names
from config.network import CLOSED_ENDPOINTS
from stacks.allow import Allow
from stacks.functions import log_group
from stacks.guard import guard
from stacks.roles import role
from stacks.security_groups import SecurityGroups
from stacks.stack import EnvironmentStack, Settings, Shared

# For each zone in turn, which pieces of the first range are its control-plane and its public subnet.
ZONES_CUT = ((0, 2), (1, 3), (4, 5))


@dataclass(frozen=True)
class Ranges:
    """Address ranges of the subnets: one public and one control-plane range for each AZ id."""

    public: tuple[str, ...]
    cluster: tuple[str, ...]


def ranges(cidr: str, zones: int) -> Ranges:
    """Cut the VPC's first range. The smallest VPC that the rules allow (/24) gives /27 subnets; EKS asks for 16 addresses in each.

    A zone keeps its ranges when another one comes after it: a subnet whose range changes is replaced, and its successor's range would
    still be taken.
    """
    network = IPv4Network(cidr)
    pieces = network.subnets(new_prefix=max(24, network.prefixlen + 3))
    cut = [str(next(pieces)) for _ in range(2 * len(ZONES_CUT))]
    return Ranges(public=tuple(cut[public] for _, public in ZONES_CUT[:zones]), cluster=tuple(cut[own] for own, _ in ZONES_CUT[:zones]))


class Network(EnvironmentStack):
    """VPC, subnets, routes, endpoints, security groups; or the ids of a network of the user's own, with our security groups in it."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.NETWORK, description="VPC, subnets and security groups")
        if settings.network.existing is not None:
            existing = settings.network.existing
            self._share(existing.vpc_id, existing.hyperpod_subnet_id, existing.cluster_subnet_ids)
            groups = SecurityGroups(self, vpc_id=existing.vpc_id, cidrs=(existing.cidr,))
            groups.publish(self)
            self._kept(groups.nodes, groups.file_system)
            self._guarded(groups.all, {"vpc_id": existing.vpc_id, "hyperpod_subnet_id": existing.hyperpod_subnet_id})
            return
        self._zones = settings.network.availability_zone_ids
        self._ranges = ranges(settings.network.cidr, len(self._zones))
        vpc = ec2.CfnVPC(
            self,
            "Vpc",
            cidr_block=settings.network.cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags=[{"key": "Name", "value": f"{names.PREFIX}-{settings.name}"}],
        )
        second = ec2.CfnVPCCidrBlock(self, "HyperPodRange", vpc_id=vpc.ref, cidr_block=settings.network.hyperpod_cidr)
        private = ec2.CfnRouteTable(self, "PrivateRoutes", vpc_id=vpc.ref)
        cluster = [
            self._subnet(f"ClusterSubnet{number}", vpc, cidr=cidr, zone=zone, routes=private, tag="kubernetes.io/role/internal-elb")
            for number, (cidr, zone) in enumerate(zip(self._ranges.cluster, self._zones, strict=True), start=1)
        ]
        nodes = self._subnet("HyperPodSubnet", vpc, cidr=settings.network.hyperpod_cidr, zone=self._zones[0], routes=private)
        nodes.add_resource_dependency(second)
        ec2.CfnVPCEndpoint(
            self,
            "S3Endpoint",
            vpc_id=vpc.ref,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{self.region}.s3",
            route_table_ids=[private.ref],
        )
        groups = SecurityGroups(self, vpc_id=vpc.ref, cidrs=(settings.network.cidr, settings.network.hyperpod_cidr))
        if settings.network.egress == "nat":
            self._way_out(vpc, private)
        else:
            self._endpoints(vpc, cluster, groups)
        self._flow_log(vpc)
        self._share(vpc.ref, nodes.ref, [subnet.ref for subnet in cluster])
        groups.publish(self)
        self._kept(vpc, second, nodes, groups.nodes, groups.file_system)
        # A third zone may come and go: nothing but the control plane is in it.
        places = {f"availability_zone_ids {number}": zone for number, zone in enumerate(self._zones[:2], start=1)}
        cidrs = {"cidr": settings.network.cidr, "hyperpod_cidr": settings.network.hyperpod_cidr}
        self._guarded([vpc, second, nodes, *cluster], cidrs | places)

    def _guarded(self, resources: Sequence[CfnResource], kept: dict[str, str]) -> None:
        """No change makes a second network beside the one that everything lives in.

        CloudFormation would: subnets and VPCs have no names. The stacks above then refuse to move, the old network is nobody's any more,
        and there is no way back, since what it holds is still taken.
        """
        first = guard(
            self,
            what="network",
            fix="Take it back, or deploy an environment of another name: file system, clusters and nodes stay where they were made",
            kept=kept,
        )
        for made in resources:
            made.node.add_dependency(first)

    def _kept(self, *resources: CfnResource) -> None:
        """What a file system that is retained lives in stays with it."""
        if self.settings.storage.removal == "retain":
            for kept in resources:
                kept.apply_removal_policy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)

    def _subnet(
        self, construct_id: str, vpc: ec2.CfnVPC, *, cidr: str, zone: str, routes: ec2.CfnRouteTable, tag: str | None = None
    ) -> ec2.CfnSubnet:
        subnet = ec2.CfnSubnet(
            self,
            construct_id,
            vpc_id=vpc.ref,
            cidr_block=cidr,
            availability_zone_id=zone,
            map_public_ip_on_launch=False,
            tags=[{"key": "Name", "value": f"{names.PREFIX}-{self.settings.name}-{construct_id}"}]
            + ([{"key": tag, "value": "1"}] if tag else []),
        )
        ec2.CfnSubnetRouteTableAssociation(self, f"{construct_id}Routes", subnet_id=subnet.ref, route_table_id=routes.ref)
        return subnet

    def _way_out(self, vpc: ec2.CfnVPC, private: ec2.CfnRouteTable) -> None:
        """One NAT gateway, in the AZ of the nodes: their traffic stays in it, and without that AZ nothing is left to use another."""
        gateway = ec2.CfnInternetGateway(self, "InternetGateway")
        attached = ec2.CfnVPCGatewayAttachment(self, "InternetGatewayAttachment", vpc_id=vpc.ref, internet_gateway_id=gateway.ref)
        public = ec2.CfnRouteTable(self, "PublicRoutes", vpc_id=vpc.ref)
        route = ec2.CfnRoute(
            self, "PublicDefaultRoute", route_table_id=public.ref, destination_cidr_block="0.0.0.0/0", gateway_id=gateway.ref
        )
        route.add_resource_dependency(attached)
        subnets = [
            self._subnet(f"PublicSubnet{number}", vpc, cidr=cidr, zone=zone, routes=public, tag="kubernetes.io/role/elb")
            for number, (cidr, zone) in enumerate(zip(self._ranges.public, self._zones, strict=True), start=1)
        ]
        address = ec2.CfnEIP(self, "NatAddress", domain="vpc")
        address.add_resource_dependency(attached)
        nat = ec2.CfnNatGateway(self, "Nat", subnet_id=subnets[0].ref, allocation_id=address.attr_allocation_id)
        nat.add_resource_dependency(route)
        ec2.CfnRoute(self, "PrivateDefaultRoute", route_table_id=private.ref, destination_cidr_block="0.0.0.0/0", nat_gateway_id=nat.ref)

    def _endpoints(self, vpc: ec2.CfnVPC, subnets: list[ec2.CfnSubnet], groups: SecurityGroups) -> None:
        observability = self.settings.observability
        services = list(CLOSED_ENDPOINTS)
        if observability.enabled:
            services.append("aps-workspaces")
            if observability.grafana != "none":
                services.append("grafana-workspace")
        group = groups.endpoints(self)
        for service in services:
            ec2.CfnVPCEndpoint(
                self,
                "Endpoint" + "".join(part.capitalize() for part in service.replace(".", "-").split("-")),
                vpc_id=vpc.ref,
                vpc_endpoint_type="Interface",
                service_name=f"com.amazonaws.{self.region}.{service}",
                private_dns_enabled=True,
                security_group_ids=[group.attr_group_id],
                subnet_ids=[subnet.ref for subnet in subnets],
            )

    def _flow_log(self, vpc: ec2.CfnVPC) -> None:
        group = log_group(self, "FlowLogs")
        writer = role(
            self,
            "FlowLogRole",
            # For this account's flow logs alone: https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html
            principal=iam.ServicePrincipal(
                "vpc-flow-logs.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": self.account},
                    "ArnLike": {"aws:SourceArn": f"arn:{self.partition}:ec2:{self.region}:{self.account}:vpc-flow-log/*"},
                },
            ),
            description="Writes the VPC's flow log",
            allow=[
                Allow(
                    ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
                    [group.log_group_arn],
                    why="`:*` names the streams of this one group",
                ),
            ],
        )
        ec2.CfnFlowLog(
            self,
            "FlowLog",
            resource_id=vpc.ref,
            resource_type="VPC",
            traffic_type="REJECT",
            log_destination_type="cloud-watch-logs",
            log_group_name=group.log_group_name,
            deliver_logs_permission_arn=writer.role_arn,
        )

    def _share(self, vpc: str, nodes: str, cluster: list[str] | tuple[str, ...]) -> None:
        self.publish(Shared.VPC, vpc)
        self.publish(Shared.HYPERPOD_SUBNET, nodes)
        for number, subnet in enumerate(cluster, start=1):
            self.publish(Shared.CLUSTER_SUBNET, subnet, number)
