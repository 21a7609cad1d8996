"""Studio: a SageMaker domain whose users reach the cluster. Optional."""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from config import names
from stacks.allow import Allow
from stacks.functions import function, resource
from stacks.kubernetes import access
from stacks.roles import cluster_arn, role
from stacks.stack import EnvironmentStack, Settings, Shared

POLICIES = ("AmazonSagemakerHyperpodTrainingPolicy", "AmazonSagemakerHyperpodInferencePolicy")
SPACE_POLICY, TEMPLATE_POLICY = "AmazonSagemakerHyperpodSpacePolicy", "AmazonSagemakerHyperpodSpaceTemplatePolicy"
# The documentation names the second only; a field report of the add-on v0.2.0 has the templates in the first. EKS takes both, there or not.
TEMPLATE_NAMESPACES = ("jupyter-k8s-system", "jupyter-k8s-shared")


class Studio(EnvironmentStack):
    """Domain, one user profile and its access entry. A Studio app that still runs keeps the domain from being deleted.

    Home directories go with the domain, unless `storage.removal` is `retain`: then they stay in the network, which stays, too.
    """

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
        profile = sagemaker.CfnUserProfile(
            self,
            "User",
            domain_id=domain.attr_domain_id,
            user_profile_name=settings.studio.user_profile,
            user_settings={"executionRole": user.role_arn},
        )
        if settings.storage.removal != "retain":
            self._home(domain, profile)
        policies: list[tuple[str, tuple[str, ...]]] = [(policy, settings.namespaces) for policy in POLICIES]
        if settings.remote_access.domain is not None:  # Spaces are there, and Studio opens them
            policies += [(SPACE_POLICY, settings.namespaces), (TEMPLATE_POLICY, TEMPLATE_NAMESPACES)]
        access(self, "UserAccess", principal=user.role_arn, policies=[*policies, ("AmazonSagemakerHyperpodUserClusterPolicy", ())])

    def _home(self, domain: sagemaker.CfnDomain, profile: sagemaker.CfnUserProfile) -> None:
        """Goes first: CloudFormation would delete the domain and keep its file system, whose mount targets keep the VPC."""
        place, domain_id = f"arn:{self.partition}:sagemaker:{self.region}:{self.account}", domain.attr_domain_id
        vpc = f"arn:{self.partition}:ec2:{self.region}:{self.account}:vpc/{self.read(Shared.VPC)}"
        remover = function(
            self,
            "HomeFunction",
            handler="studio_home.handler",
            description="Deletes the Studio domain with its home directories",
            minutes=15,
            allow=[
                Allow(["sagemaker:DescribeDomain", "sagemaker:DeleteDomain"], [f"{place}:domain/{domain_id}"]),
                Allow(
                    ["sagemaker:DeleteSpace", "sagemaker:DeleteUserProfile"],
                    [f"{place}:space/{domain_id}/*", f"{place}:user-profile/{domain_id}/*"],
                    why="whatever people made in this domain",
                ),
                Allow(["sagemaker:ListApps", "sagemaker:ListSpaces", "sagemaker:ListUserProfiles"], ["*"], why="a list names no domain"),
                Allow(["ec2:DescribeSecurityGroups"], ["*"], why="this action knows no resource"),
                Allow(
                    ["ec2:DeleteSecurityGroup", "ec2:RevokeSecurityGroupEgress", "ec2:RevokeSecurityGroupIngress"],
                    [f"arn:{self.partition}:ec2:{self.region}:{self.account}:security-group/*"],
                    {"ArnEquals": {"ec2:Vpc": vpc}},
                    why="SageMaker makes two for the home directories and chooses their ids; only in this VPC",
                ),
            ],
        )
        resource(
            self, "Home", kind="StudioHome", token=remover.function_arn, properties={"DomainId": domain_id}, timeout_minutes=16
        ).node.add_dependency(profile)
