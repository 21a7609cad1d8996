"""How people reach Ray through a domain: Spaces with its web UI, and what that needs. Part of Platform when the environment names one.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-spaces-addon-setup.html,
https://docs.aws.amazon.com/sagemaker/latest/dg/operator-install.html
"""

from __future__ import annotations

from typing import Any

from aws_cdk import RemovalPolicy
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_kms as kms
from constructs import Construct

from config import names
from config.platform import Domain
from stacks import charts
from stacks.allow import Allow
from stacks.kubernetes import addon, chart
from stacks.roles import cluster_arn, pod_principal, role
from stacks.stack import EnvironmentStack, Settings, Shared

SPACES = "amazon-sagemaker-spaces"
EBS_CSI = "aws-ebs-csi-driver"
EXTERNAL_DNS = "external-dns"
# By two public set-ups; the documentation names no service account.
SPACES_CONTROLLER, SPACES_ROUTER = "jupyter-k8s-controller-manager", "jupyter-k8s-authmiddleware"
JWT_ROTATOR = f"{charts.ENDPOINT_OPERATOR}-jwt-rotator"
LOAD_BALANCER_TAG = "elbv2.k8s.aws/cluster"


def load_balancer_controller(stack: EnvironmentStack, cluster: eks.ICluster, *, after: list[Construct]) -> eks.HelmChart:
    """AWS Load Balancer Controller. HyperPod's nodes are not instances of this account: only targets by address reach their pods."""
    account = names.LOAD_BALANCER_SERVICE_ACCOUNT
    identity = _identity(stack, "LoadBalancer", "kube-system", account, _load_balancer_rights(stack))
    return chart(
        stack,
        "LoadBalancerController",
        cluster=cluster,
        source=charts.load_balancer_controller(stack.settings),
        release=account,
        namespace="kube-system",
        values={
            "clusterName": names.eks_cluster(stack.settings),
            "region": stack.region,
            "vpcId": stack.read(Shared.VPC),
            "serviceAccount": {"create": True, "name": account},
            "defaultTargetType": "ip",
            # What it may not do by its role it must not try.
            "enableShield": False,
            "enableWaf": False,
            "enableWafv2": False,
            **charts.image_values(stack.settings, "load-balancer-controller"),
        },
        wait=True,
        # On delete its role goes after it: it removes load balancers to the last.
        after=[identity, *after],
    )


def domain_access(stack: EnvironmentStack, domain: Domain, *, controller: Construct, certificates: Construct) -> list[Construct]:
    """Everything between a browser and Ray's dashboard, in the order in which AWS wants it. Returns what the drain comes after."""
    certificate = acm.CfnCertificate(
        stack,
        "Certificate",
        domain_name=domain.name,
        subject_alternative_names=[f"*.{domain.name}"],
        validation_method="DNS",
        domain_validation_options=[{"domainName": domain.name, "hostedZoneId": domain.hosted_zone_id}],
    )
    # Symmetric: data keys and encryption contexts exist for such keys alone.
    spaces_key = _key(stack, "SpacesKey", "Signs the sessions of Spaces")
    volumes = addon(stack, "EbsCsiDriver", EBS_CSI, service_account_roles={"ebs-csi-controller-sa": _ebs_csi(stack)})
    records = addon(
        stack,
        "ExternalDns",
        EXTERNAL_DNS,
        configuration=external_dns_configuration(stack.settings),
        service_account_roles={"external-dns": _external_dns(stack, domain)},
    )
    spaces = addon(
        stack,
        "Spaces",
        SPACES,
        configuration=spaces_configuration(domain, certificate=certificate.ref, key=spaces_key.key_arn, internal=_internal(stack)),
        service_account_roles={
            SPACES_CONTROLLER: _spaces(stack, "SpacesController", "AmazonSageMakerSpacesControllerPolicy").role_arn,
            SPACES_ROUTER: _spaces(stack, "SpacesRouter", "AmazonSageMakerSpacesRouterPolicy").role_arn,
        },
        tags={"SageMaker": "true"},
    )
    spaces.node.add_dependency(controller, certificates, volumes, records)
    return [volumes, records, spaces]


def external_dns_configuration(settings: Settings) -> dict[str, Any]:
    """Whose records they are, and that they go with their ingress.

    Without an owner every cluster calls itself `default`, and two of them in one zone delete each other's records; without `sync` a
    record stays when its load balancer is gone, and points at addresses that somebody else may get.
    https://kubernetes-sigs.github.io/external-dns/latest/docs/registry/txt/
    """
    return {"policy": "sync", "registry": "txt", "txtOwnerId": names.eks_cluster(settings)}


