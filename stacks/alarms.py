"""Alarms that need no Grafana: a file system that is nearly full, and a budget. Whoever `observability.alarm_email` names is told.

What only Prometheus knows (no step, an old checkpoint, an idle GPU, an unhealthy node, a cluster that costs and does nothing) is in
stacks/dashboards/alerts.py.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sns as sns

from config import names
from stacks.stack import EnvironmentStack

FILE_SYSTEM_FULL_PERCENT = 85
# Of the month's budget: spent, and forecast for the month's end.
SPENT_PERCENT, FORECAST_PERCENT = 80, 100


def alarms(stack: EnvironmentStack) -> None:
    """Every alarm of an environment."""
    email = stack.settings.observability.alarm_email
    topic = _topic(stack, email) if email else None
    _file_system(stack, topic)
    if stack.settings.observability.monthly_budget_usd:
        _budget(stack, stack.settings.observability.monthly_budget_usd, email)


def _topic(stack: EnvironmentStack, email: str) -> sns.CfnTopic:
    """Where CloudWatch sends its alarms; the address must confirm once."""
    topic = sns.CfnTopic(stack, "Alarms", display_name=f"{names.PREFIX} {stack.settings.name}")
    sns.CfnTopicPolicy(
        stack,
        "AlarmsPolicy",
        topics=[topic.ref],
        policy_document={
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "CloudWatch",
                    "Effect": "Allow",
                    "Principal": {"Service": "cloudwatch.amazonaws.com"},
                    "Action": "sns:Publish",
                    "Resource": topic.ref,
                    "Condition": {"StringEquals": {"aws:SourceAccount": stack.account}},
                },
                {
                    "Sid": "NothingWithoutTls",
                    "Effect": "Deny",
                    "Principal": {"AWS": "*"},
                    "Action": "sns:Publish",
                    "Resource": topic.ref,
                    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                },
            ],
        },
    )
    sns.CfnSubscription(stack, "AlarmsByMail", topic_arn=topic.ref, protocol="email", endpoint=email)
    return topic


def _file_system(stack: EnvironmentStack, topic: sns.CfnTopic | None) -> None:
    """Free space below a share of the whole: a full file system ends a run at its next checkpoint."""
    capacity = stack.settings.storage.file_system.capacity_gib * 2**30
    cloudwatch.CfnAlarm(
        stack,
        "FileSystemNearlyFull",
        alarm_description=f"The file system is more than {FILE_SYSTEM_FULL_PERCENT} % full",
        namespace="AWS/FSx",
        metric_name="FreeDataStorageCapacity",
        statistic="Sum",
        period=300,
        evaluation_periods=3,
        dimensions=[{"name": "FileSystemId", "value": stack.read(names.Parameter.FILE_SYSTEM_ID)}],
        comparison_operator="LessThanThreshold",
        threshold=capacity * (100 - FILE_SYSTEM_FULL_PERCENT) // 100,
        treat_missing_data="missing",
        alarm_actions=[topic.ref] if topic else None,
        ok_actions=[topic.ref] if topic else None,
    )


def _budget(stack: EnvironmentStack, usd: int, email: str | None) -> None:
    """The month's cost of what carries the environment's tag in its region: the name may be an environment's elsewhere, too."""
    subscribers: Any = [{"subscriptionType": "EMAIL", "address": email}]
    told: Any = [
        {
            "notification": {
                "notificationType": kind,
                "comparisonOperator": "GREATER_THAN",
                "threshold": percent,
                "thresholdType": "PERCENTAGE",
            },
            "subscribers": subscribers,
        }
        for kind, percent in (("ACTUAL", SPENT_PERCENT), ("FORECASTED", FORECAST_PERCENT))
    ]
    budgets.CfnBudget(
        stack,
        "Budget",
        budget={
            "budgetName": names.budget(stack.settings),
            "budgetType": "COST",
            "timeUnit": "MONTHLY",
            "budgetLimit": {"amount": usd, "unit": "USD"},
            "costFilters": {"TagKeyValue": [f"user:hyperpod-rl-environment${stack.settings.name}"], "Region": [stack.region]},
        },
        notifications_with_subscribers=told if email else None,
    )
