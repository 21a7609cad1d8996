"""Each check: fine where it is, and its sentence where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from operations.aws import Aws
from operations.doctor import addons, machine, quotas, run
from operations.doctor.account import linked_roles
from operations.doctor.run import CHECKS, Report, examine
from tests.operations.conftest import ACCOUNT, Variant
from tests.operations.stubs import Answer, Says, Stubs

NOW = 1_800_000_000.0
DIGEST = "sha256:" + "a" * 64
PLAN = f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:training-plan/p-1"
OFFERED = [{"InstanceType": kind, "Location": "usw2-az2"} for kind in ("m5.4xlarge", "r5d.16xlarge", "g7e.12xlarge")]
QUOTAS = {f"ml.{item['InstanceType']} for cluster usage": 20 for item in OFFERED}
DOMAIN = {"name": "ray.example.com", "hosted_zone_id": "Z0123456789ABCDEFGHIJ"}
EXISTING = {
    "vpc_id": "vpc-0123456789abcdef0", "cidr": "10.192.0.0/16", "hyperpod_subnet_id": "subnet-0123456789abcdef0",
    "cluster_subnet_ids": ["subnet-0123456789abcdef1", "subnet-0123456789abcdef2"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting kubectl and helm for each line here would cost more than all else; test_machine.py looks at the programs."""
    monkeypatch.setattr(machine, "TOOLS", machine.TOOLS[:1])


def _quota(name: str, value: float, code: str = "L-00000000") -> dict[str, Any]:
    return {"QuotaName": name, "QuotaCode": code, "Value": value}


def _single(values: dict[str, float]) -> Callable[[Any], dict[str, Any]]:
    return lambda given: {"Quota": _quota("one", values[given["QuotaCode"]], given["QuotaCode"])}


VALUES = {quotas.PER_CLUSTER: 20.0, quotas.IN_TOTAL: 30.0, quotas.VOLUME: 1024.0, quotas.ADDRESSES: 5.0, quotas.NETWORKS: 5.0}


VPC, NODES = str(EXISTING["vpc_id"]), str(EXISTING["hyperpod_subnet_id"])
CONTROL = [str(name) for name in EXISTING["cluster_subnet_ids"]]


def subnet(free: int, vpc: str = VPC, *, zones: tuple[str, str] = ("usw2-az2", "usw2-az1"), control: int = 200) -> dict[str, Any]:
    """The user's own subnets: that of the nodes with so many free addresses, those of the control plane in these zones."""
    places = [(NODES, "usw2-az2", free), *((name, zone, control) for name, zone in zip(CONTROL, zones, strict=True))]
    return {"Subnets": [{"SubnetId": name, "VpcId": vpc, "AvailabilityZoneId": zone, "AvailableIpAddressCount": count}
                        for name, zone, count in places]}  # fmt: skip


def routes(*gateways: dict[str, str]) -> dict[str, Any]:
    return {"RouteTables": [
        {"RouteTableId": "rtb-main", "Associations": [{"Main": True}], "Routes": []},
        {"RouteTableId": "rtb-1", "Associations": [{"SubnetId": NODES}], "Routes": [
            {"DestinationCidrBlock": "10.192.0.0/16", "GatewayId": "local"}, *gateways]},
    ]}  # fmt: skip


CERTIFICATE = "arn:aws:acm:us-west-2:123456789012:certificate/1"
OUT = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1"}


def _vpcs(given: Any) -> dict[str, Any]:
    """None but the one that is asked for."""
    return {"Vpcs": [{"VpcId": name, "CidrBlock": "10.192.0.0/16"} for name in given.get("VpcIds", ())]}


def names_in(off: str = "") -> Callable[[Any], dict[str, Any]]:
    return lambda given: {given["Attribute"][0].upper() + given["Attribute"][1:]: {"Value": given["Attribute"] != off}}


