"""SageMaker HyperPod and Studio: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-prerequisites.html"""

from __future__ import annotations

import json
from collections.abc import Iterator

from local.cloud.rules.asking import Asked, absent, eks_cluster, is_missing, refuses

HYPERPOD = "AWS::SageMaker::Cluster"
# Release names of the dependency chart: the documentation's and that of AWS's own templates.
DEPENDENCY_RELEASES = ("hyperpod-dependencies", "dependencies")


def _hyperpod_eks(asked: Asked) -> str:
    return str(asked.get("Orchestrator/Eks/ClusterArn", "")).rsplit("/", 1)[-1]


@refuses(HYPERPOD, "create", code="NotFound")
def hyperpod_needs_its_eks_cluster(asked: Asked) -> Iterator[str]:
    name = _hyperpod_eks(asked)
    if name and eks_cluster(asked.cloud, name) is None:
        yield f"EKS cluster {asked.get('Orchestrator/Eks/ClusterArn')} does not exist."


@refuses(HYPERPOD, "create")
def hyperpod_needs_api_authentication(asked: Asked) -> Iterator[str]:
    cluster = eks_cluster(asked.cloud, _hyperpod_eks(asked)) if _hyperpod_eks(asked) else None
    mode = (cluster or {}).get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    if cluster and mode not in ("API", "API_AND_CONFIG_MAP"):
        yield f"EKS cluster {cluster['name']} must use the authentication mode API or API_AND_CONFIG_MAP, but it uses {mode}."


@refuses(HYPERPOD, "create")
def hyperpod_needs_the_dependency_chart(asked: Asked) -> Iterator[str]:
    name = _hyperpod_eks(asked)
    cluster = asked.cloud.clusters.get(name) if name and asked.cloud.clusters is not None else None
    if cluster is not None and not any(cluster.has_release(release) for release in DEPENDENCY_RELEASES):
        yield (
            f"EKS cluster {name} is missing one or more required dependencies. Install the HyperPod Helm chart "
            f"(release {DEPENDENCY_RELEASES[0]}) before you create the HyperPod cluster."
        )


@refuses(HYPERPOD)
def hyperpod_role_needs_a_policy(asked: Asked) -> Iterator[str]:
    iam = asked.cloud.client("iam")
    for role in sorted({str(g.get("ExecutionRole", "")) for g in asked.get("InstanceGroups", [])}):
        name = role.rsplit("/", 1)[-1]
        try:
            trust = iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
        except Exception as error:
            if is_missing(error):
                yield f"Could not assume role {role}: the role does not exist."
                continue
            raise
        if "sagemaker.amazonaws.com" not in json.dumps(trust):
            yield f"Could not assume role {role}. Please ensure that the role allows the principal sagemaker.amazonaws.com."
        policies = iam.list_role_policies(RoleName=name)["PolicyNames"]
        if not policies and not iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
            yield f"Unable to retrieve subnets. Please ensure that the execution role {role} has permission to call ec2:DescribeSubnets."


@refuses(HYPERPOD)
def hyperpod_groups_are_consistent(asked: Asked) -> Iterator[str]:
    groups = asked.get("InstanceGroups", [])
    names = [g.get("InstanceGroupName") for g in groups]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"Instance group names must be unique, but {name} is used {names.count(name)} times."
    for group in groups:
        name, taints = group.get("InstanceGroupName"), (group.get("KubernetesConfig") or {}).get("Taints")
        if group.get("OnStartDeepHealthChecks") and taints:
            yield f"Custom taints are not supported on instance group {name}, because deep health checks are turned on for it."
        if ("InstanceType" in group) == ("InstanceRequirements" in group):
            yield f"Instance group {name} must have either InstanceType or InstanceRequirements."
        if int(group.get("MinInstanceCount", 0)) > int(group.get("InstanceCount", 0)):
            yield f"MinInstanceCount of instance group {name} must not be greater than its InstanceCount."


@refuses(HYPERPOD, "update")
def hyperpod_keeps_what_a_group_was_made_with(asked: Asked) -> Iterator[str]:
    before = {g.get("InstanceGroupName"): g for g in asked.old.get("InstanceGroups", [])}
    for group in asked.get("InstanceGroups", []):
        old = before.get(group.get("InstanceGroupName"))
        for name in ("OverrideVpcConfig", "CapacityRequirements", "InstanceType"):
            if old is not None and old.get(name) != group.get(name):
                yield f"{name} of instance group {group.get('InstanceGroupName')} cannot be changed after it was created."


