"""What costs money by being there, counted from an environment or from its synthesized templates.

Both ways must give the same (a test holds them together): `cost` answers at once without a synthesis, `review` compares two
revisions of which the older one may have another environment model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from config.environment import Environment
from config.network import CLOSED_ENDPOINTS
from config.storage import FileSystem

Template = Mapping[str, Any]


@dataclass(frozen=True)
class Nodes:
    """An instance group: its type, how many, EBS beside the root volume in GiB a node, and how it is paid."""

    group: str
    instance_type: str
    count: int
    volume_gib: int = 0
    training_plan: bool = False
    spot: bool = False


@dataclass(frozen=True)
class Footprint:
    """Counts of everything that has an hourly or monthly price. File system capacity in GiB, throughput in MB/s for each TiB."""

    nodes: tuple[Nodes, ...] = ()
    eks_clusters: int = 0
    file_systems: tuple[tuple[int, int], ...] = ()
    nat_gateways: int = 0
    public_addresses: int = 0
    interface_endpoint_zones: int = 0
    grafana_workspaces: int = 0
    keys: int = 0
    alarms: int = 0


def of_environment(env: Environment) -> Footprint:
    """Count from the environment alone: no synthesis, no account."""
    nodes = tuple(
        Nodes(group.name, group.instance_type, group.count, group.volume_gib, group.training_plan_arn is not None, group.capacity == "spot")
        for group in env.instance_groups
    )
    own_network = env.network.existing is None
    nat = own_network and env.network.egress == "nat"
    closed = own_network and env.network.egress == "closed"
    observed = env.observability.enabled
    grafana = observed and env.observability.grafana != "none"
    endpoints = (len(CLOSED_ENDPOINTS) + observed + grafana) * len(env.network.availability_zone_ids) if closed else 0
    lustre: FileSystem = env.storage.file_system
    return Footprint(
        nodes=nodes,
        eks_clusters=1,
        file_systems=((lustre.capacity_gib, lustre.throughput_mbps_per_tib),),
        nat_gateways=int(nat),
        public_addresses=int(nat),
        interface_endpoint_zones=endpoints,
        grafana_workspaces=int(grafana),
        # Secrets and data; sessions of Spaces and links to Ray.
        keys=2 * (env.storage.encryption == "kms") + 2 * (env.remote_access.domain is not None),
        alarms=int(observed),
    )


def of_templates(templates: Mapping[str, Template]) -> Footprint:
    """Count from the templates of all stacks of an environment."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for kind, properties in _resources(templates):
        found.setdefault(kind, []).append(properties)

    def count(kind: str) -> int:
        return len(found.get(kind, ()))

    return Footprint(
        nodes=tuple(nodes for cluster in found.get("AWS::SageMaker::Cluster", ()) for nodes in _nodes(cluster)),
        eks_clusters=count("AWS::EKS::Cluster"),
        file_systems=tuple(
            (_integer(each.get("StorageCapacity")), _integer(each.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")))
            for each in found.get("AWS::FSx::FileSystem", ())
        ),
        nat_gateways=count("AWS::EC2::NatGateway"),
        public_addresses=count("AWS::EC2::EIP"),
        interface_endpoint_zones=sum(
            len(each.get("SubnetIds", ())) for each in found.get("AWS::EC2::VPCEndpoint", ()) if each.get("VpcEndpointType") == "Interface"
        ),
        grafana_workspaces=count("AWS::Grafana::Workspace"),
        keys=count("AWS::KMS::Key"),
        alarms=count("AWS::CloudWatch::Alarm"),
    )


def _resources(templates: Mapping[str, Template]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for template in templates.values():
        for body in template.get("Resources", {}).values():
            yield str(body.get("Type", "")), body.get("Properties", {})


def _nodes(cluster: Mapping[str, Any]) -> Iterator[Nodes]:
    for group in cluster.get("InstanceGroups", ()):
        volumes = [each.get("EbsVolumeConfig", {}).get("VolumeSizeInGB") for each in group.get("InstanceStorageConfigs", ())]
        yield Nodes(
            group=str(group.get("InstanceGroupName", "")),
            instance_type=str(group.get("InstanceType", "")),
            count=_integer(group.get("InstanceCount")),
            volume_gib=sum(map(_integer, volumes)),
            training_plan="TrainingPlanArn" in group,
            spot="Spot" in group.get("CapacityRequirements", {}),
        )


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | str) and str(value).lstrip("-").isdigit() else 0