def good(env: Any) -> dict[str, Answer | Says]:
    """An account in which nothing is wrong."""
    pinned = addons.wanted(env)
    return {
        "sts:get_caller_identity": {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:role/Deployer", "UserId": "U"},
        "ssm:get_parameter": {"Parameter": {"Name": "n", "Value": "28"}},
        "iam:get_role": lambda given: {"Role": {"RoleName": given["RoleName"]}},
        "service-quotas:list_service_quotas": {"Quotas": [_quota(name, value) for name, value in QUOTAS.items()]},
        "service-quotas:get_service_quota": _single(VALUES),
        "sagemaker:list_clusters": {"ClusterSummaries": []},
        "sagemaker:describe_training_plan": {
            "Status": "Active", "AvailableInstanceCount": 3, "EndTime": datetime(2027, 3, 1, 11, 30, tzinfo=UTC),
            "TargetResources": ["hyperpod-cluster"],
            "ReservedCapacitySummaries": [{"InstanceType": "ml.g7e.12xlarge", "Status": "Active", "AvailabilityZoneId": "usw2-az2"}],
        },
        "ec2:describe_vpcs": _vpcs,
        "ec2:describe_vpc_attribute": names_in(),
        "ec2:describe_route_tables": routes(OUT),
        "ec2:describe_vpc_endpoints": {"VpcEndpoints": []},
        "ec2:describe_addresses": {"Addresses": []},
        "ec2:describe_instance_type_offerings": {"InstanceTypeOfferings": OFFERED},
        "ec2:describe_subnets": subnet(4000),
        "eks:describe_addon_versions": lambda given: {
            "addons": [{"addonName": given["addonName"], "addonVersions": [{"addonVersion": pinned[given["addonName"]]}]}]
        },
        "sso-admin:list_instances": {"Instances": [{"OwnerAccountId": "999999999999", "Status": "ACTIVE"}]},
        "organizations:describe_organization": {"Organization": {"MasterAccountId": "999999999999"}},
        "route53:get_hosted_zone": {"HostedZone": {"Id": "Z", "Name": "example.com.", "CallerReference": "c"}},
        "acm:list_certificates": {"CertificateSummaryList": [
            {"DomainName": "ray.example.com", "CertificateArn": CERTIFICATE, "Status": "ISSUED"}]},
        "ecr:describe_images": {"imageDetails": [{"imageDigest": DIGEST}]},
    }  # fmt: skip


def examined(env: Any, changed: dict[str, Answer | Says], *, now: float = NOW) -> Report:
    return examine(env, session=Stubs({**good(env), **changed}, clock=lambda: NOW).session(), now=lambda: now)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"remote_access.domain": DOMAIN},
        {"image.digest": DIGEST},
        {"instance_groups.2.training_plan_arn": PLAN},
        {"network.existing": EXISTING},
        {"observability.grafana": "none"},
        {"observability.enabled": False},
    ],
    ids=str,
)
def test_where_nothing_is_wrong_every_line_is_ok(variant: Variant, changes: dict[str, object]) -> None:
    report = examined(variant(changes), {})
    assert [line.sentence for line in report.lines if line.finding.level != "ok"] == []
    assert report.exit_code == 0
    assert {line.check.name for line in report.lines} == {"credentials", *(check.name for check in CHECKS)}


@dataclass(frozen=True)
class Case:
    """What is wrong, and what the user reads: parts of the sentence and of its remedy."""

    check: str
    answers: dict[str, Answer | Says]
    says: str
    fix: str
    level: str = "failed"
    changes: dict[str, object] | None = None
    now: float = NOW


