"""One thing of every kind is planted in the local cloud, found, and removed by the very command that was printed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from config import load, names
from config.environment import Environment
from config.platform import Domain, RemoteAccess
from local import lifecycle
from operations.aws import Aws
from operations.leaks import scan as scanning
from operations.leaks import storage
from operations.leaks.remove import remove
from tests.local.cloud.conftest import Account, Refused, get, group, hyperpod, ref, resource
from tests.operations.aws_cli import execute

pytestmark = pytest.mark.cloud
BASE = "hyperpod-rl-local"
MINE = [{"Key": "hyperpod-rl-environment", "Value": "local"}]
CLUSTER = [{"Key": f"kubernetes.io/cluster/{BASE}", "Value": "owned"}]
STATEMENT = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}


@pytest.fixture
def cloud(account: Account, monkeypatch: pytest.MonkeyPatch) -> Account:
    for name, value in lifecycle.environment().items():
        monkeypatch.setenv(name, value)
    return account


def _tagged(kind: str, tags: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags}]


def _network(account: Account) -> str:
    ec2 = account.client("ec2")
    vpc = str(ec2.create_vpc(CidrBlock="10.77.0.0/16", TagSpecifications=_tagged("vpc", MINE))["Vpc"]["VpcId"])
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.77.0.0/24", TagSpecifications=_tagged("subnet", MINE))["Subnet"]["SubnetId"]
    ec2.create_route_table(VpcId=vpc, TagSpecifications=_tagged("route-table", MINE))
    gateway = ec2.create_internet_gateway(TagSpecifications=_tagged("internet-gateway", MINE))["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=_tagged("elastic-ip", MINE))["AllocationId"]
    ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, TagSpecifications=_tagged("natgateway", MINE))
    ec2.create_security_group(GroupName=f"GuardDutyManagedSecurityGroup-{vpc}", Description="guard", VpcId=vpc)
    groups = [
        ec2.create_security_group(GroupName=f"security-group-for-{way}-nfs-d-left", Description="nfs", VpcId=vpc)["GroupId"]
        for way in ("inbound", "outbound")
    ]
    for group_id, other, rule in (
        (*groups, ec2.authorize_security_group_ingress),
        (*groups[::-1], ec2.authorize_security_group_egress),
    ):
        rule(
            GroupId=group_id,
            IpPermissions=[{"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049, "UserIdGroupPairs": [{"GroupId": other}]}],
        )
    ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName="com.amazonaws.us-west-2.guardduty-data", VpcEndpointType="Interface", SubnetIds=[subnet]
    )
    ec2.create_network_interface(SubnetId=subnet, Description="aws-K8S-i-0123456789abcdef0")
    balancing = account.client("elbv2")
    tags = [{"Key": "elbv2.k8s.aws/cluster", "Value": BASE}]
    balancing.create_load_balancer(Name="k8s-left", Subnets=[subnet], Tags=tags)
    balancing.create_target_group(Name="k8s-left", Protocol="HTTP", Port=80, VpcId=vpc, Tags=tags)
    return vpc


def _volumes(account: Account) -> None:
    ec2 = account.client("ec2")
    volume = ec2.create_volume(AvailabilityZone="us-west-2a", Size=20, TagSpecifications=_tagged("volume", CLUSTER))["VolumeId"]
    ec2.create_snapshot(VolumeId=volume, TagSpecifications=_tagged("snapshot", CLUSTER))


def _named(account: Account, worker: str) -> None:
    account.client("logs").create_log_group(logGroupName=f"/aws/eks/{BASE}/cluster")
    account.client("ssm").put_parameter(Name="/hyperpod-rl/local/left", Value="v", Type="String")
    account.client("ecr").create_repository(repositoryName="ray/skyrl-visgym-local")
    account.client("kms").create_key(Tags=[{"TagKey": "hyperpod-rl-environment", "TagValue": "local"}])
    account.client("cloudwatch").put_metric_alarm(
        AlarmName=f"{BASE}-Observability-Full-X", ComparisonOperator="GreaterThanThreshold", EvaluationPeriods=1, MetricName="m",
        Namespace="n", Period=60, Statistic="Sum", Threshold=1.0,
    )  # fmt: skip
    account.client("sns").create_topic(Name=f"{BASE}-Observability-Alarms-X")
    account.client("codebuild").create_project(
        name=f"{BASE}-image", source={"type": "NO_SOURCE", "buildspec": "version: 0.2"}, artifacts={"type": "NO_ARTIFACTS"},
        environment={"type": "LINUX_CONTAINER", "image": "i", "computeType": "BUILD_GENERAL1_SMALL"}, serviceRole=worker,
        tags=[{"key": "hyperpod-rl-environment", "value": "local"}],
    )  # fmt: skip
    account.client("lambda").create_function(
        FunctionName=f"{BASE}-Platform-Drain-X", Runtime="python3.13", Role=worker, Handler="index.h", Code={"ZipFile": _archive()}
    )


def _more_services(account: Account, worker: str) -> None:
    account.client("stepfunctions").create_state_machine(
        name="ProviderWaiter", definition='{"StartAt":"A","States":{"A":{"Type":"Succeed"}}}', roleArn=worker,
        tags=[{"key": "hyperpod-rl-environment", "value": "local"}],
    )  # fmt: skip
    account.client("acm").request_certificate(DomainName="ray.example.com", KeyAlgorithm="EC_prime256v1", Tags=MINE)
    budget = {"BudgetName": names.budget(load.load("local")), "BudgetType": "COST", "TimeUnit": "MONTHLY",
              "BudgetLimit": {"Amount": "1", "Unit": "USD"}}  # fmt: skip
    account.client("budgets").create_budget(AccountId="000000000000", Budget=budget)


def _archive() -> bytes:
    import zipfile

    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("index.py", "def h(e, c): pass")
    return data.getvalue()


def _role(account: Account) -> str:
    iam = account.client("iam")
    made = iam.create_role(RoleName=f"{BASE}-Data-Left-X", AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}')["Role"][
        "Arn"
    ]
    iam.put_role_policy(
        RoleName=f"{BASE}-Data-Left-X", PolicyName="own", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]})
    )
    policy = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
    iam.attach_role_policy(RoleName=f"{BASE}-Data-Left-X", PolicyArn=policy)
    return str(made)


def _buckets(account: Account, env: Environment) -> None:
    s3 = account.client("s3")
    for bucket in (names.artifact_bucket(env), f"cdk-hnb659fds-assets-{env.account}-{env.region}"):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_bucket_versioning(Bucket=names.artifact_bucket(env), VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"2"):
        s3.put_object(Bucket=names.artifact_bucket(env), Key="lora-adapters/a b/$(x).bin", Body=body)
    s3.delete_object(Bucket=names.artifact_bucket(env), Key="lora-adapters/a b/$(x).bin")
    s3.put_object(Bucket=f"cdk-hnb659fds-assets-{env.account}-{env.region}", Key="abc.json", Body=b"{}")


def _zone(account: Account) -> str:
    route53 = account.client("route53")
    zone = str(route53.create_hosted_zone(Name="example.com.", CallerReference="c")["HostedZone"]["Id"]).rpartition("/")[2]
    text = f'"heritage=external-dns,external-dns/owner={BASE},external-dns/resource=ingress/a/b"'
    records = [
        {"Name": "ray.example.com.", "Type": "A", "TTL": 60, "ResourceRecords": [{"Value": "192.0.2.1"}]},
        {"Name": "a-ray.example.com.", "Type": "TXT", "TTL": 60, "ResourceRecords": [{"Value": text}]},
        {"Name": "theirs.example.com.", "Type": "A", "TTL": 60, "ResourceRecords": [{"Value": "192.0.2.2"}]},
    ]
    route53.change_resource_record_sets(
        HostedZoneId=zone, ChangeBatch={"Changes": [{"Action": "CREATE", "ResourceRecordSet": record} for record in records]}
    )
    return zone


def _stuck(account: Account) -> None:
    lifecycle.set_faults([{"resource": "AWS::EC2::EIP", "action": "create", "fail": "no address left"}])
    with pytest.raises(Refused):
        account.deploy(f"{BASE}-Network", {"Address": resource("AWS::EC2::EIP", Domain="vpc")})
    lifecycle.set_faults([])


def _home(account: Account) -> None:
    """The home folders of a domain that is gone, recognized by the tag that SageMaker copies from the domain."""
    tags = [*MINE, {"Key": "ManagedByAmazonSageMakerResource", "Value": "arn:aws:sagemaker:us-west-2:000000000000:domain/d-x"}]
    account.client("efs").create_file_system(CreationToken="left", Tags=tags)


def _services(account: Account) -> str:
    """What only CloudFormation makes here: deployed by the environment's own stacks, which then let go of it."""
    cluster = hyperpod(group("head"))
    cluster["Eks"]["Properties"]["Name"] = BASE
    cluster["HyperPod"]["Properties"]["ClusterName"] = BASE
    studio = {
        "Domain": resource("AWS::SageMaker::Domain", AuthMode="IAM", DomainName=BASE, VpcId=ref("Vpc"), SubnetIds=[ref("SubnetA")],
                           DefaultUserSettings={"ExecutionRole": get("NodeRole", "Arn")}),
        "App": resource("AWS::SageMaker::App", DomainId=ref("Domain"), UserProfileName="me", AppType="JupyterServer", AppName="default"),
        "FileSystem": resource(
            "AWS::FSx::FileSystem", FileSystemType="LUSTRE", FileSystemTypeVersion="2.15", StorageCapacity=1200, SubnetIds=[ref("SubnetA")],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250}, Tags=[{"Key": "Name", "Value": BASE}],
        ),
        "Prometheus": resource("AWS::APS::Workspace", Alias=BASE),
        "Grafana": resource(
            "AWS::Grafana::Workspace", Name=BASE, AccountAccessType="CURRENT_ACCOUNT", AuthenticationProviders=["SAML"],
            PermissionType="CUSTOMER_MANAGED",
        ),
    }  # fmt: skip
    kept = {name: {**body, "DeletionPolicy": "Retain"} for name, body in {**cluster, **studio}.items()}
    stack = f"{BASE}-Data"
    made = account.deploy(stack, kept, {"FileSystem": ref("FileSystem")})
    backup = account.client("fsx").create_backup(FileSystemId=made["FileSystem"], Tags=[{"Key": "Name", "Value": f"{BASE}-final"}])[
        "Backup"
    ]
    assert account.destroy(stack) == "DELETE_COMPLETE"
    return str(backup["BackupId"])


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Environment:
    found = load.load("local")
    monkeypatch.setattr(storage, "_of_assemblies", lambda ours, root=Path(): ({"abc.json"}, set()))
    return found


