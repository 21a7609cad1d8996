"""Every `Resource: "*"` and every wildcard action of our roles stands in one short list, with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.stacks.assembly import Assembly

# Action -> why no resource can be named. Reasons are AWS's service authorization reference
# (https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html).
EVERYWHERE = {
    "aps:ListWorkspaces": "a list names no workspace",
    "cloudwatch:DescribeAlarms": "alarms of other names are read along; the action on one name would need its name",
    "cloudwatch:GetMetricData": "no resource",
    "cloudwatch:ListMetrics": "no resource",
    "tag:GetResources": "no resource",
    "ec2:DescribeDhcpOptions": "no resource",
    "ec2:DescribeInstanceTypes": "no resource",
    "ec2:DescribeInstances": "no resource",
    "ec2:DescribeNetworkInterfaces": "no resource",
    "ec2:DescribeSecurityGroups": "no resource",
    "ec2:DescribeSubnets": "no resource",
    "ec2:DescribeTags": "no resource",
    "ec2:DescribeVpcs": "no resource",
    "ec2:DescribeAccountAttributes": "no resource",
    "ec2:DescribeAvailabilityZones": "no resource",
    "ec2:DescribeInternetGateways": "no resource",
    "ec2:DescribeRouteTables": "no resource",
    "ec2:GetSecurityGroupsForVpc": "groups of no name yet",
    "acm:ListCertificates": "a list names no certificate",
    "route53:ListHostedZones": "a list names no zone",
    "route53:ListResourceRecordSets": "External DNS looks through the zones that it finds",
    "route53:ListTagsForResource": "External DNS looks through the zones that it finds",
    **dict.fromkeys(
        (
            f"elasticloadbalancing:Describe{what}"
            for what in (
                "CapacityReservation",
                "ListenerAttributes",
                "ListenerCertificates",
                "Listeners",
                "LoadBalancerAttributes",
                "LoadBalancers",
                "Rules",
                "SSLPolicies",
                "Tags",
                "TargetGroupAttributes",
                "TargetGroups",
                "TargetHealth",
            )
        ),
        "no resource",
    ),
    "ecr:GetAuthorizationToken": "no resource",
    "fsx:DescribeBackups": "the action knows no backup before it is made",
    "logs:GetLogRecord": "no resource",
    "logs:GetQueryResults": "no resource",
    "logs:StopQuery": "no resource",
    "sagemaker:ListClusters": "a list names no cluster",
    "sagemaker:ListApps": "no resource",
    "sagemaker:ListSpaces": "no resource",
    "sagemaker:ListUserProfiles": "no resource",
}
# Actions with a wildcard -> (type of resource that carries the policy, why).
WILDCARD_ACTIONS = {
    "kms:*": ("AWS::KMS::Key", "a key's own policy: it leaves the key to the account's IAM policies, without which nobody could use it"),
    "s3:*": ("AWS::S3::BucketPolicy", "a refusal: nothing without TLS"),
}
# Who may take on another role, and why: whoever may, may all that the other may.
HANDING_ON = {
    ("PlanRole", "iam:PassRole"): "a change set names the role that would execute it; only CloudFormation can be given it",
    ("PlanRole", "sts:AssumeRole"): "the bootstrap's roles for publishing templates and for looking things up",
    ("DeployRole", "sts:AssumeRole"): "the bootstrap's roles, which is what a deploy is",
    ("LoadBalancerRole", "iam:CreateServiceLinkedRole"): "the one role of Elastic Load Balancing, in an account that never had one",
}
Statement = dict[str, Any]


def statements(assembly: Assembly) -> Iterator[tuple[str, str, Statement]]:
    """(resource, its type, statement) of every policy of the assembly: those of identities and those of resources."""
    for stack, template in assembly.templates.items():
        for logical, body in template["Resources"].items():
            properties = body.get("Properties", {})
            documents = [policy["PolicyDocument"] for policy in properties.get("Policies", []) if "PolicyDocument" in policy]
            documents += [properties[name] for name in ("PolicyDocument", "KeyPolicy", "AssumeRolePolicyDocument") if name in properties]
            for document in documents:
                for statement in document["Statement"]:
                    yield f"{stack}/{logical}", body["Type"], statement


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def open_to_all(assembly: Assembly) -> dict[str, set[str]]:
    """Actions that a role may do on every resource, and the roles that may."""
    found: dict[str, set[str]] = {}
    for name, kind, statement in statements(assembly):
        if kind in ("AWS::IAM::Role", "AWS::IAM::Policy") and "*" in listed(statement.get("Resource", [])):
            for action in listed(statement["Action"]):
                found.setdefault(action, set()).add(name)
    return found


def test_every_wildcard_resource_is_in_the_list(assembly: Assembly, everything: Assembly) -> None:
    for made in (assembly, everything):
        assert {action: names for action, names in open_to_all(made).items() if action not in EVERYWHERE} == {}


def test_the_list_holds_nothing_that_no_role_asks_for(assemblies: Callable[[str], Assembly], everything: Assembly) -> None:
    used = {action for made in (assemblies("reference"), assemblies("local"), everything) for action in open_to_all(made)}
    assert set(EVERYWHERE) - used == set()
    assert all(EVERYWHERE.values())


def test_every_wildcard_action_is_in_the_list(assembly: Assembly, everything: Assembly) -> None:
    found = {
        (action, kind, statement["Effect"])
        for made in (assembly, everything)
        for _, kind, statement in statements(made)
        for action in listed(statement["Action"])
        if "*" in action
    }
    assert {(action, kind) for action, kind, _ in found} <= {(action, kind) for action, (kind, _) in WILDCARD_ACTIONS.items()}
    assert {effect for action, _, effect in found if action == "s3:*"} == {"Deny"}


def test_no_role_may_hand_on_a_role_or_change_a_policy(assembly: Assembly, everything: Assembly) -> None:
    """Whoever can do one of these can do everything."""
    steps = ("iam:", "sts:AssumeRole", "lambda:UpdateFunctionCode", "organizations:")
    found = [
        (name, action)
        for made in (assembly, everything)
        for name, kind, statement in statements(made)
        if kind in ("AWS::IAM::Role", "AWS::IAM::Policy") and "Resource" in statement
        for action in listed(statement["Action"])
        if action.startswith(steps) and (re.sub(r"[0-9A-F]{8}$", "", name.partition("/")[2]), action) not in HANDING_ON
    ]
    assert found == []


def test_nobody_is_trusted_without_a_name(assembly: Assembly, everything: Assembly) -> None:
    for made in (assembly, everything):
        for name, kind, statement in statements(made):
            if statement["Effect"] == "Allow" and "Principal" in statement and not _by_the_service_alone(kind, statement):
                assert "*" not in json.dumps(statement["Principal"]).replace('"arn:', ""), f"{kind} {name}"


def _by_the_service_alone(kind: str, statement: Statement) -> bool:
    """A key that FSx's service-linked role uses: its name is not known before its file system, so its account and service are named."""
    condition = statement.get("Condition", {})
    equal, like = condition.get("StringEquals", {}), condition.get("StringLike", {})
    named = equal.get("kms:CallerAccount") == "111122223333" and str(equal.get("kms:ViaService")).startswith("s3.")
    return kind == "AWS::KMS::Key" and named and like.get("aws:userid") == "*:FSx" and "kms:EncryptionContext:aws:s3:arn" in like


