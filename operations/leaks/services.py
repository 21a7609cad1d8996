"""Everything else: stacks, clusters, functions, roles, parameters, logs, workspaces, Studio apps, DNS records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from config import names
from config.names import Stack
from operations.aws import KEY_TYPES, Aws, Unanswered
from operations.leaks.leak import Leak, Ours, physical_ids, tags_of

# A stack in one of these takes no update: it has to be deleted.
STUCK = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED", "CREATE_FAILED", "REVIEW_IN_PROGRESS")
PENNIES = "free, or next to it"


def stacks(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Stacks that a deploy or a destroy left half-way."""
    for item in aws.pages("cloudformation", "list_stacks", "StackSummaries"):
        if item["StackName"] in ours.stacks and item["StackStatus"] in STUCK:
            yield Leak(
                "CloudFormation stack", item["StackName"], f"left {item['StackStatus']} by cdk", "what its resources cost",
                (ours.command("cloudformation", "delete-stack", "--stack-name", item["StackName"]),),
            )  # fmt: skip


def hyperpod(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """The HyperPod cluster outside any stack: its nodes are the most expensive thing of all."""
    wanted = names.hyperpod_cluster(ours.environment)
    for item in aws.pages("sagemaker", "list_clusters", "ClusterSummaries"):
        if item["ClusterName"] == wanted and item.get("ClusterStatus") != "Deleting":
            yield Leak(
                "HyperPod cluster", wanted, f"named as environment {ours.environment.name} names it", "what its nodes cost",
                (ours.command("sagemaker", "delete-cluster", "--cluster-name", wanted),), ids=physical_ids(wanted, item["ClusterArn"]),
            )  # fmt: skip


def eks(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """The EKS cluster outside any stack."""
    if ours.base in set(aws.pages("eks", "list_clusters", "clusters")):
        yield Leak(
            "EKS cluster", ours.base, f"named as environment {ours.environment.name} names it",
            "0.10 USD an hour, 0.60 once its Kubernetes version is in extended support",
            (ours.command("eks", "delete-cluster", "--name", ours.base),), ids=physical_ids(ours.base),
        )  # fmt: skip


def functions(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Lambda functions."""
    for item in aws.pages("lambda", "list_functions", "Functions"):
        if made_by := ours.named(item["FunctionName"]):
            yield Leak(
                "Lambda function", item["FunctionName"], made_by, PENNIES,
                (ours.command("lambda", "delete-function", "--function-name", item["FunctionName"]),),
                ids=physical_ids(item["FunctionName"]),
            )  # fmt: skip


def state_machines(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """State machines that wait for nodes: CloudFormation's name for one tells no stack, so they are known by their tags."""
    for item in aws.pages("stepfunctions", "list_state_machines", "stateMachines"):
        arn = item["stateMachineArn"]
        if made_by := ours.tagged(tags_of(aws.call("stepfunctions", "list_tags_for_resource", resourceArn=arn).get("tags"))):
            yield Leak(
                "Step Functions state machine", arn, made_by, PENNIES,
                (ours.command("stepfunctions", "delete-state-machine", "--state-machine-arn", arn),), name=item["name"],
                ids=physical_ids(arn, item["name"]),
            )  # fmt: skip


def certificates(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Certificates of the domain under which Ray is reached. A listener that still uses one keeps it."""
    for item in aws.pages("acm", "list_certificates", "CertificateSummaryList", Includes={"keyTypes": list(KEY_TYPES)}):
        arn = item["CertificateArn"]
        if made_by := ours.tagged(tags_of(aws.call("acm", "list_tags_for_certificate", CertificateArn=arn).get("Tags"))):
            yield Leak(
                "ACM certificate", arn, made_by, "free", (ours.command("acm", "delete-certificate", "--certificate-arn", arn),),
                name=item.get("DomainName", ""), ids=physical_ids(arn),
            )  # fmt: skip


def budgets(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """The month's budget, by its name: AWS Budgets has no regions, so the name carries one."""
    wanted, account = names.budget(ours.environment), ours.environment.account
    for item in aws.pages("budgets", "describe_budgets", "Budgets", AccountId=account):
        if item["BudgetName"] == wanted:
            yield Leak(
                "budget", wanted, f"named as environment {ours.environment.name} names it", "free for the first two of an account",
                (ours.command("budgets", "delete-budget", "--account-id", account, "--budget-name", wanted, region=False),),
                ids=physical_ids(wanted),
            )  # fmt: skip


def builds(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """CodeBuild projects, by the tags of the stack that made them."""
    found = list(aws.pages("codebuild", "list_projects", "projects"))
    for start in range(0, len(found), 100):
        for item in aws.call("codebuild", "batch_get_projects", names=found[start : start + 100])["projects"]:
            if made_by := ours.tagged(tags_of(item.get("tags"))):
                yield Leak(
                    "CodeBuild project", item["name"], made_by, PENNIES,
                    (ours.command("codebuild", "delete-project", "--name", item["name"]),), ids=physical_ids(item["name"]),
                )  # fmt: skip


def log_groups(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """By name, which tells the cluster or the function: services make these groups themselves, without tags."""
    base, hyper = ours.base, names.hyperpod_cluster(ours.environment)
    beginnings = {
        f"/aws/eks/{base}/": ("made by the EKS control plane", Stack.CLUSTER),
        f"/aws/sagemaker/Clusters/{hyper}/": ("made by HyperPod for its nodes", Stack.HYPERPOD),
        f"/aws/containerinsights/{base}/": ("made by Container Insights", Stack.CLUSTER),
        f"/aws/vendedlogs/prometheus/{base}": ("made for Managed Prometheus", Stack.TELEMETRY),
        f"/aws/codebuild/{base}-": ("made by CodeBuild", Stack.DATA),
    }
    seen: set[str] = set()
    for prefix in ("/aws/", f"{names.PREFIX}-"):
        for item in aws.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
            name = str(item["logGroupName"])
            found = ours.named(name.removeprefix("/aws/lambda/"))
            made_by, stack = (found, ours.stack_of(found)) if found else next(
                (which for beginning, which in beginnings.items() if _begins(name, beginning)), (None, None))  # fmt: skip
            if made_by is None or name in seen:
                continue
            seen.add(name)
            yield Leak(
                "log group", name, made_by, "about 0.03 USD for each GB and month (unverified)",
                (ours.command("logs", "delete-log-group", "--log-group-name", name),), alive_with=stack, ids=physical_ids(name),
            )  # fmt: skip


def _begins(name: str, beginning: str) -> bool:
    """`hyperpod-rl-a` begins environment `a-b`'s names too: only a whole part of a path, or one of our two projects, counts."""
    if beginning.endswith("/"):
        return name.startswith(beginning)
    if beginning.endswith("-"):
        return name.removeprefix(beginning) in ("image", "charts") and name.startswith(beginning)
    return name == beginning


def alarms(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """CloudWatch alarms that CloudFormation named."""
    for item in aws.pages("cloudwatch", "describe_alarms", "MetricAlarms"):
        if made_by := ours.named(item["AlarmName"]):
            yield Leak(
                "CloudWatch alarm", item["AlarmName"], made_by, "about 0.10 USD a month (unverified)",
                (ours.command("cloudwatch", "delete-alarms", "--alarm-names", item["AlarmName"]),), ids=physical_ids(item["AlarmName"]),
            )  # fmt: skip


def topics(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """The topic of the alarms, which CloudFormation named."""
    for item in aws.pages("sns", "list_topics", "Topics"):
        arn = str(item["TopicArn"])
        if made_by := ours.named(arn.rpartition(":")[2]):
            yield Leak(
                "SNS topic", arn, made_by, PENNIES, (ours.command("sns", "delete-topic", "--topic-arn", arn),), ids=physical_ids(arn)
            )


def grafana(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Grafana workspaces. AWS's own quick setup leaves its workspace behind; ours is the stack's."""
    for item in aws.pages("grafana", "list_workspaces", "workspaces"):
        if made_by := _workspace(ours, item, str(item.get("name", ""))):
            yield Leak(
                "Grafana workspace", item["id"], made_by, "9 USD a month for each active editor, at least one",
                (ours.command("grafana", "delete-workspace", "--workspace-id", item["id"]),), name=str(item.get("name", "")),
                ids=physical_ids(item["id"]),
            )  # fmt: skip


def prometheus(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Prometheus workspaces: what is stored costs until it is 150 days old."""
    for item in aws.pages("amp", "list_workspaces", "workspaces"):
        if made_by := _workspace(ours, item, str(item.get("alias", ""))):
            yield Leak(
                "Prometheus workspace", item["workspaceId"], made_by, "about 0.03 USD for each GB and month (unverified)",
                (ours.command("amp", "delete-workspace", "--workspace-id", item["workspaceId"]),), name=str(item.get("alias", "")),
                ids=physical_ids(item["workspaceId"], item.get("arn")),
            )  # fmt: skip


def _workspace(ours: Ours, item: Mapping[str, Any], name: str) -> str | None:
    tags = tags_of(item.get("tags"))
    if found := ours.tagged(tags):
        return found
    return f"named as environment {ours.environment.name} names it" if name == ours.base and not ours.foreign(tags) else None


def studio(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Running apps, which keep a domain from being deleted, and the domain itself."""
    for domain in aws.pages("sagemaker", "list_domains", "Domains"):
        if domain.get("DomainName") != ours.base:
            continue
        identifier = domain["DomainId"]
        for app in aws.pages("sagemaker", "list_apps", "Apps", DomainIdEquals=identifier):
            if app.get("Status") in ("Deleted", "Deleting", "Failed"):
                continue
            owner = ("--space-name", app["SpaceName"]) if app.get("SpaceName") else ("--user-profile-name", app.get("UserProfileName", ""))
            yield Leak(
                "Studio app", f"{identifier}/{owner[1]}/{app['AppType']}/{app['AppName']}", "started by a person in Studio",
                "what its instance costs",
                (ours.command("sagemaker", "delete-app", "--domain-id", identifier, *owner, "--app-type", app["AppType"],
                              "--app-name", app["AppName"]),),
                alive_with=Stack.STUDIO,
            )  # fmt: skip
        yield Leak(
            "Studio domain", identifier, f"named as environment {ours.environment.name} names it", "free; its EFS file system is not",
            (ours.command("sagemaker", "delete-domain", "--domain-id", identifier, "--retention-policy", "HomeEfsFileSystem=Delete"),),
            name=ours.base, ids=physical_ids(identifier),
        )  # fmt: skip


def roles(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """IAM roles that CloudFormation named, and the two of GitHub's workflows.

    IAM has no regions: the stacks' region tag keeps another region's role off the list.
    """
    delivery = {names.delivery_role(ours.environment, kind) for kind in ("plan", "deploy")}
    for item in aws.pages("iam", "list_roles", "Roles"):
        name = item["RoleName"]
        made_by = "made for GitHub's workflows" if name in delivery else ours.named(name)
        if made_by is None or str(item.get("Path", "/")).startswith("/aws-service-role/"):
            continue
        tags = tags_of(aws.pages("iam", "list_role_tags", "Tags", RoleName=name))
        if ours.tagged(tags) is None and bool(tags) and ours.foreign(tags):
            continue
        yield Leak("IAM role", name, made_by, "free", tuple(_role_commands(aws, ours, name)), ids=physical_ids(name, item.get("Arn")))


def _role_commands(aws: Aws, ours: Ours, role: str) -> Iterator[str]:
    """A role goes only without policies."""
    for policy in aws.pages("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=role):
        yield ours.command("iam", "detach-role-policy", "--role-name", role, "--policy-arn", policy["PolicyArn"], region=False)
    for policy in aws.pages("iam", "list_role_policies", "PolicyNames", RoleName=role):
        yield ours.command("iam", "delete-role-policy", "--role-name", role, "--policy-name", policy, region=False)
    yield ours.command("iam", "delete-role", "--role-name", role, region=False)


def parameters(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """SSM parameters below the environment's path."""
    path = names.parameter_path(ours.environment)
    for item in aws.pages("ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True):
        yield Leak(
            "SSM parameter", item["Name"], f"made by a stack of environment {ours.environment.name}", "free",
            (ours.command("ssm", "delete-parameter", "--name", item["Name"]),), ids=physical_ids(item["Name"]),
        )  # fmt: skip


def records(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """DNS records of External DNS: beside each stands a TXT record that names the cluster as its owner.

    https://kubernetes-sigs.github.io/external-dns/latest/docs/registry/txt/
    """
    domain = ours.environment.remote_access.domain
    if domain is None:
        return
    try:
        found = list(aws.pages("route53", "list_resource_record_sets", "ResourceRecordSets", HostedZoneId=domain.hosted_zone_id))
    except Unanswered as error:
        if error.code == "NoSuchHostedZone":
            return
        raise
    mark = f"external-dns/owner={ours.base}"
    owned = {record["Name"] for record in found if record["Type"] == "TXT" and any(
        mark in value["Value"].strip('"').split(",") for value in record.get("ResourceRecords", ()))}  # fmt: skip
    # The guarded record's own name, or that with its type before it.
    guarded = owned | {name.partition("-")[2] for name in owned if name.partition("-")[0] in ("a", "aaaa", "cname")}
    for record in found:
        if record["Name"] in (owned if record["Type"] == "TXT" else guarded) and record["Type"] in ("TXT", "A", "AAAA", "CNAME"):
            batch = json.dumps({"Changes": [{"Action": "DELETE", "ResourceRecordSet": record}]}, sort_keys=True)
            yield Leak(
                "Route 53 record", f"{record['Name']} {record['Type']}", f"made by External DNS of EKS cluster {ours.base}", "free",
                (ours.command("route53", "change-resource-record-sets", "--hosted-zone-id", domain.hosted_zone_id, "--change-batch", batch,
                              region=False),),
                alive_with=Stack.PLATFORM,
            )  # fmt: skip
