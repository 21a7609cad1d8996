"""EKS and its add-ons: https://docs.aws.amazon.com/eks/latest/APIReference/"""

from __future__ import annotations

from collections.abc import Iterator

from local.cloud.rules.asking import Asked, absent, eks_cluster, refuses

EKS = "AWS::EKS::Cluster"


@refuses(EKS, "create")
def eks_needs_two_zones(asked: Asked) -> Iterator[str]:
    subnets = list(asked.get("ResourcesVpcConfig/SubnetIds", []))
    yield from absent(asked.cloud, subnets, asked.get("ResourcesVpcConfig/SecurityGroupIds", []))
    zones = {s["AvailabilityZone"] for s in asked.cloud.client("ec2").describe_subnets()["Subnets"] if s["SubnetId"] in subnets}
    if len(zones) < 2:
        yield "Subnets specified must be in at least two different AZs"


def _in_eks(asked: Asked) -> Iterator[str]:
    name = str(asked.get("ClusterName", ""))
    if eks_cluster(asked.cloud, name) is None:
        yield f"No cluster found for name: {name}."


for _type in ("AWS::EKS::Addon", "AWS::EKS::AccessEntry", "AWS::EKS::PodIdentityAssociation"):
    refuses(_type, "create", code="NotFound")(_in_eks)

# Add-ons whose documentation asks for a node that runs first:
# https://docs.aws.amazon.com/sagemaker/latest/dg/hyperpod-observability-addon-setup.html and operator-install.html
NODE_ADDONS = ("amazon-sagemaker-hyperpod-observability", "amazon-sagemaker-spaces")


@refuses("AWS::EKS::Addon", "create", code="GeneralServiceException")
def addon_needs_a_ready_node(asked: Asked) -> Iterator[str]:
    from local.cloud.nodes import ready

    name = asked.get("AddonName")
    if name in NODE_ADDONS and not ready(asked.cloud, str(asked.get("ClusterName"))):
        yield (
            f"Addon {name} in cluster {asked.get('ClusterName')} is in CREATE_FAILED: its pods cannot be scheduled, "
            "because no node is Ready."
        )


@refuses("AWS::EKS::Addon")
def addon_configuration_is_json_or_yaml(asked: Asked) -> Iterator[str]:
    import yaml

    try:
        found = yaml.safe_load(str(asked.get("ConfigurationValues", "{}")))
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        yield "ConfigurationValue provided in request is not supported: Json schema validation failed, it is no object."