def spaces_configuration(domain: Domain, *, certificate: str, key: str, internal: bool) -> dict[str, Any]:
    """Configuration of the add-on, web UI on. https://docs.aws.amazon.com/sagemaker/latest/dg/operator-install.html"""
    return {
        "jupyter-k8s": {"workspacePodWatching": {"enable": True}},
        "jupyter-k8s-aws-hyperpod": {
            "clusterWebUI": {
                "enabled": True,
                "domain": domain.name,
                "awsCertificateArn": certificate,
                "kmsEncryptionContext": {"enabled": True},
                "traefik": {"shouldInstall": True},
                "auth": {"kmsKeyId": key},
                "alb": {"scheme": "internal" if internal else "internet-facing"},
            },
            "rayIntegration": {"enabled": True},
            # Its SSM registrations outlive their spaces, and it moves the account to a tier that is paid for.
            "remoteAccess": {"enabled": False},
        },
    }


def signing(stack: EnvironmentStack) -> tuple[str, eks.CfnPodIdentityAssociation]:
    """The endpoint operator's own key, and the identity that makes signing keys with it.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-endpoint-operator.html
    """
    key = _key(stack, "EndpointKey", "Makes the keys that sign links to Ray")
    identity = _identity(stack, "Endpoint", names.ENDPOINT_OPERATOR_NAMESPACE, JWT_ROTATOR, [Allow(["kms:GenerateDataKey"], [key.key_arn])])
    return key.key_arn, identity


def _internal(stack: EnvironmentStack) -> bool:
    """A network without public subnets has no place for a public load balancer."""
    return stack.settings.network.egress == "closed" or stack.settings.access.endpoint == "private"


def _key(stack: EnvironmentStack, construct_id: str, description: str) -> kms.Key:
    return kms.Key(stack, construct_id, description=description, enable_key_rotation=True, removal_policy=RemovalPolicy.DESTROY)


def _identity(stack: EnvironmentStack, workload: str, namespace: str, account: str, allow: list[Allow]) -> eks.CfnPodIdentityAssociation:
    worker = role(stack, f"{workload}Role", principal=pod_principal(stack), allow=allow, description=f"Pods of {namespace}/{account}")
    return eks.CfnPodIdentityAssociation(
        stack,
        f"{workload}Identity",
        cluster_name=names.eks_cluster(stack.settings),
        namespace=namespace,
        service_account=account,
        role_arn=worker.role_arn,
    )


def _spaces(stack: EnvironmentStack, name: str, policy: str) -> Any:
    return role(stack, f"{name}Role", principal=pod_principal(stack), managed=[policy], description=f"Pods of Spaces: {name}")