@refuses(HYPERPOD, code="ServiceLimitExceeded")
def hyperpod_within_quota(asked: Asked) -> Iterator[str]:
    from local.cloud.services.quotas import cluster_usage

    wanted: dict[str, int] = {}
    for group in asked.get("InstanceGroups", []):
        kind = str(group.get("InstanceType", ""))
        wanted[kind] = wanted.get(kind, 0) + int(group.get("InstanceCount", 0))
    for kind, count in sorted(wanted.items()):
        limit = cluster_usage(kind)
        if count > limit:
            yield (
                f"The account-level service limit '{kind} for cluster usage' is {limit} Instances, with current utilization of 0 "
                f"Instances and a request delta of {count} Instances. Please use AWS Service Quotas to request an increase for this quota."
            )


@refuses(HYPERPOD, code="NotFound")
def hyperpod_plans_hold_what_their_groups_want(asked: Asked) -> Iterator[str]:
    """That the service looks at all of this when a cluster is made is inferred: what a plan cannot give it gives nobody."""
    from local.cloud.services import training_plans

    wanted: dict[str, int] = {}
    for group in asked.get("InstanceGroups", []):
        if plan_arn := group.get("TrainingPlanArn"):
            wanted[plan_arn] = wanted.get(plan_arn, 0) + int(group.get("InstanceCount", 0))
            plan = training_plans.plan(asked.cloud, plan_arn)
            if plan is None or plan.arn != plan_arn:
                yield f"Training plan {plan_arn} of instance group {group.get('InstanceGroupName')} does not exist."
            elif plan.instance_type != group.get("InstanceType"):
                yield f"Training plan {plan_arn} is for {plan.instance_type}, not for {group.get('InstanceType')}."
    for plan_arn, count in wanted.items():
        plan = training_plans.plan(asked.cloud, plan_arn)
        if plan is not None and count + training_plans.in_use(asked.cloud, plan_arn, but=asked.id) > plan.count:
            yield f"Training plan {plan_arn} has {plan.count} instances, and {count} are asked for."


@refuses(HYPERPOD, code="NotFound")
def hyperpod_needs_its_lifecycle_scripts(asked: Asked) -> Iterator[str]:
    s3 = asked.cloud.client("s3")
    for group in asked.get("InstanceGroups", []):
        config = group.get("LifeCycleConfig") or {}
        script = config.get("OnCreate") or config.get("OnInitComplete")
        if not config.get("SourceS3Uri") or not script:
            continue
        bucket, _, prefix = str(config["SourceS3Uri"]).removeprefix("s3://").partition("/")
        key = f"{prefix.rstrip('/')}/{script}".lstrip("/")
        try:
            s3.head_object(Bucket=bucket, Key=key)
        except Exception as error:
            if not is_missing(error):
                raise
            yield f"Lifecycle script s3://{bucket}/{key} of instance group {group.get('InstanceGroupName')} does not exist."


@refuses(HYPERPOD, "create", code="NotFound")
def hyperpod_needs_its_network(asked: Asked) -> Iterator[str]:
    configs = [asked.get("VpcConfig", {})] + [g.get("OverrideVpcConfig") or {} for g in asked.get("InstanceGroups", [])]
    for config in configs:
        yield from absent(asked.cloud, config.get("Subnets", []), config.get("SecurityGroupIds", []))


# --- Studio ---


@refuses("AWS::SageMaker::Domain", "delete", code="ResourceConflict")
def domain_without_profiles(asked: Asked) -> Iterator[str]:
    if any(asked.cloud.store.where("AWS::SageMaker::UserProfile", DomainId=asked.id)):
        yield f"Unable to delete Domain {asked.id} because UserProfile(s) are associated with it."


@refuses("AWS::SageMaker::UserProfile", "create", code="NotFound")
def profile_needs_its_domain(asked: Asked) -> Iterator[str]:
    if asked.cloud.store.get("AWS::SageMaker::Domain", str(asked.get("DomainId"))) is None:
        yield f"Domain {asked.get('DomainId')} does not exist."