NO_ZONE = [item for item in OFFERED if item["InstanceType"] != "g7e.12xlarge"]
OTHERS = {
    "sagemaker:list_clusters": {"ClusterSummaries": [{"ClusterName": "hyperpod-rl-mine"}, {"ClusterName": "theirs"}]},
    "sagemaker:describe_cluster": {
        "InstanceGroups": [{"InstanceGroupName": "w", "InstanceType": "ml.g7e.12xlarge", "CurrentCount": 18, "TargetCount": 19}]
    },
}
CASES = [
    Case(
        "credentials", {"sts:get_caller_identity": {"Account": "999999999999", "Arn": "arn:aws:iam::999999999999:user/me"}},
        "environment mine is in account 123456789012, and the credentials belong to 999999999999", "AWS_PROFILE",
    ),
    Case("bootstrap", {"ssm:get_parameter": Says("ParameterNotFound")}, "is not bootstrapped in us-west-2",
         "cdk bootstrap aws://123456789012/us-west-2"),
    Case("bootstrap", {"ssm:get_parameter": {"Parameter": {"Value": "5"}}}, "has version 5, and the stacks need 6", "cdk bootstrap"),
    Case("service-linked-roles", {"iam:get_role": Says("NoSuchEntity")}, "AWSServiceRoleForAmazonFSx is not there yet",
         "aws iam create-service-linked-role --aws-service-name fsx.amazonaws.com", level="warning"),
    Case("identity-center", {"sso-admin:list_instances": {"Instances": []}}, "no instance is seen in any region",
         "set observability.grafana to saml or none"),
    Case("identity-center", {"sso-admin:list_instances": {"Instances": [{"OwnerAccountId": ACCOUNT}]}}, "belongs to this account alone",
         "management account"),
    Case(
        "quota-instances",
        {"service-quotas:list_service_quotas": {"Quotas": [_quota(n, 0 if "g7e" in n else 9, "L-1") for n in QUOTAS]}},
        "`ml.g7e.12xlarge for cluster usage` is 0, and environment mine asks for 3",
        "request-service-quota-increase --region us-west-2 --service-code sagemaker --quota-code L-1 --desired-value 3",
    ),
    Case("quota-instances", OTHERS, "is 20, and environment mine asks for 3 beside 19 in use", "--desired-value 22"),
    Case(
        "quota-instances",
        {"service-quotas:list_service_quotas": {"Quotas": [_quota("ml.m5.4xlarge for cluster usage", 9)]}},
        "there is no quota named `ml.r5d.16xlarge for cluster usage`", "servicequotas/home/services/sagemaker/quotas", level="warning",
    ),
    Case("quota-cluster", {"service-quotas:get_service_quota": _single({**VALUES, quotas.PER_CLUSTER: 5})},
         "instances per HyperPod cluster is 5, and environment mine asks for 6", f"--quota-code {quotas.PER_CLUSTER} --desired-value 6"),
    Case("quota-cluster", {**OTHERS, "service-quotas:get_service_quota": _single({**VALUES, quotas.IN_TOTAL: 20})},
         "instances in all HyperPod clusters is 20, and environment mine asks for 6 beside 19 in use", "--desired-value 25"),
    Case("quota-cluster", {}, "EBS volume per instance (group workers) is 1024, and environment mine asks for 2000", "--desired-value 2000",
         changes={"instance_groups.2.volume_gib": 2000}),
    Case("quota-network", {"ec2:describe_vpcs": {"Vpcs": [{"VpcId": f"vpc-{n}"} for n in range(5)]}},
         "VPCs per Region is 5, and environment mine asks for 1 beside 5 in use", "--service-code vpc"),
    Case("quota-network", {"ec2:describe_addresses": {"Addresses": [{"AllocationId": f"a-{n}"} for n in range(5)]}},
         "Elastic IP addresses is 5", "--service-code ec2"),
    Case("offerings", {"ec2:describe_instance_type_offerings": {
            "InstanceTypeOfferings": [*NO_ZONE, {"InstanceType": "g7e.12xlarge", "Location": "usw2-az1"}]}},
         "ml.g7e.12xlarge is not offered in usw2-az2, but in usw2-az1", "network.availability_zone_ids"),
    Case("offerings", {"ec2:describe_instance_type_offerings": {"InstanceTypeOfferings": NO_ZONE}}, "nor anywhere in us-west-2",
         "choose another region"),
    Case("capacity", {"sagemaker:describe_training_plan": Says("ResourceNotFound")}, "there is no training plan p-1", "training-plans",
         changes={"instance_groups.2.training_plan_arn": PLAN}),
    Case("capacity", {"sagemaker:describe_training_plan": {"Status": "Expired"}}, "training plan p-1 is expired", "training-plans",
         changes={"instance_groups.2.training_plan_arn": PLAN}),
    Case("capacity", {"sagemaker:describe_training_plan": {"Status": "Active", "AvailableInstanceCount": 2}},
         "holds 2 instances, and 3 are asked for", "training-plans", changes={"instance_groups.2.training_plan_arn": PLAN}),
    Case("capacity", {"sagemaker:describe_training_plan": {
            "Status": "Active", "AvailableInstanceCount": 9, "ReservedCapacitySummaries": [{"InstanceType": "ml.p5.48xlarge"}]}},
         "is for ml.p5.48xlarge, not ml.g7e.12xlarge", "training-plans", changes={"instance_groups.2.training_plan_arn": PLAN}),
    Case("capacity", {"sagemaker:describe_training_plan": {
            "Status": "Active", "AvailableInstanceCount": 9, "TargetResources": ["training-job"]}},
         "is for training-job, not for HyperPod", "training-plans", changes={"instance_groups.2.training_plan_arn": PLAN}),
    Case("capacity", {"sagemaker:describe_training_plan": {
            "Status": "Active", "AvailableInstanceCount": 9, "ReservedCapacitySummaries": [
                {"InstanceType": "ml.g7e.12xlarge", "AvailabilityZoneId": "usw2-az3"}]}},
         "has its capacity in usw2-az3, and the nodes live in usw2-az2", "network.availability_zone_ids",
         changes={"instance_groups.2.training_plan_arn": PLAN}),
    Case("capacity", {"sagemaker:describe_training_plan": {"Status": "Scheduled", "AvailableInstanceCount": 3}}, "is scheduled",
         "training-plans", level="warning", changes={"instance_groups.2.training_plan_arn": PLAN}),
    Case("subnet", {"ec2:describe_subnets": subnet(100)}, "the nodes take up to 200 addresses, and subnet-0123456789abcdef0 has 100 left",
         "choose a larger subnet", changes={"network.existing": EXISTING}),
    Case("subnet", {"ec2:describe_subnets": subnet(4000, vpc="vpc-1")}, "lies in vpc-1, not in vpc-0123456789abcdef0",
         "mend network.existing", changes={"network.existing": EXISTING}),
    Case("nodes", {}, "ml.m5.large takes 9 pods, and about 11 daemon pods come first", "choose a larger instance type",
         changes={"instance_groups.0.instance_type": "ml.m5.large"}),
    Case("addons", {"eks:describe_addon_versions": lambda given: {"addons": [{"addonVersions": [{"addonVersion": "v0.0.1"}]}]}},
         "coredns v1.12.3-eksbuild.1 does not exist for Kubernetes 1.34: the newest is v0.0.1",
         "aws eks describe-addon-versions --kubernetes-version 1.34"),
    Case("domain", {"route53:get_hosted_zone": Says("NoSuchHostedZone")}, "there is no hosted zone Z0123456789ABCDEFGHIJ", "route53",
         changes={"remote_access.domain": DOMAIN}),
    Case("domain", {"route53:get_hosted_zone": {"HostedZone": {"Id": "Z", "Name": "other.org.", "CallerReference": "c"}}},
         "is other.org, and remote_access.domain.name is ray.example.com", "mend one", changes={"remote_access.domain": DOMAIN}),
    Case("domain", {"route53:get_hosted_zone": {"HostedZone": {
            "Id": "Z", "Name": "example.com.", "CallerReference": "c", "Config": {"PrivateZone": True}}}},
         "example.com is private", "route53", changes={"remote_access.domain": DOMAIN}),
    Case("domain", {"acm:list_certificates": {"CertificateSummaryList": [
            {"DomainName": "ray.example.com", "CertificateArn": CERTIFICATE, "Status": "PENDING_VALIDATION"}]}},
         "the certificate for ray.example.com is pending validation",
         "aws acm describe-certificate --region us-west-2 --certificate-arn arn:aws:acm",
         level="warning", changes={"remote_access.domain": DOMAIN}),
    Case("image", {"ecr:describe_images": Says("RepositoryNotFoundException")}, "there is no repository", "image build", level="warning"),
    Case("image", {"ecr:describe_images": Says("ImageNotFoundException")}, "is not built yet", "hyperpod-rl --env mine image build",
         level="warning"),
    Case("image", {"ecr:describe_images": Says("ImageNotFoundException")}, "which image.digest pins, is not in", "image build",
         changes={"image.digest": DIGEST}),
    Case("clock", {}, "this machine's clock is +400 s off; AWS refuses signatures", "synchronise it", now=NOW + 400),
    Case("clock", {}, "this machine's clock is -60 s off", "synchronise it", level="warning", now=NOW - 60),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}: {case.says[:40]}")
