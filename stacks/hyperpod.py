"""HyperPod: dependency chart, then execution role and lifecycle script, then the cluster."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from config import names
from config.compute import InstanceGroup
from stacks import charts
from stacks.allow import Allow
from stacks.functions import function, resource
from stacks.kubernetes import chart, existing_cluster
from stacks.nodes_ready import waiter
from stacks.roles import bucket_arn, cluster_arn, role
from stacks.stack import EnvironmentStack, Settings, Shared

SCRIPT = Path(__file__).resolve().parent / "lifecycle" / "on_create.sh"


class HyperPod(EnvironmentStack):
    """`AWS::SageMaker::Cluster` by its fixed name, and what it refuses to be made without."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.HYPERPOD, description="HyperPod cluster with its dependency chart, role and scripts")
        # There are no nodes yet: waiting for this chart's pods would wait for ever.
        dependencies = chart(
            self,
            "DependencyChart",
            cluster=existing_cluster(self),
            source=charts.dependency_chart(settings),
            release=names.DEPENDENCY_CHART_RELEASE,
            namespace=names.DEPENDENCY_CHART_NAMESPACE,
            values=charts.dependency_values(settings).rendered(),
            wait=False,
        )
        bucket = self._bucket()
        scripts, uri = self._scripts(bucket)
        executor = self._execution_role(bucket)
        cluster = sagemaker.CfnCluster(
            self,
            "HyperPod",
            cluster_name=names.hyperpod_cluster(settings),
            orchestrator={"eks": {"clusterArn": cluster_arn(self)}},
            vpc_config={"securityGroupIds": [self.read(Shared.NODES_GROUP)], "subnets": [self.read(Shared.HYPERPOD_SUBNET)]},
            instance_groups=[_group(group, role_arn=executor.role_arn, scripts=uri) for group in settings.instance_groups],
            node_recovery=settings.hyperpod.node_recovery,
            node_provisioning_mode="Continuous" if settings.hyperpod.continuous_provisioning else None,
            tags=self._tags(),
            **self._options(),
        )
        cluster.node.add_dependency(dependencies, executor, scripts)
        waiter(self)
        self.publish(names.Parameter.HYPERPOD_CLUSTER, names.hyperpod_cluster(settings)).add_resource_dependency(cluster)
        self.publish(names.Parameter.HYPERPOD_ARN, cluster.attr_cluster_arn)

    def _tags(self) -> list[dict[str, str]]:
        tags = [{"key": "SageMaker", "value": "true"}]
        if self.settings.observability.enabled and self.settings.observability.grafana != "none":
            # Studio finds the dashboards by this tag.
            tags.append({"key": "grafana-workspace", "value": self.read(names.Parameter.GRAFANA_ID)})
        return tags

    def _options(self) -> dict[str, Any]:
        wanted = self.settings.hyperpod
        options: dict[str, Any] = {}
        if wanted.tiered_storage_percent:
            options["tiered_storage_config"] = {"mode": "Enable", "instanceMemoryAllocationPercentage": wanted.tiered_storage_percent}
        if wanted.autoscaling == "karpenter":
            keys = f"arn:{self.partition}:kms:{self.region}:{self.account}:key/*"
            through = {"StringEquals": {"kms:ViaService": f"sagemaker.{self.region}.amazonaws.com"}}
            chosen = "the key of a node's volumes is the account's choice; only SageMaker can use it so"
            scaler = role(
                self,
                "ScalerRole",
                principal=iam.ServicePrincipal("hyperpod.sagemaker.amazonaws.com"),
                description="Adds and removes nodes",
                allow=[
                    Allow(
                        ["sagemaker:BatchAddClusterNodes", "sagemaker:BatchDeleteClusterNodes"],
                        [f"arn:{self.partition}:sagemaker:{self.region}:{self.account}:cluster/*"],
                        why="the cluster's ARN ends in an id that SageMaker chooses",
                    ),
                    # Volumes under a key of one's own:
                    # https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-autoscaling-iam.html
                    Allow(["kms:CreateGrant"], [keys], {**through, "Bool": {"kms:GrantIsForAWSResource": "true"}}, why=chosen),
                    Allow(["kms:DescribeKey"], [keys], through, why=chosen),
                ],
            )
            options |= {"auto_scaling": {"mode": "Enable", "autoScalerType": "Karpenter"}, "cluster_role": scaler.role_arn}
        return options

    def _bucket(self) -> s3.Bucket:
        return s3.Bucket(
            self,
            "Scripts",
            bucket_name=names.lifecycle_bucket(self.settings),
            enforce_ssl=True,
            minimum_tls_version=1.2,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.S3_MANAGED,
            removal_policy=RemovalPolicy.DESTROY,
        )

    def _scripts(self, bucket: s3.Bucket) -> tuple[Construct, str]:
        """Put the script under a prefix that names its content: a new script is a new address, taken without interruption."""
        text = SCRIPT.read_text(encoding="utf-8")
        prefix = f"lifecycle/{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        arn = bucket_arn(self, bucket.bucket_name)
        writer = function(
            self,
            "WriteScripts",
            handler="lifecycle_scripts.handler",
            description="Puts HyperPod's lifecycle scripts into their bucket",
            allow=[
                Allow(["s3:ListBucketVersions", "s3:ListBucketMultipartUploads"], [arn]),
                Allow(
                    ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"],
                    [f"{arn}/*"],
                    why="every object of this bucket",
                ),
            ],
        )
        written = resource(
            self,
            "LifecycleScripts",
            kind="LifecycleScripts",
            token=writer.function_arn,
            timeout_minutes=6,
            properties={"Bucket": bucket.bucket_name, "Prefix": prefix, "Scripts": {SCRIPT.name: text}},
        )
        written.node.add_dependency(bucket)
        return written, f"s3://{bucket.bucket_name}/{prefix}"

    def _execution_role(self, bucket: s3.Bucket) -> iam.Role:
        """What a node may do. https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites-iam.html"""
        ec2 = f"arn:{self.partition}:ec2:{self.region}:{self.account}"
        interfaces = [f"{ec2}:instance/*", f"{ec2}:network-interface/*"]
        places = [
            f"{ec2}:vpc/{self.read(Shared.VPC)}",
            f"{ec2}:subnet/{self.read(Shared.HYPERPOD_SUBNET)}",
            f"{ec2}:security-group/{self.read(Shared.NODES_GROUP)}",
        ]
        return role(
            self,
            "ExecutionRole",
            # As AWS's own template trusts it: no page says that HyperPod sends aws:SourceAccount, and without it no node would come up.
            # Nobody else profits: whoever makes a cluster with this role must be allowed to pass it.
            principal=iam.ServicePrincipal("sagemaker.amazonaws.com"),
            description="HyperPod nodes",
            managed=["AmazonSageMakerClusterInstanceRolePolicy"],
            allow=[
                Allow(
                    ["ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface"],
                    interfaces,
                    why="interfaces of nodes have no id before they are made",
                ),
                Allow(
                    [
                        "ec2:AssignPrivateIpAddresses",
                        "ec2:CreateNetworkInterface",
                        "ec2:CreateNetworkInterfacePermission",
                        "ec2:DeleteNetworkInterface",
                        "ec2:DeleteNetworkInterfacePermission",
                        "ec2:ModifyNetworkInterfaceAttribute",
                        "ec2:UnassignPrivateIpAddresses",
                    ],
                    [*interfaces, *places],
                    why="interfaces of nodes have no id before they are made",
                ),
                Allow(["ec2:CreateTags"], [f"{ec2}:network-interface/*"], why="interfaces of nodes have no id before they are made"),
                Allow(
                    [
                        "ec2:DescribeInstances",
                        "ec2:DescribeInstanceTypes",
                        "ec2:DescribeNetworkInterfaces",
                        "ec2:DescribeTags",
                        "ec2:DescribeSubnets",
                        "ec2:DescribeVpcs",
                        "ec2:DescribeDhcpOptions",
                        "ec2:DescribeSecurityGroups",
                        "ecr:GetAuthorizationToken",
                        "cloudwatch:DescribeAlarms",
                    ],
                    ["*"],
                    why="these actions know no resource",
                ),
                Allow(
                    ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                    [f"arn:{self.partition}:ecr:{self.region}:*:repository/*"],
                    why="add-ons pull from AWS's own registries, whose accounts differ by region",
                ),
                # The Pod Identity agent runs with the node's role.
                Allow(["eks-auth:AssumeRoleForPodIdentity"], [cluster_arn(self)]),
                Allow(["s3:ListBucket"], [bucket_arn(self, bucket.bucket_name)]),
                Allow(["s3:GetObject"], [bucket_arn(self, bucket.bucket_name, "*")], why="every script of this bucket"),
            ],
        )


def _group(group: InstanceGroup, *, role_arn: str, scripts: str) -> dict[str, Any]:
    """An instance group as CloudFormation wants it; what the environment leaves out is left out here."""
    made: dict[str, Any] = {
        "instanceGroupName": group.name,
        "instanceType": group.instance_type,
        "instanceCount": group.count,
        "executionRole": role_arn,
        "lifeCycleConfig": {"sourceS3Uri": scripts, "onCreate": SCRIPT.name},
        "instanceStorageConfigs": [{"ebsVolumeConfig": {"volumeSizeInGb": group.volume_gib}}],
    }
    if group.threads_per_core:
        made["threadsPerCore"] = group.threads_per_core
    if group.deep_health_checks:
        made["onStartDeepHealthChecks"] = list(group.deep_health_checks)
    if group.training_plan_arn:
        made["trainingPlanArn"] = group.training_plan_arn
    if group.capacity == "spot":
        made["capacityRequirements"] = {"spot": {}}
    if group.labels or group.taints:
        taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in group.taints]
        made["kubernetesConfig"] = {"labels": dict(group.labels) or None, "taints": taints or None}
    return made
