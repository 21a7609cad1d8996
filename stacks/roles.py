"""IAM roles with their policies inline: a role that exists has its permissions, so nothing can come between the two.

A public HyperPod stack failed with "Unable to retrieve subnets" because its cluster waited for the role and not for the policy
resource beside it; inline policies leave no such gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from aws_cdk import aws_iam as iam

from config import names
from stacks.allow import Allow
from stacks.stack import EnvironmentStack

# AWS's managed policies that our roles carry, and why; a role asks for no other (ValueError).
MANAGED: Mapping[str, str] = MappingProxyType({
    "AmazonSageMakerClusterInstanceRolePolicy": "what SageMaker's agents on a node do; AWS keeps it in step with them",
    "ReadOnlyAccess": "drift detection reads every resource of every stack with its caller's rights",
    "AmazonSageMakerFullAccess": "what Studio itself does for its users; AWS keeps it in step with Studio",
    "AmazonEKSClusterPolicy": "what the control plane does; AWS keeps it in step with EKS",
    "AmazonEC2ContainerRegistryReadOnly": "CDK's kubectl handler pulls charts from this account's ECR",
    "AmazonElasticContainerRegistryPublicReadOnly": "CDK's kubectl handler pulls charts from the public ECR",
    "service-role/AWSLambdaBasicExecutionRole": "a function writes its log; it names no group, since every one has one of its own",
    "service-role/AWSLambdaVPCAccessExecutionRole": "a function in the VPC has interfaces, which have no id before they are made",
    "service-role/AmazonEBSCSIDriverPolicy": "what the EBS CSI driver does; AWS keeps it in step with the driver",
    "AmazonSageMakerSpacesControllerPolicy": "what the controller of Spaces does; AWS keeps it in step with the add-on",
    "AmazonSageMakerSpacesRouterPolicy": "what the router of Spaces does; AWS keeps it in step with the add-on",
})  # fmt: skip


def role(
    scope: EnvironmentStack,
    construct_id: str,
    *,
    principal: iam.IPrincipal,
    allow: Sequence[Allow] = (),
    managed: Sequence[str] = (),
    description: str,
) -> iam.Role:
    """A role with one inline policy; `managed` are names of AWS managed policies. Raises ValueError for one that MANAGED lacks."""
    if unknown := set(managed) - set(MANAGED):
        raise ValueError(f"say in MANAGED why a role needs {', '.join(sorted(unknown))}")
    scope.allowed[construct_id] = allow
    documents = {"own": iam.PolicyDocument(statements=[entry.statement() for entry in allow])} if allow else None
    return iam.Role(
        scope,
        construct_id,
        assumed_by=principal,
        description=description,
        inline_policies=documents,
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in managed],
    )


def pod_principal(stack: EnvironmentStack) -> iam.IPrincipal:
    """Trust for EKS Pod Identity, narrowed to this account and this cluster; it needs sts:TagSession beside sts:AssumeRole.

    https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html
    """
    return iam.ServicePrincipal(
        "pods.eks.amazonaws.com",
        conditions={"StringEquals": {"aws:SourceAccount": stack.account}, "ArnEquals": {"aws:SourceArn": cluster_arn(stack)}},
    ).with_session_tags()


def cluster_arn(stack: EnvironmentStack) -> str:
    """ARN of the EKS cluster: its name is fixed, so no reference across stacks is needed."""
    return f"arn:{stack.partition}:eks:{stack.region}:{stack.account}:cluster/{names.eks_cluster(stack.settings)}"


def bucket_arn(stack: EnvironmentStack, bucket: str, path: str = "") -> str:
    """ARN of a bucket, or of what lies below a path in it."""
    return f"arn:{stack.partition}:s3:::{bucket}" + (f"/{path}" if path else "")
