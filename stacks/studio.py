"""Studio: a SageMaker domain whose users reach the cluster. Optional."""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from config import names
from stacks.allow import Allow
from stacks.kubernetes import access
from stacks.roles import cluster_arn, role
from stacks.stack import EnvironmentStack, Settings, Shared

POLICIES = ("AmazonSagemakerHyperpodTrainingPolicy", "AmazonSagemakerHyperpodInferencePolicy")


class Studio(EnvironmentStack):
    """Domain, one user profile and its access entry. A Studio app that still runs keeps the domain from being deleted."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.STUDIO, description="SageMaker Studio domain for Ray")
        clusters = f"arn:{self.partition}:sagemaker:{self.region}:{self.account}:cluster/*"
        user = role(
            self,
            "UserRole",
            principal=iam.ServicePrincipal("sagemaker.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": self.account}}),
            description="Studio users",
            managed=["AmazonSageMakerFullAccess"],
            allow=[
                # AmazonSageMakerFullAccess has no action of EKS.
                Allow(
                    ["eks:DescribeCluster", "eks:AccessKubernetesApi", "eks:MutateViaKubernetesApi", "eks:DescribeAddon"],
                    [cluster_arn(self), cluster_arn(self).replace(":cluster/", ":addon/") + "/*"],
                    why="the add-ons of this cluster",
                ),
                Allow(["sagemaker:DescribeCluster"], [clusters], why="the cluster's ARN ends in an id that SageMaker chooses"),
                Allow(["sagemaker:ListClusters"], ["*"], why="a list names no cluster"),
            ],
        )
        closed = settings.network.egress == "closed"
        domain = sagemaker.CfnDomain(
            self,
            "Domain",
            domain_name=f"{names.PREFIX}-{settings.name}",
            auth_mode="IAM",
            vpc_id=self.read(Shared.VPC),
            # The control plane's subnets: pods take their addresses from the nodes' subnet.
            subnet_ids=[self.read(Shared.CLUSTER_SUBNET, 1)],
            app_network_access_type="VpcOnly" if closed else "PublicInternetOnly",
            # Apps inside the VPC speak to each other and to their home directory, which this group's own rule lets them.
            default_user_settings={"executionRole": user.role_arn, "securityGroups": [self.read(Shared.NODES_GROUP)] if closed else None},
        )
        sagemaker.CfnUserProfile(
            self,
            "User",
            domain_id=domain.attr_domain_id,
            user_profile_name=settings.studio.user_profile,
            user_settings={"executionRole": user.role_arn},
        )
        policies = [(policy, settings.namespaces) for policy in POLICIES]
        access(self, "UserAccess", principal=user.role_arn, policies=[*policies, ("AmazonSagemakerHyperpodUserClusterPolicy", ())])
