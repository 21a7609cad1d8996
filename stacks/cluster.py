"""Cluster: EKS with the add-ons that live without nodes, the access of people, the kubectl provider, and the charts' mirror."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from aws_cdk import Annotations, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk.lambda_layer_kubectl_v34 import KubectlV34Layer
from constructs import Construct

from config import names
from stacks import delivery
from stacks.builds import ChartMirror, ImageMirror
from stacks.functions import log_group
from stacks.kubernetes import access, addon
from stacks.stack import EnvironmentStack, Settings, Shared, cluster_subnets

# Layer and Kubernetes version go together; another version of Kubernetes needs the layer of its own name.
KUBECTL_LAYERS = {"1.34": KubectlV34Layer}
TRAINING_POLICY = "AmazonSagemakerHyperpodTrainingPolicy"
INFERENCE_POLICY = "AmazonSagemakerHyperpodInferencePolicy"
# https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-studio-setup-eks.html (note AWS's spelling `Sagemaker`)
USER_POLICY = "AmazonSagemakerHyperpodUserClusterPolicy"


class Cluster(EnvironmentStack):
    """EKS by its fixed name: AWS itself then refuses to replace it silently."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.CLUSTER, description="EKS cluster, its first add-ons and who may use it")
        platform = settings.version_set.platform
        # EKS writes to this group whether it is there or not; made here, it has a retention and goes with the stack.
        logs = log_group(self, "ControlPlaneLogs", name=f"/aws/eks/{names.eks_cluster(settings)}/cluster")
        cluster = eks.Cluster(
            self,
            "Cluster",
            cluster_name=names.eks_cluster(settings),
            version=eks.KubernetesVersion.of(platform.kubernetes),
            vpc=self._network(),
            vpc_subnets=[ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)],
            security_group=ec2.SecurityGroup.from_security_group_id(
                self, "ControlPlane", self.read(Shared.CONTROL_PLANE_GROUP), mutable=False
            ),
            endpoint_access=self._endpoint(),
            cluster_logging=list(eks.ClusterLoggingTypes),
            secrets_encryption_key=self._key(),
            # HyperPod brings the nodes. CDK's default is EKS Auto Mode, which would bring its own.
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            # Access comes from access entries alone, so nobody is let in for having run the deploy.
            bootstrap_cluster_creator_admin_permissions=False,
            bootstrap_self_managed_addons=False,
            output_config_command=False,
            kubectl_provider_options=eks.KubectlProviderOptions(
                kubectl_layer=KUBECTL_LAYERS[platform.kubernetes](self, "KubectlLayer"),
                security_groups=[
                    ec2.SecurityGroup.from_security_group_id(self, "Handlers", self.read(Shared.HANDLER_GROUP), mutable=False)
                ],
            ),
        )
        made = cluster.node.default_child
        assert made is not None
        made.node.add_dependency(logs)
        Annotations.of(cluster).acknowledge_warning("@aws-cdk/aws-eks:clusterMustManuallyTagSubnet", "Network tags its own subnets")
        self._logged(cluster)
        for name in ("vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent"):
            configuration = {"enableNetworkPolicy": "true"} if name == "vpc-cni" else None
            # Of the cluster alone: the kubectl provider that CDK makes inside it takes as long again.
            addon(self, name.title().replace("-", ""), name, configuration=configuration).node.add_dependency(made)
        self._people(cluster)
        if settings.access.delivery is not None:
            delivery.roles(self, settings.access.delivery)
        ChartMirror(self)
        if settings.network.egress == "closed":
            ImageMirror(self)
        provider = cluster.kubectl_provider
        assert provider is not None
        self.publish(names.Parameter.EKS_CLUSTER, cluster.cluster_name)
        self.publish(Shared.KUBECTL_SERVICE, provider.service_token)

    def _network(self) -> ec2.IVpc:
        """The control plane's subnets, in the shape that CDK asks for: it writes nothing of a VPC into the template but their ids."""
        count = cluster_subnets(self.settings)
        vpc = ec2.Vpc.from_vpc_attributes(
            self,
            "Network",
            vpc_id="vpc-of-the-network-stack",
            availability_zones=[f"zone-{number}" for number in range(count)],
            private_subnet_ids=[self.read(Shared.CLUSTER_SUBNET, number + 1) for number in range(count)],
        )
        Annotations.of(vpc).acknowledge_warning("@aws-cdk/aws-ec2:noSubnetRouteTableId", "routes belong to Network")
        return vpc

    def _endpoint(self) -> eks.EndpointAccess:
        """Nodes and functions use the private endpoint in any case; a public one is for people."""
        if self.settings.access.endpoint == "private":
            return eks.EndpointAccess.PRIVATE
        allowed = self.settings.access.public_cidrs
        return eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*allowed) if allowed else eks.EndpointAccess.PUBLIC_AND_PRIVATE

    def _key(self) -> kms.Key | None:
        if self.settings.storage.encryption == "aws":
            return None
        return kms.Key(
            self,
            "SecretsKey",
            description=f"Kubernetes secrets of {names.eks_cluster(self.settings)}",
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.DESTROY,
        )

    def _logged(self, cluster: eks.Cluster) -> None:
        """CDK's own functions get log groups here: it offers no property for them, and an implicit group outlives the stack."""
        provider = cluster.node.find_child("KubectlProvider")
        for name, construct in (
            ("Handler", provider.node.find_child("Handler")),
            ("Framework", provider.node.find_child("Provider").node.find_child("framework-onEvent")),
        ):
            made = construct.node.default_child
            assert isinstance(made, lambda_.CfnFunction)
            made.add_property_override("LoggingConfig.LogGroup", log_group(self, f"Kubectl{name}Logs").log_group_name)

    def _people(self, cluster: eks.Cluster) -> None:
        """One entry for each principal, whatever it is in, and each policy once in it: EKS takes no second one of either."""
        wanted: dict[str, dict[str, Sequence[str]]] = {}
        allowed = self.settings.access
        for arn in allowed.administrators:
            wanted.setdefault(arn, {})["AmazonEKSClusterAdminPolicy"] = ()
        for users, policy in ((allowed.training_users, TRAINING_POLICY), (allowed.inference_users, INFERENCE_POLICY)):
            for user in users:
                entry = wanted.setdefault(user.role_arn, {})
                # Named twice, it may do both: EKS takes a policy once, with all of its namespaces.
                namespaces = (*entry.get(policy, ()), *(user.namespaces or self.settings.namespaces))
                entry[policy] = tuple(dict.fromkeys(namespaces))
                entry.setdefault(USER_POLICY, ())
        for arn, policies in wanted.items():
            # Named by the principal: numbered ones would all be replaced by one that comes in between, and EKS takes no second entry.
            short = arn.rpartition("/")[2].title().replace("-", "").replace("_", "")
            entry_id = f"Access{short}{hashlib.sha256(arn.encode()).hexdigest()[:4]}"
            access(self, entry_id, principal=arn, policies=list(policies.items())).node.add_dependency(cluster)
