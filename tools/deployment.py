"""An environment's stacks in the local cloud without the CDK CLI: templates from this process, straight to CloudFormation.

For what is repeated hundreds of times (`tools.drill`) or many times in a test; people use `cdk deploy`.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import names
from config.environment import Environment
from config.problems import Failed
from local import lifecycle
from local.cloud import SECRET, WAITS

STACK_SECONDS = 300.0


@dataclass(frozen=True)
class Assembly:
    """Templates by stack, lowest first, and the files that they name."""

    templates: Mapping[str, Mapping[str, Any]]
    folder: Path

    def resources(self) -> dict[str, str]:
        """`Stack/LogicalId` -> type, in the order of the stacks."""
        return {f"{stack}/{logical}": str(body["Type"]) for stack, t in self.templates.items() for logical, body in t["Resources"].items()}

    def one_of_each(self) -> tuple[str, ...]:
        """The first resource of each type, and each role: what a quick drill looks at."""
        seen: dict[str, str] = {}
        for name, kind in self.resources().items():
            seen.setdefault(name if kind == "AWS::IAM::Role" else kind, name)
        return tuple(seen.values())


def synthesize(settings: Environment, folder: Path) -> Assembly:
    """The environment's templates, in the order of their stacks."""
    from aws_cdk import App

    from app import feature_flags
    from stacks.wiring import build

    app = App(outdir=str(folder), context=feature_flags(), analytics_reporting=False, tree_metadata=False)
    build(app, settings)
    app.synth()
    artifacts = json.loads((folder / "manifest.json").read_text())["artifacts"]
    stacks = {name: body for name, body in artifacts.items() if body["type"] == "aws:cloudformation:stack"}
    ordered: list[str] = []
    while len(ordered) < len(stacks):
        ordered += [
            name
            for name, body in stacks.items()
            if name not in ordered and all(below in ordered for below in body.get("dependencies", ()) if below in stacks)
        ]
    read = {name: json.loads((folder / stacks[name]["properties"]["templateFile"]).read_text()) for name in ordered}
    return Assembly(read, folder)


class Cloud:
    """An account of the running local cloud, as CloudFormation's user sees it."""

    def __init__(self, settings: Environment) -> None:
        import boto3
        from botocore.config import Config

        running = lifecycle.status()
        self._settings, self._endpoint = settings, running.endpoint
        self._session = boto3.Session(settings.account, SECRET, region_name=settings.region)
        self._cloudformation = self._session.client("cloudformation", endpoint_url=self._endpoint, config=Config(user_agent_extra=WAITS))
        self._published: set[str] = set()

    def client(self, service: str) -> Any:
        """A client of one service."""
        return self._session.client(service, endpoint_url=self._endpoint)

    def prepare(self, assembly: Assembly) -> None:
        """What `cdk bootstrap` and `cdk deploy` do before the first stack: the version parameter, the bucket, the assets."""
        version = {"Name": "/cdk-bootstrap/hnb659fds/version", "Value": "30", "Type": "String", "Overwrite": True}
        self.client("ssm").put_parameter(**version)
        s3 = self.client("s3")
        for stack in assembly.templates:
            for asset in json.loads((assembly.folder / f"{stack}.assets.json").read_text())["files"].values():
                path = assembly.folder / asset["source"]["path"]
                if path.name.endswith(".template.json"):
                    continue
                for target in asset["destinations"].values():
                    # A key names its content: what is there needs no second upload.
                    if target["objectKey"] in self._published:
                        continue
                    self._published.add(target["objectKey"])
                    if target["bucketName"] not in {found["Name"] for found in s3.list_buckets()["Buckets"]}:
                        s3.create_bucket(
                            Bucket=target["bucketName"], CreateBucketConfiguration={"LocationConstraint": self._settings.region}
                        )
                    s3.put_object(Bucket=target["bucketName"], Key=target["objectKey"], Body=zipped(path))

    def create(self, stack: str, template: Mapping[str, Any]) -> str:
        """Create a stack and return the status that it ends in."""
        called = names.stack(self._settings, names.Stack(stack))
        body = json.dumps(template, separators=(",", ":"))
        self._cloudformation.create_stack(StackName=called, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
        return self._settled(called)

    def update(self, stack: str, template: Mapping[str, Any]) -> str:
        """Change a stack and return the status that it ends in; that of before where there is nothing to change."""
        from botocore.exceptions import ClientError

        called = names.stack(self._settings, names.Stack(stack))
        body = json.dumps(template, separators=(",", ":"))
        try:
            self._cloudformation.update_stack(StackName=called, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
        except ClientError as error:
            if "No updates are to be performed" not in str(error):
                raise
        return self._settled(called)

    def delete(self, stack: str) -> str:
        """Delete a stack and return the status that it ends in."""
        called = names.stack(self._settings, names.Stack(stack))
        identifier = self._cloudformation.describe_stacks(StackName=called)["Stacks"][0]["StackId"]
        self._cloudformation.delete_stack(StackName=called)
        return self._settled(identifier)

    def failures(self, stack: str) -> list[str]:
        """Why resources of a stack failed, newest first."""
        pages = self._cloudformation.get_paginator("describe_stack_events").paginate(
            StackName=names.stack(self._settings, names.Stack(stack))
        )
        events = (event for page in pages for event in page["StackEvents"])
        return [event.get("ResourceStatusReason", "") for event in events if "FAILED" in event["ResourceStatus"]]

    def physical(self, stack: str) -> dict[str, str]:
        """Physical ids of a stack's resources by logical id."""
        called = names.stack(self._settings, names.Stack(stack))
        found = self._cloudformation.describe_stack_resources(StackName=called)["StackResources"]
        return {entry["LogicalResourceId"]: entry["PhysicalResourceId"] for entry in found}

    def belongings(self, retained: Mapping[str, str]) -> dict[str, str]:
        """What a kept VPC has by itself, and the interfaces of what is kept in its subnets: id -> whose it is."""
        ec2 = self.client("ec2")
        vpcs = [identifier for identifier in retained if identifier.startswith("vpc-")]
        if not vpcs:
            return {}
        inside = [{"Name": "vpc-id", "Values": vpcs}]
        found = {entry["RouteTableId"]: "main route table" for entry in ec2.describe_route_tables(Filters=inside)["RouteTables"]}
        groups = ec2.describe_security_groups(Filters=inside)["SecurityGroups"]
        found |= {entry["GroupId"]: "default security group" for entry in groups if entry["GroupName"] == "default"}
        interfaces = ec2.describe_network_interfaces(Filters=inside)["NetworkInterfaces"]
        held = {entry["NetworkInterfaceId"]: f"interface ({entry.get('Description') or 'no description'})" for entry in interfaces}
        return {identifier: f"{retained[vpcs[0]]}'s {what}" for identifier, what in {**found, **held}.items()}

    def _settled(self, called: str) -> str:
        deadline = time.monotonic() + STACK_SECONDS
        while time.monotonic() < deadline:
            status = str(self._cloudformation.describe_stacks(StackName=called)["Stacks"][0]["StackStatus"])
            if not status.endswith("IN_PROGRESS"):
                return status
            time.sleep(0.02)
        raise Failed(f"stack {called} is still in progress after {STACK_SECONDS:.0f} s")


def zipped(path: Path) -> bytes:
    """An asset as the CDK CLI uploads it: a folder becomes a ZIP file."""
    if path.is_file():
        return path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(found for found in path.rglob("*") if found.is_file()):
            archive.write(file, file.relative_to(path))
    return packed.getvalue()
