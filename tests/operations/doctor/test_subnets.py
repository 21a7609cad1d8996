"""Subnets: those of a VPC of the user's own, and whether the environment's are where its file wants them by now."""

from __future__ import annotations

from typing import Any

import pytest

from operations.doctor import machine
from tests.operations.conftest import Variant
from tests.operations.doctor.test_checks import EXISTING, VPC, Case, examined, names_in, routes, subnet
from tests.operations.stubs import Says

TO_S3 = {"DestinationPrefixListId": "pl-1", "GatewayId": "vpce-1"}


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "TOOLS", ())


def _made(**changes: str) -> dict[str, Any]:
    """The environment's own subnet of the nodes, as a deploy made it."""
    made = {"SubnetId": "subnet-1", "AvailabilityZoneId": "usw2-az2", "CidrBlock": "10.1.0.0/16", **changes}
    return {"Subnets": [{**made, "Tags": [{"Key": "Name", "Value": "hyperpod-rl-mine-HyperPodSubnet"}]}]}


CASES = [
    Case("subnet", {"ec2:describe_subnets": Says("InvalidSubnetID.NotFound", "The subnet ID 'subnet-9' does not exist")},
         "is not in us-west-2: The subnet ID 'subnet-9' does not exist", "mend network.existing", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_subnets": subnet(4000, zones=("usw2-az1", "usw2-az1"))}, "all lie in usw2-az1, and EKS wants two",
         "mend network.existing", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_subnets": subnet(4000, zones=("use1-az3", "use1-az1"))}, "lies in use1-az3, where EKS takes no subnet",
         "mend network.existing", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_vpcs": {"Vpcs": [{"VpcId": VPC, "CidrBlock": "10.9.0.0/16"}]}},
         "network.existing.cidr is 10.192.0.0/16, and vpc-0123456789abcdef0 has 10.9.0.0/16", "mend network.existing",
         changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_vpc_attribute": names_in(off="enableDnsHostnames")}, "enableDnsHostnames is off",
         "aws ec2 modify-vpc-attribute --region us-west-2 --vpc-id vpc-0123456789abcdef0 --enable-dns-hostnames",
         changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_route_tables": routes({"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"})},
         "(rtb-1) leads to an internet gateway", "name a private subnet", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_route_tables": routes()}, "(rtb-1) leads neither out nor to S3",
         "aws ec2 create-vpc-endpoint --region us-west-2", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_route_tables": routes(TO_S3)}, "(rtb-1) has no way out, and network.egress is nat",
         "add a route to a NAT gateway", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_route_tables": routes(TO_S3), "ec2:describe_vpc_endpoints": {"VpcEndpoints": [
            {"VpcEndpointId": "vpce-2", "ServiceName": "com.amazonaws.us-west-2.eks"}]}},
         "has no endpoint for sagemaker.api, eks-auth, ec2", "--service-name com.amazonaws.us-west-2.sagemaker.api",
         changes={"network.existing": EXISTING, "network.egress": "closed", "access.endpoint": "private"}),
    Case("subnet", {"ec2:describe_subnets": subnet(4000, control=9)}, "subnet-0123456789abcdef1 has 9 addresses left: EKS wants 16",
         "choose a larger subnet", level="warning", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_subnets": subnet(4000, control=5)}, "subnet-0123456789abcdef1 has 5 addresses left, and EKS needs 6",
         "choose a larger subnet", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_subnets": _made(AvailabilityZoneId="usw2-az1")},
         "HyperPodSubnet (subnet-1) lies in usw2-az1, and the environment names usw2-az2", "take it back"),
    Case("subnet", {"ec2:describe_subnets": _made(CidrBlock="10.2.0.0/16")},
         "HyperPodSubnet (subnet-1) has 10.2.0.0/16, and network.hyperpod_cidr is 10.1.0.0/16", "take it back"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says[:40])
def test_what_is_wrong_with_a_subnet_is_said_with_what_mends_it(variant: Variant, case: Case) -> None:
    report = examined(variant(case.changes), case.answers)
    said = [line for line in report.lines if line.check.name == "subnet" and case.says in line.finding.why]
    assert [line.finding.level for line in said][:1] == [case.level], [line.sentence for line in report.lines if line.finding.level != "ok"]
    assert case.fix in said[0].finding.fix


def test_subnets_that_are_where_they_should_be_are_fine(variant: Variant) -> None:
    (line,) = [line for line in examined(variant(), {"ec2:describe_subnets": _made()}).lines if line.check.name == "subnet"]
    assert (line.finding.level, line.finding.why) == ("ok", "the subnets are where the environment wants them")
