"""Everything that exists in the local cloud, from every list call that a user could make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from local.cloud import ACCOUNT, accounts
from local.cloud.services import grafana_http
from local.cloud.store import Cloud

Lister = Callable[[Cloud], Iterator[str]]


def inventory(cloud: Cloud) -> dict[str, list[str]]:
    """Names of what exists by kind, in every account that was ever named; those of other accounts than the default one say so.

    Kinds of which nothing exists are left out. Blocks: call it on a worker thread.
    """
    found: dict[str, list[str]] = {}
    for account in accounts.seen():
        with accounts.acting_as(account):
            for kind, names in _of_account(cloud).items():
                found.setdefault(kind, []).extend(names if account == ACCOUNT else [f"{name} (account {account})" for name in names])
    if cloud.clusters is not None:
        objects = sorted(cloud.clusters.objects())
        if objects:
            found["Kubernetes object"] = objects
    return found


def _of_account(cloud: Cloud) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, lister in _LISTERS.items():
        names = sorted(set(lister(cloud)))
        if names:
            found[kind] = names
    for resource in cloud.store.all():
        names = found.setdefault(resource.kind, [])
        if resource.id not in names:
            names.append(resource.id)
    return found


def _pages(cloud: Cloud, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    client = cloud.client(service)
    if client.can_paginate(operation):
        for page in client.get_paginator(operation).paginate(**arguments):
            yield from page.get(key, [])
    else:
        yield from getattr(client, operation)(**arguments).get(key, [])


def _stacks(cloud: Cloud) -> Iterator[str]:
    for stack in _pages(cloud, "cloudformation", "list_stacks", "StackSummaries"):
        if stack["StackStatus"] != "DELETE_COMPLETE":
            yield f"{stack['StackName']} {stack['StackStatus']}"


def _buckets(cloud: Cloud) -> Iterator[str]:
    for bucket in cloud.client("s3").list_buckets()["Buckets"]:
        yield bucket["Name"]


def _objects(cloud: Cloud) -> Iterator[str]:
    for bucket in _buckets(cloud):
        for key in _pages(cloud, "s3", "list_objects_v2", "Contents", Bucket=bucket):
            yield f"s3://{bucket}/{key['Key']}"


def _roles(cloud: Cloud) -> Iterator[str]:
    for role in _pages(cloud, "iam", "list_roles", "Roles"):
        if not role["Path"].startswith("/aws-service-role/"):
            yield role["RoleName"]


def _keys(cloud: Cloud) -> Iterator[str]:
    """Keys in use: one that waits for its deletion costs nothing and cannot be removed sooner."""
    kms = cloud.client("kms")
    for key in _pages(cloud, "kms", "list_keys", "Keys"):
        described = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
        if described["KeyManager"] == "CUSTOMER" and described["KeyState"] != "PendingDeletion":
            yield key["KeyId"]


def _budgets(cloud: Cloud) -> Iterator[str]:
    for budget in _pages(cloud, "budgets", "describe_budgets", "Budgets", AccountId=accounts.current()):
        yield budget["BudgetName"]


def _vpcs(cloud: Cloud) -> set[str]:
    return {v["VpcId"] for v in cloud.client("ec2").describe_vpcs()["Vpcs"] if not v.get("IsDefault")}


def _in_own_vpcs(operation: str, key: str, name: str) -> Lister:
    """What lies in a VPC that is not the account's default one."""

    def lister(cloud: Cloud) -> Iterator[str]:
        vpcs = _vpcs(cloud)
        for item in _pages(cloud, "ec2", operation, key):
            if item.get("VpcId") in vpcs:
                yield item[name]

    return lister


def _nat_gateways(cloud: Cloud) -> Iterator[str]:
    for gateway in _pages(cloud, "ec2", "describe_nat_gateways", "NatGateways"):
        if gateway["State"] != "deleted":
            yield gateway["NatGatewayId"]


def _internet_gateways(cloud: Cloud) -> Iterator[str]:
    vpcs = _vpcs(cloud)
    for gateway in _pages(cloud, "ec2", "describe_internet_gateways", "InternetGateways"):
        attached = [a.get("VpcId") for a in gateway.get("Attachments", [])]
        if not attached or vpcs & set(attached):
            yield gateway["InternetGatewayId"]


def _instances(cloud: Cloud) -> Iterator[str]:
    """A terminated instance stays in the list for an hour and costs nothing."""
    for reservation in _pages(cloud, "ec2", "describe_instances", "Reservations"):
        yield from (i["InstanceId"] for i in reservation["Instances"] if i["State"]["Name"] != "terminated")


