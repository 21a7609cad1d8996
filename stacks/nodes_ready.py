"""NodesReady: waits for the nodes that the stacks above need. Failing it keeps the cluster; deploying it again goes on."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import custom_resources as cr
from constructs import Construct

from config import names
from stacks.allow import Allow
from stacks.functions import function, resource
from stacks.kubernetes import access
from stacks.roles import cluster_arn
from stacks.stack import EnvironmentStack, Settings, Shared

# CloudFormation ends a custom resource at one hour; the handler's own end comes before, since it says why.
LONGEST_MINUTES = 57


class NodesReady(EnvironmentStack):
    """A custom resource whose properties are the groups' counts: a change of one makes it wait again."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.NODES_READY, description="Waits until every instance group has its nodes")
        # The only policy of EKS that shows nodes without letting anything be changed.
        looker = self.read(Shared.NODES_WAITER_ROLE)
        seen = access(self, "ReadyAccess", principal=looker, policies=[("AmazonEKSAdminViewPolicy", ())])
        minutes = _minutes(settings)
        waited = resource(
            self,
            "Nodes",
            kind="NodesReady",
            token=self.read(Shared.NODES_WAITER),
            timeout_minutes=minutes + 2,
            properties={
                "ClusterName": names.hyperpod_cluster(settings),
                "EksClusterName": names.eks_cluster(settings),
                "TimeoutMinutes": str(minutes),
                "Groups": [
                    {"Name": group.name, "Count": str(group.count), "Gpus": str(group.instance.gpus)} for group in settings.instance_groups
                ],
            },
        )
        waited.node.add_dependency(seen)
        self.publish(
            names.Parameter.NODES_READY, ",".join(f"{group.name}={group.count}" for group in settings.instance_groups)
        ).node.add_dependency(waited)


def waiter(stack: EnvironmentStack) -> None:
    """What waits, made in the stack below while the cluster takes its twenty minutes, so that the wait begins with the nodes."""
    # SageMaker ends a cluster's ARN in an id of its own choosing.
    clusters = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"
    begin = function(stack, "Begin", handler="nodes_ready.on_event", description="Begins to wait for nodes")
    ready = function(
        stack,
        "Ready",
        handler="nodes_ready.is_complete",
        description="Looks whether all nodes are ready",
        in_network=True,
        allow=[
            Allow(
                ["sagemaker:ListClusterNodes", "sagemaker:ListClusterEvents", "sagemaker:DescribeCluster"],
                [clusters],
                why="the cluster's ARN ends in an id that SageMaker chooses",
            ),
            Allow(["eks:DescribeCluster"], [cluster_arn(stack)]),
        ],
    )
    provider = cr.Provider(
        stack,
        "Provider",
        on_event_handler=begin,
        is_complete_handler=ready,
        query_interval=Duration.seconds(10),
        total_timeout=Duration.minutes(_minutes(stack.settings) + 1),
        log_group=ready.log_group,
    )
    assert ready.role is not None
    stack.publish(Shared.NODES_WAITER, provider.service_token)
    stack.publish(Shared.NODES_WAITER_ROLE, ready.role.role_arn)


def _minutes(settings: Settings) -> int:
    return min(settings.hyperpod.nodes_ready_timeout_minutes, LONGEST_MINUTES)
