"""Lambda functions of our own: Python, one asset for all, each with its log group, so that a destroy leaves no log group behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aws_cdk import CustomResource, Duration, IgnoreMode, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.allow import Allow
from stacks.roles import role
from stacks.stack import EnvironmentStack, Shared, cluster_subnets

STACKS = Path(__file__).resolve().parent


def log_group(stack: EnvironmentStack, construct_id: str, *, name: str | None = None) -> logs.LogGroup:
    """A log group that goes with its stack. Without a name CloudFormation makes one, which a later deploy cannot collide with."""
    group = logs.LogGroup(stack, construct_id, log_group_name=name, removal_policy=RemovalPolicy.DESTROY)
    child = group.node.default_child
    assert isinstance(child, logs.CfnLogGroup)
    child.retention_in_days = stack.settings.observability.log_retention_days
    return group


def function(
    stack: EnvironmentStack,
    construct_id: str,
    *,
    handler: str,
    description: str,
    allow: Sequence[Allow] = (),
    minutes: int = 5,
    memory_mib: int = 256,
    in_network: bool = False,
) -> lambda_.Function:
    """A function of `stacks/handlers`: `handler` is `module.function`. In the network where it must reach a private API server."""
    managed = ["service-role/AWSLambdaBasicExecutionRole"]
    if in_network:
        managed.append("service-role/AWSLambdaVPCAccessExecutionRole")
    executor = role(
        stack,
        f"{construct_id}Role",
        principal=iam.ServicePrincipal("lambda.amazonaws.com"),
        allow=allow,
        managed=managed,
        description=f"Runs the function: {description}",
    )
    made = lambda_.Function(
        stack,
        construct_id,
        runtime=lambda_.Runtime.PYTHON_3_14,
        handler=f"handlers.{handler}",
        # The package `handlers` and nothing beside it, so that its modules import each other here as they do in Lambda.
        code=lambda_.Code.from_asset(str(STACKS), exclude=["*", "!handlers", "!handlers/*.py"], ignore_mode=IgnoreMode.GIT),
        role=executor,
        description=description,
        timeout=Duration.minutes(minutes),
        memory_size=memory_mib,
        log_group=log_group(stack, f"{construct_id}Logs"),
    )
    if in_network:
        child = made.node.default_child
        assert isinstance(child, lambda_.CfnFunction)
        child.vpc_config = lambda_.CfnFunction.VpcConfigProperty(
            subnet_ids=[stack.read(Shared.CLUSTER_SUBNET, number) for number in range(1, cluster_subnets(stack.settings) + 1)],
            security_group_ids=[stack.read(Shared.HANDLER_GROUP)],
        )
    return made


def resource(
    scope: Construct, construct_id: str, *, kind: str, token: str, properties: Mapping[str, Any], timeout_minutes: int
) -> CustomResource:
    """A custom resource `Custom::<kind>`; CloudFormation gives up after the timeout (its own default is one hour)."""
    return CustomResource(
        scope,
        construct_id,
        service_token=token,
        resource_type=f"Custom::{kind}",
        properties=dict(properties),
        service_timeout=Duration.minutes(timeout_minutes),
    )
