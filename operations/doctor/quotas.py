"""Quotas, by name, against what the environment asks for beside what the account uses already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from config import names
from config.environment import Environment
from operations.aws import Aws
from operations.doctor.check import Finding, Subject, failed, ok, warning

PAGE = "https://console.aws.amazon.com/servicequotas/home/services"
# Codes as seen in accounts: https://docs.aws.amazon.com/general/latest/gr/sagemaker.html lists names only.
PER_CLUSTER, IN_TOTAL, VOLUME = "L-2CE978FC", "L-3308CCC7", "L-E13DF72A"
ADDRESSES, NETWORKS = "L-0263D0A3", "L-F678F1CE"


def instances(subject: Subject) -> Iterator[Finding]:
    """`<type> for cluster usage` of each type, spot groups by their own name."""
    env = subject.environment
    known = {str(quota["QuotaName"]): quota for quota in _all(subject.account)}
    elsewhere = _used_elsewhere(subject.account, env)
    wanted: Counter[tuple[str, str]] = Counter()
    for group in env.instance_groups:
        wanted[group.instance_type, group.capacity] += group.count
    for (kind, capacity), count in wanted.items():
        name = f"{kind} for cluster usage" if capacity == "on-demand" else f"{kind} for spot cluster usage"
        quota = known.get(name)
        if quota is None:
            yield warning(f"there is no quota named `{name}` in {env.region}", f"{PAGE}/sagemaker/quotas (search for {kind})")
            continue
        used = elsewhere[kind] if capacity == "on-demand" else 0
        yield _judged(env, f"`{name}`", quota=float(quota["Value"]), wanted=count, used=used, code=str(quota["QuotaCode"]))


def cluster(subject: Subject) -> Iterator[Finding]:
    """Instances per cluster, instances in all clusters, size of a volume."""
    env, aws = subject.environment, subject.account
    count = sum(group.count for group in env.instance_groups)
    used = sum(_used_elsewhere(aws, env).values())
    values = {code: float(aws.call("service-quotas", "get_service_quota", ServiceCode="sagemaker", QuotaCode=code)["Quota"]["Value"])
              for code in (PER_CLUSTER, IN_TOTAL, VOLUME)}  # fmt: skip
    yield _judged(env, "instances per HyperPod cluster", quota=values[PER_CLUSTER], wanted=count, used=0, code=PER_CLUSTER)
    yield _judged(env, "instances in all HyperPod clusters", quota=values[IN_TOTAL], wanted=count, used=used, code=IN_TOTAL)
    largest = max(env.instance_groups, key=lambda group: group.volume_gib)
    yield _judged(env, f"GB of EBS volume per instance (group {largest.name})", quota=values[VOLUME], wanted=largest.volume_gib, used=0,
                  code=VOLUME)  # fmt: skip


def network(subject: Subject) -> Iterator[Finding]:
    """One more VPC and, with NAT, one more address, unless the environment has them already or brings its own network."""
    env, aws = subject.environment, subject.account
    if env.network.existing is not None:
        yield ok("not needed: the environment brings its own VPC")
        return
    stack = names.stack(env, names.Stack.NETWORK)
    asked = [("VPCs per Region", "vpc", NETWORKS, "describe_vpcs", "Vpcs")]
    if env.network.egress == "nat":
        asked.append(("Elastic IP addresses", "ec2", ADDRESSES, "describe_addresses", "Addresses"))
    for what, service, code, operation, key in asked:
        quota = float(aws.call("service-quotas", "get_service_quota", ServiceCode=service, QuotaCode=code)["Quota"]["Value"])
        there = list(aws.pages("ec2", operation, key))
        ours = sum(
            any(tag["Key"] == "aws:cloudformation:stack-name" and tag["Value"] == stack for tag in item.get("Tags", ())) for item in there
        )
        yield _judged(env, what, quota=quota, wanted=1, used=len(there) - ours, code=code, service=service)


def _all(aws: Aws) -> Iterator[Mapping[str, Any]]:
    """Applied quotas, and the defaults of those that were never changed."""
    applied = {
        str(quota["QuotaName"]): quota for quota in aws.pages("service-quotas", "list_service_quotas", "Quotas", ServiceCode="sagemaker")
    }
    if not any(name.endswith("for cluster usage") for name in applied):
        for quota in aws.pages("service-quotas", "list_aws_default_service_quotas", "Quotas", ServiceCode="sagemaker"):
            applied.setdefault(str(quota["QuotaName"]), quota)
    yield from applied.values()


def _used_elsewhere(aws: Aws, env: Environment) -> Counter[str]:
    """Instances that other HyperPod clusters of the account have or want, by type."""
    used: Counter[str] = Counter()
    for summary in aws.pages("sagemaker", "list_clusters", "ClusterSummaries"):
        if summary["ClusterName"] == names.hyperpod_cluster(env):
            continue
        for group in aws.call("sagemaker", "describe_cluster", ClusterName=summary["ClusterName"]).get("InstanceGroups", ()):
            used[group["InstanceType"]] += max(int(group.get("CurrentCount", 0)), int(group.get("TargetCount", 0)))
    return used


def _judged(env: Environment, what: str, *, quota: float, wanted: int, used: int, code: str, service: str = "sagemaker") -> Finding:
    already = f" beside {used} in use" if used else ""
    if wanted + used <= quota:
        return ok(f"{what}: {wanted} of {quota:g}{already}")
    command = (
        f"aws service-quotas request-service-quota-increase --region {env.region} --service-code {service}"
        f" --quota-code {code} --desired-value {wanted + used}"
    )
    return failed(f"{what} is {quota:g}, and environment {env.name} asks for {wanted}{already}", command)
