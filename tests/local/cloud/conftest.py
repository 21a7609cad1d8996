"""One local cloud for each test process, and stacks that remove themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from local.cloud import ACCOUNT, REGION, SECRET, WAITS

Template = dict[str, Any]


@dataclass
class Account:
    """What a user does with the cloud: clients, and stacks that are removed after the test."""

    endpoint: str
    key: str = ACCOUNT
    stacks: list[str] = field(default_factory=list)
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str, *, waits: bool = False) -> Any:
        import boto3
        from botocore.config import Config

        name = service + (" that waits" if waits else "")
        if name not in self.clients:
            session = boto3.session.Session(aws_access_key_id=self.key, aws_secret_access_key=SECRET, region_name=REGION)
            config = Config(user_agent_extra=WAITS) if waits else None
            self.clients[name] = session.client(service, endpoint_url=self.endpoint, config=config)
        return self.clients[name]

    def deploy(self, name: str, resources: Template, outputs: Template | None = None) -> dict[str, str]:
        """Create or update a stack. Returns its outputs; raises Refused with the reasons of what failed."""
        cloudformation = self.client("cloudformation")
        body = json.dumps({"Resources": resources, "Outputs": {k: {"Value": v} for k, v in (outputs or {}).items()}})
        call = cloudformation.update_stack if name in self.stacks else cloudformation.create_stack
        since = self._events(name) if name in self.stacks else []
        if name not in self.stacks:
            self.stacks.append(name)
        call(StackName=name, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
        found = self._settled(name)
        if found["StackStatus"] not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            failed = [e for e in self._events(name)[: len(self._events(name)) - len(since)] if "FAILED" in e["ResourceStatus"]]
            raise Refused(found["StackStatus"], "\n".join(e.get("ResourceStatusReason", "") for e in failed))
        return {o["OutputKey"]: o["OutputValue"] for o in found.get("Outputs", [])}

    def _events(self, name: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.client("cloudformation").describe_stack_events(StackName=name)["StackEvents"]
        return events

    def _settled(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found: dict[str, Any] = self.client("cloudformation", waits=True).describe_stacks(StackName=name)["Stacks"][0]
            if not found["StackStatus"].endswith("IN_PROGRESS"):
                return found
            time.sleep(0.02)
        raise TimeoutError(f"stack {name} is still in progress")

    def destroy(self, name: str) -> str:
        """Delete a stack; returns the status that it ends in."""
        cloudformation = self.client("cloudformation")
        identifier = cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackId"]
        cloudformation.delete_stack(StackName=name)
        status = str(self._settled(identifier)["StackStatus"])
        if status == "DELETE_COMPLETE":
            self.stacks.remove(name)
        return status


class Refused(Exception):
    def __init__(self, status: str, reasons: str) -> None:
        super().__init__(f"{status}: {reasons}")
        self.status, self.reasons = status, reasons


@pytest.fixture
def refused(account: Account) -> Callable[[Template], str]:
    """Deploy resources that must be refused; returns the reasons."""

    def deploy(resources: Template) -> str:
        with pytest.raises(Refused) as failure:
            account.deploy("refused", resources)
        assert failure.value.status == "ROLLBACK_COMPLETE"
        return failure.value.reasons

    return deploy


# --- templates ---


def resource(kind: str, depends_on: list[str] | None = None, **properties: Any) -> Template:
    more = {"DependsOn": depends_on} if depends_on else {}
    return {"Type": kind, "Properties": properties, **more}


def ref(name: str) -> Template:
    return {"Ref": name}


def get(name: str, attribute: str) -> Template:
    return {"Fn::GetAtt": [name, attribute]}


def role(principal: str, *, policy: bool = True, actions: tuple[str, ...] = ("ec2:DescribeSubnets",)) -> Template:
    trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": principal}, "Action": ["sts:AssumeRole", "sts:TagSession"]}]}
    allowed = {"Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": "*"}]}
    policies = {"Policies": [{"PolicyName": "p", "PolicyDocument": allowed}]} if policy else {}
    return resource("AWS::IAM::Role", AssumeRolePolicyDocument=trust, **policies)


def network() -> Template:
    return {
        "Vpc": resource("AWS::EC2::VPC", CidrBlock="10.9.0.0/16"),
        "SubnetA": resource("AWS::EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.9.0.0/20", AvailabilityZone="us-west-2a"),
        "SubnetB": resource("AWS::EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.9.16.0/20", AvailabilityZone="us-west-2b"),
        "Group": resource("AWS::EC2::SecurityGroup", GroupDescription="nodes", VpcId=ref("Vpc")),
    }


def eks(name: str = "tests", mode: str | None = "API", subnets: tuple[str, ...] = ("SubnetA", "SubnetB")) -> Template:
    access = {"AccessConfig": {"AuthenticationMode": mode}} if mode else {}
    return {
        **network(),
        "EksRole": role("eks.amazonaws.com"),
        "Eks": resource(
            "AWS::EKS::Cluster",
            Name=name,
            Version="1.34",
            RoleArn=get("EksRole", "Arn"),
            ResourcesVpcConfig={"SubnetIds": [ref(s) for s in subnets], "SecurityGroupIds": [ref("Group")]},
            **access,
        ),
    }


def chart(release: str = "hyperpod-dependencies") -> Template:
    return resource(
        "Custom::AWSCDK-EKS-HelmChart",
        ServiceToken="arn:aws:lambda:us-west-2:000000000000:function:none",
        ClusterName=ref("Eks"),
        Release=release,
        Chart="hyperpod-helm-chart",
        Repository="oci://registry.invalid/hyperpod-helm-chart",
        Namespace="kube-system",
    )


def manifest(cluster: str | Template, *objects: Template, depends_on: list[str] | None = None) -> Template:
    """Kubernetes objects, as `eks.KubernetesManifest` makes them."""
    return resource(
        "Custom::AWSCDK-EKS-KubernetesResource",
        depends_on=depends_on,
        ServiceToken="arn:aws:lambda:us-west-2:000000000000:function:none",
        ClusterName=cluster,
        Manifest=json.dumps([{"apiVersion": "v1", **value} for value in objects]),
    )


def group(name: str, instance_type: str = "ml.m5.4xlarge", count: int = 1, **more: Any) -> Template:
    return {
        "InstanceGroupName": name,
        "InstanceType": instance_type,
        "InstanceCount": count,
        "ExecutionRole": get("NodeRole", "Arn"),
        **more,
    }


def hyperpod(*groups: Template, mode: str | None = "API", with_chart: bool = True, policy: bool = True, **more: Any) -> Template:
    resources = {**eks(mode=mode), "NodeRole": role("sagemaker.amazonaws.com", policy=policy)}
    if with_chart:
        resources["Chart"] = chart()
    resources["HyperPod"] = resource(
        "AWS::SageMaker::Cluster",
        depends_on=["Chart"] if with_chart else None,
        ClusterName="tests-hyperpod",
        Orchestrator={"Eks": {"ClusterArn": get("Eks", "Arn")}},
        InstanceGroups=list(groups) or [group("head")],
        VpcConfig={"Subnets": [ref("SubnetA")], "SecurityGroupIds": [ref("Group")]},
        **more,
    )
    return resources


def lustre(**changes: Any) -> Template:
    made: Template = {
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": "2.15",
        "StorageCapacity": 1200,
        "SubnetIds": [ref("SubnetA")],
        "SecurityGroupIds": [ref("Group")],
        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
    }
    settings = {**made["LustreConfiguration"], **changes.pop("LustreConfiguration", {})}
    made = {**made, **changes, "LustreConfiguration": {k: v for k, v in settings.items() if v is not None}}
    return {**network(), "FileSystem": resource("AWS::FSx::FileSystem", **{k: v for k, v in made.items() if v is not None})}