def _below_eks(operation: str, key: str) -> Lister:
    def lister(cloud: Cloud) -> Iterator[str]:
        for cluster in _pages(cloud, "eks", "list_clusters", "clusters"):
            for item in _pages(cloud, "eks", operation, key, clusterName=cluster):
                yield f"{cluster}/{item if isinstance(item, str) else item['associationId']}"

    return lister


def _plain(service: str, operation: str, key: str, name: str = "", **arguments: Any) -> Lister:
    def lister(cloud: Cloud) -> Iterator[str]:
        for item in _pages(cloud, service, operation, key, **arguments):
            yield item[name] if name else item

    return lister


_LISTERS: dict[str, Lister] = {
    "CloudFormation stack": _stacks,
    "S3 bucket": _buckets,
    "S3 object": _objects,
    "IAM role": _roles,
    "IAM policy": _plain("iam", "list_policies", "Policies", "PolicyName", Scope="Local"),
    "IAM instance profile": _plain("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    "IAM OIDC provider": _plain("iam", "list_open_id_connect_providers", "OpenIDConnectProviderList", "Arn"),
    "Lambda function": _plain("lambda", "list_functions", "Functions", "FunctionName"),
    "Lambda layer": _plain("lambda", "list_layers", "Layers", "LayerName"),
    "Log group": _plain("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "SSM parameter": _plain("ssm", "describe_parameters", "Parameters", "Name"),
    "Secret": _plain("secretsmanager", "list_secrets", "SecretList", "Name"),
    "Step Functions state machine": _plain("stepfunctions", "list_state_machines", "stateMachines", "name"),
    "ECR repository": _plain("ecr", "describe_repositories", "repositories", "repositoryName"),
    "CodeBuild project": _plain("codebuild", "list_projects", "projects"),
    "CloudWatch alarm": _plain("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    "CloudWatch dashboard": _plain("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    "Budget": _budgets,
    "SNS topic": _plain("sns", "list_topics", "Topics", "TopicArn"),
    "SQS queue": _plain("sqs", "list_queues", "QueueUrls"),
    "EventBridge rule": _plain("events", "list_rules", "Rules", "Name"),
    "KMS key": _keys,
    "KMS alias": lambda cloud: (
        a["AliasName"] for a in _pages(cloud, "kms", "list_aliases", "Aliases") if not a["AliasName"].startswith("alias/aws/")
    ),
    "VPC": lambda cloud: iter(_vpcs(cloud)),
    "Subnet": _in_own_vpcs("describe_subnets", "Subnets", "SubnetId"),
    "Security group": _in_own_vpcs("describe_security_groups", "SecurityGroups", "GroupId"),
    "Route table": _in_own_vpcs("describe_route_tables", "RouteTables", "RouteTableId"),
    "VPC endpoint": _plain("ec2", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    "Network interface": _plain("ec2", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    "Elastic IP address": _plain("ec2", "describe_addresses", "Addresses", "AllocationId"),
    "NAT gateway": _nat_gateways,
    "Internet gateway": _internet_gateways,
    "Flow log": _plain("ec2", "describe_flow_logs", "FlowLogs", "FlowLogId"),
    "Launch template": _plain("ec2", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateName"),
    "EC2 volume": _plain("ec2", "describe_volumes", "Volumes", "VolumeId"),
    "EC2 instance": _instances,
    "Load balancer": _plain("elbv2", "describe_load_balancers", "LoadBalancers", "LoadBalancerName"),
    "EKS cluster": _plain("eks", "list_clusters", "clusters"),
    "EKS add-on": _below_eks("list_addons", "addons"),
    "EKS access entry": _below_eks("list_access_entries", "accessEntries"),
    "EKS Pod Identity association": _below_eks("list_pod_identity_associations", "associations"),
    "HyperPod cluster": _plain("sagemaker", "list_clusters", "ClusterSummaries", "ClusterName"),
    "SageMaker domain": _plain("sagemaker", "list_domains", "Domains", "DomainId"),
    "FSx file system": _plain("fsx", "describe_file_systems", "FileSystems", "FileSystemId"),
    "FSx backup": _plain("fsx", "describe_backups", "Backups", "BackupId"),
    "FSx association": _plain("fsx", "describe_data_repository_associations", "Associations", "AssociationId"),
    "Prometheus workspace": _plain("amp", "list_workspaces", "workspaces", "workspaceId"),
    "Grafana workspace": _plain("grafana", "list_workspaces", "workspaces", "id"),
    "Grafana object": lambda cloud: (line for r in cloud.store.all(grafana_http.GRAFANA_TYPE) for line in grafana_http.objects(r)),
}
