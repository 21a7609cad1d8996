"""What every stack of an environment has in common: its name, account, tags, protection, and how values cross stacks.

Values cross stacks through SSM parameters and explicit stack dependencies, never through exports: an export locks what it names.
A reader takes a parameter of type `AWS::SSM::Parameter::Value<String>`, not a dynamic reference, since CloudFormation looks such a
parameter up on every update, so that a file system restored from a backup reaches the stacks above it.
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-supplied-parameter-types.html
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from aws_cdk import CfnParameter, Environment, Stack
from aws_cdk.aws_ssm import CfnParameter as SsmParameter
from constructs import Construct

from config import environment, names
from stacks.allow import Allow

# CDK's app and its tests hand the environment around as `settings`: `env` is CDK's own word for account and region.
Settings = environment.Environment


class Shared(StrEnum):
    """Values that only the stacks exchange, below `/hyperpod-rl/<environment>/stacks/`."""

    VPC = "vpc-id"
    HYPERPOD_SUBNET = "hyperpod-subnet-id"
    CLUSTER_SUBNET = "cluster-subnet-id"
    NODES_GROUP = "nodes-security-group-id"
    CONTROL_PLANE_GROUP = "control-plane-security-group-id"
    FILE_SYSTEM_GROUP = "file-system-security-group-id"
    HANDLER_GROUP = "handler-security-group-id"
    KUBECTL_SERVICE = "kubectl-service-token"
    NODES_WAITER = "nodes-waiter-service-token"
    NODES_WAITER_ROLE = "nodes-waiter-role-arn"
    STORAGE_KEY = "storage-key-arn"
    GRAFANA_NAME = "grafana-workspace-name"


Value = Shared | names.Parameter


def parameter_name(settings: Settings, value: Value, index: int | None = None) -> str:
    """Full name of the SSM parameter that carries a value; `index` numbers the members of a list from 1."""
    suffix = "" if index is None else f"-{index}"
    if isinstance(value, Shared):
        return f"{names.parameter_path(settings)}stacks/{value.value}{suffix}"
    return names.parameter(settings, value) + suffix


def cluster_subnets(settings: Settings) -> int:
    """How many subnets the control plane has."""
    existing = settings.network.existing
    return len(existing.cluster_subnet_ids) if existing else len(settings.network.availability_zone_ids)


def _logical(value: Value, index: int | None) -> str:
    return "".join(part.capitalize() for part in value.value.split("-")) + ("" if index is None else str(index))


class EnvironmentStack(Stack):
    """A stack of one environment."""

    def __init__(self, scope: Construct, settings: Settings, which: names.Stack, *, description: str) -> None:
        # `retain` protects what the file system lives in, too: it keeps its interfaces in the subnets of Network.
        kept = settings.storage.removal == "retain" and which in (names.Stack.NETWORK, names.Stack.DATA)
        super().__init__(
            scope,
            which.value,
            stack_name=names.stack(settings, which),
            description=description,
            env=Environment(account=settings.account, region=settings.region),
            # The region, since IAM has none: the same environment name may be in another one.
            tags={**settings.tags, "hyperpod-rl-environment": settings.name, "hyperpod-rl-region": settings.region},
            termination_protection=settings.termination_protection or kept,
            analytics_reporting=False,
        )
        self.settings = settings
        # What each role of this stack may do, by construct id, with the reasons of its wildcards.
        self.allowed: dict[str, Sequence[Allow]] = {}

    def publish(self, value: Value, what: str, index: int | None = None) -> SsmParameter:
        """Write a value under its SSM name, for the stacks above and for the launcher."""
        return SsmParameter(
            self,
            f"Publish{_logical(value, index)}",
            name=parameter_name(self.settings, value, index),
            type="String",
            value=what,
        )

    def read(self, value: Value, index: int | None = None) -> str:
        """A token for a value that a stack below published."""
        logical = _logical(value, index)
        found = self.node.try_find_child(logical)
        parameter = found or CfnParameter(
            self,
            logical,
            type="AWS::SSM::Parameter::Value<String>",
            default=parameter_name(self.settings, value, index),
        )
        assert isinstance(parameter, CfnParameter)
        return parameter.value_as_string