def test_what_is_wrong_is_said_with_what_mends_it(variant: Variant, case: Case) -> None:
    report = examined(variant(case.changes), case.answers, now=case.now)
    said = [line for line in report.lines if line.check.name == case.check and case.says in line.finding.why]
    assert len(said) == 1, [line.sentence for line in report.lines if line.finding.level != "ok"]
    assert said[0].finding.level == case.level
    assert case.fix in said[0].finding.fix
    assert report.exit_code == (1 if case.level == "failed" else 0)
    if not case.changes:
        others = {line.check.name for line in report.lines if line.finding.level != "ok"} - {case.check}
        assert others <= {"quota-instances", "quota-cluster"}, "nothing else is blamed"


def test_a_certificate_that_the_stacks_will_ask_for_is_nobodys_task(variant: Variant) -> None:
    report = examined(variant({"remote_access.domain": DOMAIN}), {"acm:list_certificates": {"CertificateSummaryList": []}})
    said = [line for line in report.lines if line.check.name == "domain"]
    assert {line.finding.level for line in said} == {"ok"}
    assert any("the stack Platform asks for it" in line.finding.why for line in said)


def test_every_check_is_seen_to_fail_or_to_warn() -> None:
    assert {case.check for case in CASES} | {"tools"} == {"credentials", *(check.name for check in CHECKS)}