EVERY_KIND = {
    "CloudFormation stack", "HyperPod cluster", "EKS cluster", "Lambda function", "CodeBuild project", "log group", "CloudWatch alarm",
    "Grafana workspace", "Prometheus workspace", "Studio app", "Studio domain", "IAM role", "SSM parameter", "Route 53 record",
    "load balancer", "target group", "network interface", "security group", "VPC endpoint", "NAT gateway", "Elastic IP address",
    "internet gateway", "subnet", "route table", "VPC", "EBS volume", "EBS snapshot", "FSx file system", "FSx backup", "S3 bucket",
    "ECR repository", "KMS key", "CDK asset", "EFS file system",
    "Step Functions state machine", "ACM certificate", "budget", "SNS topic",
}  # fmt: skip


def test_one_of_each_kind_is_found_and_its_printed_command_removes_it(cloud: Account, env: Environment) -> None:
    before = lifecycle.inventory()
    assert scanning.scan(env, Aws(env)).leaks == (), "a clean account has no leaks"
    zone = _zone(cloud)
    domain = Domain.model_construct(name="ray.example.com", hosted_zone_id=zone)
    env = env.model_copy(update={"remote_access": RemoteAccess.model_construct(domain=domain)})
    backup = _services(cloud)
    _stuck(cloud)
    vpc = _network(cloud)
    _home(cloud)
    _volumes(cloud)
    _named(cloud, worker := _role(cloud))
    _more_services(cloud, worker)
    _buckets(cloud, env)
    found = scanning.scan(env, Aws(env))
    assert found.unseen == ()
    assert {leak.kind for leak in found.leaks} == EVERY_KIND
    by_kind = {leak.kind: leak for leak in found.leaks}
    assert all(leak.made_by and leak.cost and leak.commands for leak in found.leaks)
    assert by_kind["VPC endpoint"].made_by == "made by GuardDuty's runtime monitoring of the account, not by this environment"
    assert by_kind["EBS volume"].cost == "about 1.60 USD a month (unverified)"
    assert by_kind["FSx backup"].id == backup
    assert vpc in {leak.id for leak in found.leaks if leak.kind == "VPC"}
    shown: list[str] = []
    left = remove(found.leaks, note=shown.append, execute=execute, sleep=lambda _: None)
    assert {leak.id: said for leak, said in left.items()} == {}
    assert {line.removeprefix("$ ") for line in shown if line.startswith("$ ")} == {c for leak in found.leaks for c in leak.commands}
    assert scanning.scan(env, Aws(env)).leaks == ()
    records = cloud.client("route53").list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"]
    assert [r["Name"] for r in records if r["Type"] == "A"] == ["theirs.example.com."]
    cloud.client("s3").delete_bucket(Bucket=f"cdk-hnb659fds-assets-{env.account}-{env.region}")
    cloud.stacks.clear()
    assert {kind: names for kind, names in lifecycle.inventory().items() if names != before.get(kind)} == {}
