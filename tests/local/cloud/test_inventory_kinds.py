"""Every kind that the leak check lists: one of each, deployed by a template, is listed, and is gone after its removal."""

from __future__ import annotations

import pytest

from local import lifecycle
from local.cloud.inventory import _LISTERS as LISTERS
from tests.local.cloud.conftest import Account, eks, get, lustre, ref, resource, role
from tests.local.cloud.test_inventory import PLANTS

pytestmark = pytest.mark.cloud

STATEMENT = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
STATES = '{"StartAt":"A","States":{"A":{"Type":"Succeed"}}}'
WORKER = role("lambda.amazonaws.com")
# Kind -> the resource that makes one. What it refers to stands in BESIDE.
MAKERS = {
    "IAM policy": resource("AWS::IAM::ManagedPolicy", PolicyDocument=STATEMENT),
    "IAM instance profile": resource("AWS::IAM::InstanceProfile", Roles=[ref("Worker")]),
    "Lambda function": resource(
        "AWS::Lambda::Function", Runtime="python3.13", Handler="index.h", Role=get("Worker", "Arn"), Code={"ZipFile": "def h(e, c): pass"}
    ),
    "Step Functions state machine": resource("AWS::StepFunctions::StateMachine", DefinitionString=STATES, RoleArn=get("Worker", "Arn")),
    "CodeBuild project": resource(
        "AWS::CodeBuild::Project",
        Artifacts={"Type": "NO_ARTIFACTS"},
        Environment={"ComputeType": "BUILD_GENERAL1_SMALL", "Image": "aws/codebuild/standard:7.0", "Type": "LINUX_CONTAINER"},
        ServiceRole=get("Worker", "Arn"),
        Source={"Type": "NO_SOURCE", "BuildSpec": "version: 0.2"},
    ),
    "CloudWatch alarm": resource(
        "AWS::CloudWatch::Alarm", ComparisonOperator="GreaterThanThreshold", EvaluationPeriods=1, MetricName="m", Namespace="n",
        Period=60, Statistic="Sum", Threshold=1,
    ),
    "Budget": resource(
        "AWS::Budgets::Budget", Budget={"BudgetType": "COST", "TimeUnit": "MONTHLY", "BudgetLimit": {"Amount": 1, "Unit": "USD"}}
    ),
    "SQS queue": resource("AWS::SQS::Queue"),
    "EventBridge rule": resource("AWS::Events::Rule", ScheduleExpression="rate(1 day)"),
    "KMS alias": resource("AWS::KMS::Alias", AliasName="alias/left", TargetKeyId=ref("Key")),
    "Subnet": resource("AWS::EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.9.0/24"),
    "Route table": resource("AWS::EC2::RouteTable", VpcId=ref("Vpc")),
    "Security group": resource("AWS::EC2::SecurityGroup", VpcId=ref("Vpc"), GroupDescription="left"),
    "VPC endpoint": resource("AWS::EC2::VPCEndpoint", VpcId=ref("Vpc"), ServiceName="com.amazonaws.us-west-2.s3"),
    "NAT gateway": resource("AWS::EC2::NatGateway", SubnetId=ref("SubnetA"), ConnectivityType="private"),
    "Internet gateway": resource("AWS::EC2::InternetGateway"),
    "EKS add-on": resource("AWS::EKS::Addon", AddonName="coredns", ClusterName=ref("Eks")),
    "EKS access entry": resource("AWS::EKS::AccessEntry", ClusterName=ref("Eks"), PrincipalArn=get("Worker", "Arn")),
    "EKS Pod Identity association": resource(
        "AWS::EKS::PodIdentityAssociation", ClusterName=ref("Eks"), Namespace="a", ServiceAccount="b", RoleArn=get("Worker", "Arn")
    ),
    "SageMaker domain": resource(
        "AWS::SageMaker::Domain", AuthMode="IAM", DomainName="left", VpcId=ref("Vpc"), SubnetIds=[ref("SubnetA")],
        DefaultUserSettings={"ExecutionRole": get("Worker", "Arn")},
    ),
    "Prometheus workspace": resource("AWS::APS::Workspace", Alias="left"),
    "Grafana workspace": resource(
        "AWS::Grafana::Workspace", AccountAccessType="CURRENT_ACCOUNT", AuthenticationProviders=["SAML"], PermissionType="CUSTOMER_MANAGED"
    ),
    # What nothing of ours makes, but a controller or a hand may.
    "Lambda layer": resource("AWS::Lambda::LayerVersion", LayerName="left", Content={"S3Bucket": ref("Bucket"), "S3Key": "layer.zip"}),
    "Flow log": resource(
        "AWS::EC2::FlowLog", ResourceId=ref("Vpc"), ResourceType="VPC", TrafficType="ALL", LogDestinationType="s3",
        LogDestination=get("Bucket", "Arn"),
    ),
    "Launch template": resource("AWS::EC2::LaunchTemplate", LaunchTemplateData={"InstanceType": "m5.large"}),
    "Load balancer": resource("AWS::ElasticLoadBalancingV2::LoadBalancer", Scheme="internal", Subnets=[ref("SubnetA"), ref("SubnetB")]),
    "FSx association": resource(
        "AWS::FSx::DataRepositoryAssociation", FileSystemId=ref("FileSystem"), FileSystemPath="/left",
        DataRepositoryPath={"Fn::Sub": "s3://${Bucket}/"},
    ),
}  # fmt: skip
BESIDE = {
    **eks(),
    "Worker": WORKER,
    "Key": resource("AWS::KMS::Key", KeyPolicy=STATEMENT),
    "Bucket": resource("AWS::S3::Bucket"),
    "FileSystem": lustre()["FileSystem"],
}
# Seen in `test_inventory.py` as part of a whole environment or with a life of its own there, or in `test_grafana_deploy.py`.
ELSEWHERE = {"Network interface", "EKS cluster", "HyperPod cluster", "FSx file system", "FSx backup", "Grafana object"}


def test_one_of_each_kind_is_listed_and_gone_after_its_removal(account: Account) -> None:
    empty = lifecycle.inventory()
    account.deploy("each", BESIDE)
    before = lifecycle.inventory()
    account.destroy("each")
    account.deploy("each", {**BESIDE, **{f"Made{number}": maker for number, maker in enumerate(MAKERS.values())}})
    after = lifecycle.inventory()
    assert [kind for kind in MAKERS if len(after.get(kind, [])) <= len(before.get(kind, []))] == []
    assert account.destroy("each") == "DELETE_COMPLETE"
    assert lifecycle.inventory() == empty


def test_no_kind_is_forgotten() -> None:
    assert set(LISTERS) == set(MAKERS) | set(PLANTS) | ELSEWHERE