def test_a_caller_who_may_not_ask_hears_which_permission_is_missing(variant: Variant) -> None:
    report = examined(variant(), {"iam:get_role": Says("AccessDenied", "not authorized")})
    (line,) = (line for line in report.lines if line.check.name == "service-linked-roles")
    assert (line.finding.level, line.finding.looked) == ("warning", False)
    assert line.finding.fix == "use a role that may call iam:get_role"
    assert report.exit_code == 0


def test_no_call_changes_anything(variant: Variant) -> None:
    env = variant({"remote_access.domain": DOMAIN, "instance_groups.2.training_plan_arn": PLAN})
    stubs = Stubs(good(env))
    examine(env, session=stubs.session())
    assert stubs.asked
    assert {name.partition(":")[2].partition("_")[0] for name, _ in stubs.asked} <= {"get", "list", "describe"}


def test_the_service_linked_roles_follow_what_the_environment_has(variant: Variant) -> None:
    assert "AWSServiceRoleForElasticLoadBalancing" in linked_roles(variant({"remote_access.domain": DOMAIN}))
    assert "AWSServiceRoleForAmazonGrafana" not in linked_roles(variant({"observability.grafana": "none"}))


def test_an_identity_center_of_another_region_counts(variant: Variant) -> None:
    env = variant()
    asked: list[str] = []

    def regional(_: Any) -> dict[str, Any]:
        # The environment's own region is asked first; one of the others has the organization's instance.
        asked.append("x")
        return {"Instances": [] if len(asked) == 1 else [{"OwnerAccountId": "999999999999", "Status": "ACTIVE"}]}

    report = examined(env, {"sso-admin:list_instances": regional})
    assert [line.finding.level for line in report.lines if line.check.name == "identity-center"] == ["ok"]
    assert len(asked) > 10


