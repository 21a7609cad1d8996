"""Random accounts with several environments and strangers in them: everything of ours is listed, and nothing of anybody else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import names
from config.environment import Environment
from config.names import Stack
from operations.aws import Unanswered
from operations.leaks.leak import Ours
from operations.leaks.scan import scan
from tests.operations.conftest import ACCOUNT, Variant

# Names that begin or continue each other, and one that looks like a stack's.
OTHERS = ("mine-b", "min", "mine-network", "mine-image", "reference")


@dataclass
class Account:
    """An account as `Aws` shows it, from lists by operation; what is not there is an empty list."""

    lists: dict[str, list[Any]] = field(default_factory=dict)
    tags: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def add(self, operation: str, item: Any) -> None:
        self.lists.setdefault(operation, []).append(item)

    def pages(self, service: str, operation: str, key: str, /, **given: Any) -> Iterator[Any]:
        if operation in ("list_resource_tags", "list_role_tags"):
            yield from self.tags.get(given.get("KeyId") or given["RoleName"], ())
            return
        for item in self.lists.get(f"{service}:{operation}", ()):
            if operation == "get_parameters_by_path" and not item["Name"].startswith(given["Path"]):
                continue
            if operation == "describe_log_groups" and not item["logGroupName"].startswith(given["logGroupNamePrefix"]):
                continue
            yield item

    def call(self, service: str, operation: str, /, **given: Any) -> Mapping[str, Any]:
        match operation:
            case "describe_tags":
                return {"TagDescriptions": [{"ResourceArn": arn, "LoadBalancerName": arn, "Tags": self.tags.get(arn, [])}
                                            for arn in given.get("ResourceArns", given.get("LoadBalancerNames", []))]}  # fmt: skip
            case "batch_get_projects":
                return {"projects": [{"name": name, "tags": [{"key": t["Key"], "value": t["Value"]} for t in self.tags.get(name, [])]}
                                     for name in given["names"]]}  # fmt: skip
            case "list_tags_for_resource":
                return {"tags": self.tags.get(given["resourceArn"], [])}
            case "list_tags_for_certificate":
                return {"Tags": self.tags.get(given["CertificateArn"], [])}
            case "describe_key":
                return {"KeyMetadata": {"KeyManager": "CUSTOMER", "KeyState": "Enabled", "Arn": given["KeyId"]}}
        raise Unanswered(f"{service}:{operation}", "404", "not there")


OWNER = st.sampled_from(("mine", *OTHERS, ""))  # "" is a stranger
KINDS = (
    "interface", "group", "endpoint", "balancer", "target", "volume", "snapshot", "file-system", "backup", "repository", "logs", "role",
    "function", "parameter", "grafana", "prometheus", "project", "domain", "stack", "hyperpod", "eks", "key", "alarm", "bucket", "vpc",
    "machine", "certificate", "budget", "delivery", "studio-group", "topic",
)  # fmt: skip


def _tags(draw: st.DrawFn, owner: str) -> dict[str, str]:
    """Tags that this owner, CloudFormation or a controller of its cluster writes."""
    stack = f"hyperpod-rl-{owner}-{draw(st.sampled_from(list(Stack))).value}"
    base = f"hyperpod-rl-{owner}"
    if not owner:
        return draw(st.sampled_from([
            {}, {"Name": "bastion"}, {"project": "hyperpod-rl"}, {"aws:cloudformation:stack-name": "web"},
            {"kubernetes.io/cluster/theirs": "owned"}, {"kubernetes.io/cluster/hyperpod-rl-mine": "shared"},
            {"elbv2.k8s.aws/cluster": "theirs"}, {"hyperpod-rl-environment": "", "Name": "hyperpod-rl-mine"},
            {"hyperpod-rl-environment": "mine", "aws:cloudformation:stack-name": "web"},
        ]))  # fmt: skip
    return draw(st.sampled_from([
        {"hyperpod-rl-environment": owner}, {"aws:cloudformation:stack-name": stack, "hyperpod-rl-environment": owner},
        {f"kubernetes.io/cluster/{base}": "owned"}, {"elbv2.k8s.aws/cluster": base}, {"aws:eks:cluster-name": base},
    ]))  # fmt: skip


def _listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _plant(account: Account, kind: str, owner: str, tags: dict[str, str], number: int, which: Stack) -> str:
    """Put one thing into the account; returns the id by which it would be listed."""
    base = f"hyperpod-rl-{owner}" if owner else "theirs"
    physical = f"{base}-{which.value}-X{number}" if owner else f"theirs-{which.value}-X{number}"
    vpc, own = f"vpc-{owner or 'theirs'}", _listed(tags)
    made: dict[str, Any] = {}
    match kind:
        case "interface":
            account.add("ec2:describe_network_interfaces", {"NetworkInterfaceId": f"eni-{number}", "Status": "available", "TagSet": own})
            return f"eni-{number}"
        case "group":
            account.add("ec2:describe_security_groups", {"GroupId": f"sg-{number}", "GroupName": "g", "VpcId": vpc, "Tags": own})
            return f"sg-{number}"
        case "endpoint":
            # GuardDuty's: no tag of ours, known by its service and its VPC.
            account.add("ec2:describe_vpc_endpoints", {"VpcEndpointId": f"vpce-{number}", "ServiceName": "com.amazonaws.r.guardduty-data",
                                                       "VpcId": vpc, "Tags": [{"Key": "GuardDutyManaged", "Value": "true"}]})  # fmt: skip
            return f"vpce-{number}"
        case "balancer" | "target":
            arn = f"arn:aws:elasticloadbalancing:us-west-2:{ACCOUNT}:{kind}/{number}"
            key, operation = ("LoadBalancerArn", "load_balancers") if kind == "balancer" else ("TargetGroupArn", "target_groups")
            account.add(f"elbv2:describe_{operation}", {key: arn})
            account.tags[arn] = own
            return arn
        case "volume":
            account.add("ec2:describe_volumes", {"VolumeId": f"vol-{number}", "Size": 1, "Tags": own})
            return f"vol-{number}"
        case "snapshot":
            account.add("ec2:describe_snapshots", {"SnapshotId": f"snap-{number}", "Tags": own})
            return f"snap-{number}"
        case "file-system":
            account.add("fsx:describe_file_systems", {"FileSystemId": f"fs-{number}", "Tags": own})
            return f"fs-{number}"
        case "backup":
            name = [{"Key": "Name", "Value": f"{base}-final"}]
            account.add("fsx:describe_backups", {"BackupId": f"backup-{number}", "Tags": name})
            return f"backup-{number}"
        case "repository":
            name = f"{base}/charts/c{number}"
            account.add("ecr:describe_repositories", {"repositoryName": name, "repositoryArn": f"arn:aws:ecr:::repository/{name}"})
            return name
        case "logs":
            name = f"/aws/lambda/{physical}" if number % 2 else f"/aws/eks/{base}/cluster{number}"
            account.add("logs:describe_log_groups", {"logGroupName": name})
            return name
        case "role":
            account.add("iam:list_roles", {"RoleName": physical, "Path": "/"})
            account.tags[physical] = own if number % 2 else []
            return physical
        case "function":
            account.add("lambda:list_functions", {"FunctionName": physical})
            return physical
        case "parameter":
            name = f"/hyperpod-rl/{owner}/p{number}" if owner else f"/theirs/{number}"
            account.add("ssm:get_parameters_by_path", {"Name": name})
            return name
        case "grafana" | "prometheus":
            made = {"id": f"g-{number}", "name": base} if kind == "grafana" else {"workspaceId": f"ws-{number}", "alias": base}
            account.add(f"{'grafana' if kind == 'grafana' else 'amp'}:list_workspaces", {**made, "tags": tags if number % 2 else {}})
            return str(made.get("id") or made["workspaceId"])
        case "project":
            account.add("codebuild:list_projects", name := f"{base}-p{number}")
            account.tags[name] = own
            return name
        case "domain":
            account.add("sagemaker:list_domains", {"DomainId": f"d-{number}", "DomainName": base})
            return f"d-{number}"
        case "stack":
            name = f"{base}-{which.value}"
            account.add("cloudformation:list_stacks", {"StackName": name, "StackStatus": "ROLLBACK_COMPLETE"})
            return name
        case "hyperpod":
            account.add("sagemaker:list_clusters", {"ClusterName": base, "ClusterArn": f"arn:aws:sagemaker:::cluster/{number}"})
            return base
        case "eks":
            account.add("eks:list_clusters", base)
            return base
        case "key":
            account.add("kms:list_keys", {"KeyId": f"k-{number}"})
            account.tags[f"k-{number}"] = own
            return f"k-{number}"
        case "topic":
            arn = f"arn:aws:sns:us-west-2:{ACCOUNT}:{physical}"
            account.add("sns:list_topics", {"TopicArn": arn})
            return arn
        case "alarm":
            account.add("cloudwatch:describe_alarms", {"AlarmName": physical})
            return physical
        case "bucket":
            name = f"{base}-{ACCOUNT}-us-west-2"
            account.add("s3:list_buckets", {"Name": name})
            return name
        case "machine" | "certificate":
            arn = f"arn:aws:{kind}:us-west-2:{ACCOUNT}:{number}"
            account.tags[arn] = own
            if kind == "machine":
                account.add("stepfunctions:list_state_machines", {"stateMachineArn": arn, "name": f"Waiter{number}"})
            else:
                account.add("acm:list_certificates", {"CertificateArn": arn})
            return arn
        case "budget":
            account.add("budgets:describe_budgets", {"BudgetName": f"{base}-us-west-2"})
            return f"{base}-us-west-2"
        case "delivery":
            name = f"{base}-us-west-2-{('plan', 'deploy')[number % 2]}"
            account.add("iam:list_roles", {"RoleName": name, "Path": "/"})
            return name
        case "studio-group":
            name = f"security-group-for-{('in', 'out')[number % 2]}bound-nfs-d-x{number}"
            account.add("ec2:describe_security_groups", {"GroupId": f"sg-{number}", "GroupName": name, "VpcId": vpc})
            return f"sg-{number}"
    assert kind == "vpc"
    account.add("ec2:describe_vpcs", {"VpcId": f"vpc-{number}", "Tags": own})
    return f"vpc-{number}"


@st.composite
def accounts(draw: st.DrawFn) -> tuple[Account, set[str], set[str]]:
    """An account, the ids of what is ours, and the ids of the rest."""
    account, ours, rest = Account(), set(), set()
    for owner in ("mine", *OTHERS):
        account.add("ec2:describe_vpcs", {"VpcId": f"vpc-{owner}", "Tags": [{"Key": "hyperpod-rl-environment", "Value": owner}]})
        (ours if owner == "mine" else rest).add(f"vpc-{owner}")
    account.add("ec2:describe_vpcs", {"VpcId": "vpc-theirs", "Tags": [{"Key": "Name", "Value": "hyperpod-rl-mine"}]})
    rest.add("vpc-theirs")
    for number in range(draw(st.integers(1, 40))):
        owner, kind = draw(OWNER), draw(st.sampled_from(KINDS))
        identifier = _plant(account, kind, owner, _tags(draw, owner), number, draw(st.sampled_from(list(Stack))))
        (ours if owner == "mine" else rest).add(identifier)
    # Strangers in our own VPC.
    account.add(
        "ec2:describe_network_interfaces", {"NetworkInterfaceId": "eni-b", "Status": "available", "VpcId": "vpc-mine", "Description": "b"}
    )
    account.add("ec2:describe_security_groups", {"GroupId": "sg-b", "GroupName": "bastion", "VpcId": "vpc-mine"})
    account.add("ec2:describe_vpc_endpoints", {"VpcEndpointId": "vpce-b", "ServiceName": "com.amazonaws.r.s3", "VpcId": "vpc-mine"})
    return account, ours, rest | {"eni-b", "sg-b", "vpce-b"}


@pytest.fixture(scope="module")
def mine() -> Environment:
    import yaml

    from config import load

    data = yaml.safe_load((load.ENVIRONMENTS / "reference.yaml").read_text())
    return load.parse(yaml.safe_dump({**data, "name": "mine", "account": ACCOUNT}))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(accounts())
def test_everything_of_ours_and_nothing_of_anybody_else(mine: Environment, made: tuple[Account, set[str], set[str]]) -> None:
    account, ours, rest = made
    found = scan(mine, account)  # type: ignore[arg-type]
    listed = {leak.id for leak in found.leaks}
    assert found.unseen == ()
    assert listed - ours == set(), "only ours"
    assert ours - listed == set(), "all of ours"
    assert not listed & rest


def test_what_a_stack_owns_or_needs_is_no_leak(mine: Environment) -> None:
    account = Account()
    stacks = {which: names.stack(mine, which) for which in (Stack.NETWORK, Stack.CLUSTER, Stack.PLATFORM)}
    for name in stacks.values():
        account.add("cloudformation:list_stacks", {"StackName": name, "StackStatus": "UPDATE_COMPLETE"})
    account.add("cloudformation:list_stack_resources", {"PhysicalResourceId": "vpc-1", "ResourceStatus": "CREATE_COMPLETE"})
    account.add("ec2:describe_vpcs", {"VpcId": "vpc-1", "Tags": [{"Key": "hyperpod-rl-environment", "Value": "mine"}]})
    tags = [{"Key": "elbv2.k8s.aws/cluster", "Value": "hyperpod-rl-mine"}]
    account.add("ec2:describe_security_groups", {"GroupId": "sg-1", "GroupName": "k8s", "VpcId": "vpc-1", "Tags": tags})
    account.add("ec2:describe_network_interfaces", {"NetworkInterfaceId": "eni-1", "Status": "available", "VpcId": "vpc-1",
                                                    "Description": "Amazon EKS hyperpod-rl-mine"})  # fmt: skip
    assert scan(mine, account).leaks == ()  # type: ignore[arg-type]
    del account.lists["cloudformation:list_stacks"], account.lists["cloudformation:list_stack_resources"]
    assert {leak.id for leak in scan(mine, account).leaks} == {"vpc-1", "sg-1", "eni-1"}  # type: ignore[arg-type]


def test_a_network_that_the_environment_only_uses_is_never_listed(variant: Variant) -> None:
    existing = {"vpc_id": "vpc-0123456789abcdef0", "cidr": "10.192.0.0/16", "hyperpod_subnet_id": "subnet-0123456789abcdef0",
                "cluster_subnet_ids": ["subnet-0123456789abcdef1", "subnet-0123456789abcdef2"]}  # fmt: skip
    env = variant({"network.existing": existing})
    account = Account()
    account.add("ec2:describe_vpcs", {"VpcId": existing["vpc_id"], "Tags": [{"Key": "hyperpod-rl-environment", "Value": "mine"}]})
    assert scan(env, account).leaks == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(("removal", "kept"), [("destroy", False), ("backup", True), ("retain", True)])
def test_data_that_is_kept_on_purpose_is_marked(variant: Variant, removal: str, kept: bool) -> None:
    account = Account()
    account.add("fsx:describe_backups", {"BackupId": "backup-1", "Tags": [{"Key": "Name", "Value": "hyperpod-rl-mine-final"}]})
    account.add("s3:list_buckets", {"Name": f"hyperpod-rl-mine-{ACCOUNT}-us-west-2"})
    found = scan(variant({"storage.removal": removal}), account).leaks  # type: ignore[arg-type]
    assert {leak.kind for leak in found} == {"FSx backup", "S3 bucket"}
    assert {bool(leak.kept) for leak in found} == {kept}


class Closed(Account):
    """An account in which some calls are denied."""

    def __init__(self, *denied: str) -> None:
        super().__init__()
        self.denied, self.asked = denied, set[str]()

    def _check(self, name: str) -> None:
        self.asked.add(name)
        if name.startswith(self.denied):
            raise Unanswered(name, "AccessDenied", "not authorized")

    def pages(self, service: str, operation: str, key: str, /, **given: Any) -> Iterator[Any]:
        self._check(f"{service}:{operation}")
        yield from super().pages(service, operation, key, **given)

    def call(self, service: str, operation: str, /, **given: Any) -> Mapping[str, Any]:
        self._check(f"{service}:{operation}")
        return super().call(service, operation, **given)


def test_what_may_not_be_looked_at_is_said(mine: Environment) -> None:
    assert scan(mine, Closed("fsx:")).unseen == (  # type: ignore[arg-type]
        "fsx:describe_file_systems: AccessDenied, not authorized", "fsx:describe_backups: AccessDenied, not authorized",
    )  # fmt: skip


def test_each_denied_call_costs_the_kinds_that_need_it_only(mine: Environment) -> None:
    everything = Closed()
    for kind in ("balancer", "target", "volume", "file-system", "role", "function", "project", "machine", "certificate", "domain", "vpc"):
        _plant(everything, kind, "mine", {"hyperpod-rl-environment": "mine"}, 2, Stack.DATA)
    everything.add("kms:list_keys", {"KeyId": "k-1"})
    whole = len(scan(mine, everything).leaks)  # type: ignore[arg-type]
    for name in sorted(everything.asked):
        account = Closed(name)
        account.lists, account.tags = everything.lists, everything.tags
        if name.startswith("cloudformation:list_stack"):
            with pytest.raises(Unanswered, match="AccessDenied"):
                scan(mine, account)  # type: ignore[arg-type]
            continue
        found = scan(mine, account)  # type: ignore[arg-type]
        assert any(name in text for text in found.unseen), name
        assert whole - len(found.leaks) <= 2, name


def test_tags_of_a_stack_in_another_region_are_not_ours(mine: Environment) -> None:
    tags = {
        "aws:cloudformation:stack-name": "hyperpod-rl-mine-Data",
        "aws:cloudformation:stack-id": "arn:aws:cloudformation:us-east-1:1:stack/x",
    }
    assert Ours(mine).tagged(tags) is None
    assert Ours(mine).tagged({**tags, "aws:cloudformation:stack-id": "arn:aws:cloudformation:us-west-2:1:stack/x"}) is not None
    elsewhere = {"hyperpod-rl-environment": "mine", "hyperpod-rl-region": "us-east-1"}
    assert Ours(mine).tagged(elsewhere) is None
    assert Ours(mine).tagged({**elsewhere, "hyperpod-rl-region": "us-west-2"}) is not None
    account = Account()
    account.add("iam:list_roles", {"RoleName": "hyperpod-rl-mine-Data-X", "Path": "/"})
    account.tags["hyperpod-rl-mine-Data-X"] = _listed(elsewhere)
    assert scan(mine, account).leaks == (), "a role of the same environment in another region"  # type: ignore[arg-type]