def test_fsx_may_use_the_key_of_the_bucket_that_it_exports_to(assemblies: Callable[[str], Assembly]) -> None:
    """Without it the production environment exports nothing: S3 answers FSx with 403."""
    made = assemblies("production")
    bucket = made.one("AWS::FSx::DataRepositoryAssociation")["DataRepositoryPath"]
    assert "Artifacts" in json.dumps(bucket)
    key = made.one("AWS::KMS::Key", "Data")
    (statement,) = [item for item in key["KeyPolicy"]["Statement"] if item.get("Sid") == "ExportOfTheFileSystem"]
    assert {"kms:GenerateDataKey", "kms:Decrypt", "kms:DescribeKey"} <= set(statement["Action"])
    assert statement["Principal"] == {"AWS": "*"}
    assert _by_the_service_alone("AWS::KMS::Key", statement)
    assert "hyperpod-rl-production-111122223333-us-west-2" in json.dumps(statement["Condition"])


# Services that anybody's account can ask to act, and what their documentation has a trust policy name. HyperPod is not among them
# (stacks/hyperpod.py says why), nor are Lambda, EKS and Step Functions, whose roles nobody hands over who may not pass them.
NARROWED = {
    "vpc-flow-logs.amazonaws.com": {"aws:SourceAccount", "aws:SourceArn"},
    "codebuild.amazonaws.com": {"aws:SourceAccount", "aws:SourceArn"},
    "grafana.amazonaws.com": {"aws:SourceAccount"},
    "pods.eks.amazonaws.com": {"aws:SourceAccount", "aws:SourceArn"},
}
UNNARROWED = {
    "lambda.amazonaws.com",
    "eks.amazonaws.com",
    "states.amazonaws.com",
    "sagemaker.amazonaws.com",
    "hyperpod.sagemaker.amazonaws.com",
}


def test_no_service_can_be_made_a_confused_deputy(assembly: Assembly, everything: Assembly) -> None:
    """https://docs.aws.amazon.com/IAM/latest/UserGuide/confused-deputy.html"""
    seen = set()
    for made in (assembly, everything):
        for name, kind, statement in statements(made):
            service = statement.get("Principal", {}).get("Service") if kind == "AWS::IAM::Role" else None
            if not isinstance(service, str):
                continue
            keys = {key for tests in statement.get("Condition", {}).values() for key in tests}
            assert service in UNNARROWED or NARROWED[service] <= keys, name
            seen.add(service)
    assert set(NARROWED) <= seen


def test_the_collector_reads_and_writes_its_own_clusters_logs_alone(everything: Assembly) -> None:
    (name,) = [name for name in everything.resources("AWS::IAM::Role", "Observability") if "Collector" in name]
    found = [statement for where, _, statement in statements(everything) if where == name and "Resource" in statement]
    for statement in found:
        if any(action in listed(statement["Action"]) for action in ("logs:PutLogEvents", "logs:GetLogEvents", "logs:StartQuery")):
            assert all(
                ":log-group:/aws/sagemaker/Clusters/hyperpod-rl-reference/*" in json.dumps(each) for each in listed(statement["Resource"])
            )


def test_pods_are_trusted_for_this_account_and_this_cluster_alone(assembly: Assembly) -> None:
    found = [
        statement
        for _, _, statement in statements(assembly)
        if statement.get("Principal", {}) == {"Service": "pods.eks.amazonaws.com"}  # type: ignore[comparison-overlap]
    ]
    assert len(found) >= 2
    for statement in found:
        assert set(listed(statement["Action"])) == {"sts:AssumeRole", "sts:TagSession"}
        assert set(statement["Condition"]) == {"StringEquals", "ArnEquals"}