NOT_ENABLED = "The security token included in the request is invalid"


@pytest.mark.parametrize(
    ("code", "message", "fix"),
    [
        ("ExpiredToken", "The security token included in the request is expired", "sign in again (aws sso login"),
        ("InvalidClientTokenId", NOT_ENABLED, "check the credentials, and that the account has us-west-2 enabled"),
        ("Throttling", "Rate exceeded", "AWS wants fewer calls: run it again in a minute"),
        ("AccessDenied", "explicit deny in a service control policy", "use a role that may call sts:get_caller_identity"),
    ],
)
def test_credentials_that_aws_refuses_are_answered_with_what_mends_them(
    variant: Variant, monkeypatch: pytest.MonkeyPatch, code: str, message: str, fix: str
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)  # before what is throttled is asked again
    report = examined(variant(), {"sts:get_caller_identity": Says(code, message)})
    finding = report.lines[0].finding
    assert (finding.level, finding.why) == ("failed", f"AWS cannot be asked: {message}")
    assert finding.fix.startswith(fix)
    assert report.exit_code == 3
    assert {line.check.name for line in report.lines if line.finding.looked and line.finding.level == "ok"} == {"tools", "nodes", "clock"}


def test_a_region_that_the_account_has_not_enabled_is_named(variant: Variant) -> None:
    env, stubs = variant(), Stubs({}, clock=lambda: NOW)

    def by_region(_: Any) -> dict[str, Any]:
        if len(stubs.asked) == 1:
            raise Says("InvalidClientTokenId", NOT_ENABLED)
        return {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/me", "UserId": "u"}

    stubs.answers["sts:get_caller_identity"] = by_region
    finding = examine(env, session=stubs.session(), now=lambda: NOW).lines[0].finding
    assert finding.why.endswith(f"in us-east-1 it takes the credentials, so the region is not enabled for account {ACCOUNT}")
    assert finding.fix == "aws account enable-region --region-name us-west-2"


def test_a_clock_that_aws_refuses_is_told_from_the_refusal_itself(variant: Variant) -> None:
    refusal = Says("SignatureDoesNotMatch", "Signature expired: 20270115T080000Z is now earlier than 20270115T081500Z")
    report = examined(variant(), {"sts:get_caller_identity": refusal}, now=NOW - 1800)
    assert report.lines[0].finding.fix == "set this machine's clock (chrony, ntpd)"
    (line,) = (line for line in report.lines if line.check.name == "clock")
    assert (line.finding.level, line.finding.why.partition(";")[0]) == ("failed", "this machine's clock is -1800 s off")


def test_each_call_that_is_denied_costs_its_own_lines_only(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "TOOLS", ())
    env = variant({"remote_access.domain": DOMAIN, "instance_groups.2.training_plan_arn": PLAN})
    fine = good(env)
    stubs = Stubs(dict(fine), clock=lambda: NOW)
    session, aws = stubs.session(), {}
    monkeypatch.setattr(run, "Aws", lambda env, session: aws.setdefault("one", Aws(env, session)))
    for name in fine.keys() - {"sts:get_caller_identity"}:
        stubs.answers = {**fine, name: Says("AccessDeniedException", "not authorized")}
        report = examine(env, session=session, now=lambda: NOW)
        blind = [line for line in report.lines if not line.finding.looked]
        assert {line.finding.fix for line in blind} <= {f"use a role that may call {name}"}
        assert len({line.check.name for line in blind}) <= 2
        assert {line.check.name for line in report.lines} == {"credentials", *(check.name for check in CHECKS)} - {"tools"}
        assert report.exit_code == 0, name
