"""Networks and regions that a deploy would fail on are refused on the laptop, each in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.environment import Environment
from config.names import lifecycle_bucket, short_region
from config.problems import Refused
from tests.stacks.conftest import changed

EXISTING: dict[str, object] = {
    "vpc_id": "vpc-0123456789abcdef0",
    "cidr": "10.0.0.0/16",
    "hyperpod_subnet_id": "subnet-0aaaaaaaaaaaaaaa0",
    "cluster_subnet_ids": ["subnet-0bbbbbbbbbbbbbbb1", "subnet-0ccccccccccccccc2"],
}
REGIONS = {
    "ap-northeast-1": "apne1", "ap-southeast-2": "apse2", "ap-south-1": "aps1", "ca-central-1": "cac1", "ca-west-1": "caw1",
    "eu-south-2": "eus2", "us-east-1": "use1", "us-gov-east-1": "usge1", "us-gov-west-1": "usgw1", "us-west-2": "usw2",
}  # fmt: skip


def said(changes: dict[str, object]) -> list[str]:
    """What is refused of the reference environment with these changes."""
    try:
        changed("reference", changes)
    except Refused as refused:
        return [str(problem) for problem in refused.problems]
    return []


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"network.cidr": "10.192.0.0/8"}, "network.cidr", "this is no IPv4 network"),
        ({"network.cidr": "10.0.0.0/8"}, "network.cidr", "between /16 and /24"),
        ({"network.cidr": "10.1.128.0/20"}, "network.hyperpod_cidr", "overlaps network.cidr"),
        ({"network.cidr": "172.16.0.0/16"}, "network.hyperpod_cidr", "choose it from 172.16.0.0/12 or 100.64.0.0/10"),
        ({"network.cidr": "100.64.0.0/16"}, "network.hyperpod_cidr", "choose it from 100.64.0.0/10"),
        ({"network.hyperpod_cidr": "192.168.0.0/16"}, "network.hyperpod_cidr", "to a VPC that begins with 10.192.0.0/16"),
        ({"network.hyperpod_cidr": "198.19.0.0/16"}, "network.hyperpod_cidr", "EC2 does not add it"),
        ({"network.cidr": "10.1.0.0/16", "network.hyperpod_cidr": "10.0.0.0/16"}, "network.hyperpod_cidr", "from 10.2.0.0 upward"),
        ({"network.cidr": "169.254.0.0/16"}, "network.cidr", "EC2 gives a VPC no addresses of that kind"),
        ({"network.hyperpod_cidr": "10.1.0.0/24", "instance_groups.2.count": 6}, "network.hyperpod_cidr", "use a /23"),
        ({"instance_groups.2.count": 3000}, "network.hyperpod_cidr", "lower the groups' counts"),
        ({"network.existing": {**EXISTING, "vpc_id": "vpc-mine"}}, "network.existing.vpc_id", "this is a VPC id"),
        ({"network.existing": {**EXISTING, "cidr": "999.0.0.0/16"}}, "network.existing.cidr", "this is no IPv4 network"),
        ({"network.existing": EXISTING, "network.cidr": "10.0.0.0/16"}, "network.cidr", "leave one of the two out"),
        ({"network.existing": {**EXISTING, "cluster_subnet_ids": ["subnet-0bbbbbbbbbbbbbbb1"] * 2}},
         "network.existing.cluster_subnet_ids", "name each subnet once"),
        ({"network.existing": {**EXISTING, "hyperpod_subnet_id": "subnet-0bbbbbbbbbbbbbbb1"}},
         "network.existing.hyperpod_subnet_id", "not among cluster_subnet_ids"),
        ({"region": "cn-north-1"}, "region", "another partition"),
        ({"region": "us-gov-west-1"}, "region", "another partition"),
        ({"region": "af-south-1"}, "observability.enabled", "not in af-south-1"),
        ({"region": "sa-east-1"}, "observability.grafana", "Amazon Managed Grafana is not in sa-east-1"),
        ({"region": "us-east-1", "network.availability_zone_ids": ["use1-az1", "use1-az3"]}, "network.availability_zone_ids[1]",
         "EKS takes no subnet"),
        ({"network.egress": "closed"}, "access.endpoint", "set private"),
        ({"access.public_cidrs": ["10.0.0.0/8"]}, "access.public_cidrs", "EKS takes no private range"),
        ({"access.public_cidrs": [f"203.0.113.{number}/32" for number in range(41)]}, "access.public_cidrs", "EKS takes at most 40"),
        ({"access.administrators": ["arn:aws-us-gov:iam::111122223333:role/x"]}, "access.administrators[0]", "in another partition"),
        ({"access.training_users": [{"role_arn": "arn:aws:iam::111122223333:role/aws-service-role/eks.amazonaws.com/AWSServiceRoleForX"}]},
         "access.training_users[0].role_arn", "no service-linked role"),
        ({"remote_access.domain": {"name": "r" * 60 + ".example.com", "hosted_zone_id": "Z0123456789ABC"}}, "remote_access.domain.name",
         "at most 64 characters"),
        ({"serving.namespace": "cert-manager"}, "serving.namespace", "belongs to Kubernetes or an operator"),
        ({"ray_cluster.namespace": "jupyter-k8s-system"}, "ray_cluster.namespace", "belongs to Kubernetes or an operator"),
        ({"access.public_cidrs": ["1.2.3.4/8"]}, "access.public_cidrs", "this is no IPv4 network"),
    ],
)  # fmt: skip
def test_a_network_that_fails_in_aws_is_refused_here(changes: dict[str, object], field: str, says: str) -> None:
    lines = said(changes)
    assert any(line.startswith(f"{field} ") and says in line for line in lines), lines


@pytest.mark.parametrize(
    "changes",
    [
        {"network.cidr": "10.0.0.0/16", "network.hyperpod_cidr": "10.2.0.0/16"},
        {"network.cidr": "172.16.0.0/16", "network.hyperpod_cidr": "172.18.0.0/16"},
        {"network.cidr": "192.168.0.0/20", "network.hyperpod_cidr": "100.64.0.0/16"},
        {"network.hyperpod_cidr": "100.64.0.0/16"},
        {"network.existing": EXISTING},
        {"access.public_cidrs": ["0.0.0.0/0", "203.0.113.0/24"]},
        {
            "access.administrators": [
                "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/us-west-2/AWSReservedSSO_Admin_0123456789abcdef"
            ]
        },
    ],
)
def test_what_aws_takes_is_taken(changes: dict[str, object]) -> None:
    assert said(changes) == []


@pytest.mark.parametrize(("region", "short"), REGIONS.items())
def test_regions_are_shortened_as_aws_does_in_its_zones(region: str, short: str) -> None:
    assert short_region(region) == short


@given(
    name=st.from_regex(r"\A[a-z]([-a-z0-9]{0,14}[a-z0-9])?\Z"),
    account=st.from_regex(r"\A[0-9]{12}\Z"),
    regions=st.lists(st.sampled_from(sorted(REGIONS)), min_size=2, max_size=2, unique=True),
)
def test_one_name_in_two_regions_makes_two_buckets_that_s3_takes(name: str, account: str, regions: list[str]) -> None:
    found = {lifecycle_bucket(Environment.model_construct(name=name, account=account, region=region)) for region in regions}
    assert len(found) == 2
    assert all(len(bucket) <= 63 and bucket.startswith("sagemaker-") for bucket in found)