def _ebs_csi(stack: EnvironmentStack) -> str:
    """EBS volumes on HyperPod are attached by SageMaker. https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-ebs.html"""
    allow = [
        Allow(
            ["sagemaker:AttachClusterNodeVolume", "sagemaker:DetachClusterNodeVolume"],
            [f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"],
            why="the cluster's ARN ends in an id that SageMaker chooses",
        ),
        Allow(["eks:DescribeCluster"], [cluster_arn(stack)]),
    ]
    managed = ["service-role/AmazonEBSCSIDriverPolicy"]
    return role(
        stack, "EbsCsiRole", principal=pod_principal(stack), allow=allow, managed=managed, description="The EBS CSI driver"
    ).role_arn


def _external_dns(stack: EnvironmentStack, domain: Domain) -> str:
    allow = [
        Allow(["route53:ChangeResourceRecordSets"], [f"arn:{stack.partition}:route53:::hostedzone/{domain.hosted_zone_id}"]),
        Allow(
            ["route53:ListHostedZones", "route53:ListResourceRecordSets", "route53:ListTagsForResource"],
            ["*"],
            why="External DNS looks for its zone among all",
        ),
    ]
    return role(stack, "ExternalDnsRole", principal=pod_principal(stack), allow=allow, description="External DNS").role_arn


def _load_balancer_rights(stack: EnvironmentStack) -> list[Allow]:
    """What the controller needs for load balancers whose targets are addresses, bound to the tag that it puts on what it makes.

    Less than its own published policy, which also covers web application firewalls, Shield, Cognito and server certificates:
    https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/deploy/installation/
    """
    account = f"{stack.region}:{stack.account}"
    balancing = f"arn:{stack.partition}:elasticloadbalancing:{account}"
    ours = [f"{balancing}:loadbalancer/*", f"{balancing}:targetgroup/*", f"{balancing}:listener/*", f"{balancing}:listener-rule/*"]
    groups = [f"arn:{stack.partition}:ec2:{account}:security-group/*", f"arn:{stack.partition}:ec2:{account}:vpc/{stack.read(Shared.VPC)}"]
    made_here = {"StringEquals": {f"aws:RequestTag/{LOAD_BALANCER_TAG}": names.eks_cluster(stack.settings)}}
    tagged = {"StringEquals": {f"aws:ResourceTag/{LOAD_BALANCER_TAG}": names.eks_cluster(stack.settings)}}
    unnamed = "what it makes has no id before it is made"
    return [
        Allow(
            [
                "ec2:DescribeAccountAttributes",
                "ec2:DescribeAvailabilityZones",
                "ec2:DescribeInstances",
                "ec2:DescribeInternetGateways",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeRouteTables",
                "ec2:DescribeSecurityGroups",
                "ec2:DescribeSubnets",
                "ec2:DescribeTags",
                "ec2:DescribeVpcs",
                "ec2:GetSecurityGroupsForVpc",
                "elasticloadbalancing:DescribeCapacityReservation",
                "elasticloadbalancing:DescribeListenerAttributes",
                "elasticloadbalancing:DescribeListenerCertificates",
                "elasticloadbalancing:DescribeListeners",
                "elasticloadbalancing:DescribeLoadBalancerAttributes",
                "elasticloadbalancing:DescribeLoadBalancers",
                "elasticloadbalancing:DescribeRules",
                "elasticloadbalancing:DescribeSSLPolicies",
                "elasticloadbalancing:DescribeTags",
                "elasticloadbalancing:DescribeTargetGroupAttributes",
                "elasticloadbalancing:DescribeTargetGroups",
                "elasticloadbalancing:DescribeTargetHealth",
                "acm:ListCertificates",
            ],
            ["*"],
            why="these actions know no resource",
        ),
        # An account that never had a load balancer has no such role yet.
        Allow(
            ["iam:CreateServiceLinkedRole"],
            [
                f"arn:{stack.partition}:iam::{stack.account}:role/aws-service-role/"
                "elasticloadbalancing.amazonaws.com/AWSServiceRoleForElasticLoadBalancing"
            ],
            conditions={"StringEquals": {"iam:AWSServiceName": "elasticloadbalancing.amazonaws.com"}},
        ),
        Allow(["acm:DescribeCertificate"], [f"arn:{stack.partition}:acm:{account}:certificate/*"], why="it looks for the host's one"),
        Allow(
            ["elasticloadbalancing:CreateLoadBalancer", "elasticloadbalancing:CreateTargetGroup", "elasticloadbalancing:AddTags"],
            ours,
            conditions=made_here,
            why=unnamed,
        ),
        Allow(
            [
                "elasticloadbalancing:AddListenerCertificates",
                "elasticloadbalancing:AddTags",
                "elasticloadbalancing:CreateListener",
                "elasticloadbalancing:CreateRule",
                "elasticloadbalancing:DeleteListener",
                "elasticloadbalancing:DeleteLoadBalancer",
                "elasticloadbalancing:DeleteRule",
                "elasticloadbalancing:DeleteTargetGroup",
                "elasticloadbalancing:DeregisterTargets",
                "elasticloadbalancing:ModifyListener",
                "elasticloadbalancing:ModifyListenerAttributes",
                "elasticloadbalancing:ModifyLoadBalancerAttributes",
                "elasticloadbalancing:ModifyRule",
                "elasticloadbalancing:ModifyTargetGroup",
                "elasticloadbalancing:ModifyTargetGroupAttributes",
                "elasticloadbalancing:RegisterTargets",
                "elasticloadbalancing:RemoveListenerCertificates",
                "elasticloadbalancing:RemoveTags",
                "elasticloadbalancing:SetIpAddressType",
                "elasticloadbalancing:SetRulePriorities",
                "elasticloadbalancing:SetSecurityGroups",
                "elasticloadbalancing:SetSubnets",
            ],
            ours,
            conditions=tagged,
            why=unnamed,
        ),
        Allow(["ec2:CreateSecurityGroup"], groups, why=unnamed),
        Allow(["ec2:CreateTags"], groups[:1], conditions={"StringEquals": {"ec2:CreateAction": "CreateSecurityGroup"}}, why=unnamed),
        Allow(
            [
                "ec2:AuthorizeSecurityGroupIngress",
                "ec2:DeleteSecurityGroup",
                "ec2:DeleteTags",
                "ec2:RevokeSecurityGroupIngress",
            ],
            groups[:1],
            conditions=tagged,
            why=unnamed,
        ),
        # The nodes' group must let its load balancers in: one group, by its id.
        Allow(
            ["ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress"],
            [f"arn:{stack.partition}:ec2:{account}:security-group/{stack.read(Shared.NODES_GROUP)}"],
        ),
    ]
