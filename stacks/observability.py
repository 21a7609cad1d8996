"""Observability: the HyperPod add-on, which wants a node before it is installed, and the alarms that need nothing else.

Shape of the add-on's configuration: https://github.com/aws/sagemaker-hyperpod-cluster-setup, observability-template.yaml at 0ab564d78aa5
(`rayMetrics`, `clusterMetrics` and `metricsProvider.logging`; earlier versions had `customMetrics` and `logging` at the top).
"""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from config import names
from stacks.kubernetes import addon
from stacks.roles import Allow, pod_principal, role
from stacks.stack import EnvironmentStack, Settings, Shared

FILE_SYSTEM_FULL_PERCENT = 85


class Observability(EnvironmentStack):
    """Metrics to Prometheus, dashboards' workspace to the add-on, alarms on the file system and the budget."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.OBSERVABILITY, description="HyperPod observability add-on and alarms")
        groups = f"arn:{self.partition}:logs:{self.region}:{self.account}:log-group:/aws/sagemaker/Clusters/*"
        collector = role(
            self,
            "CollectorRole",
            principal=pod_principal(self),
            description="Collector of the observability add-on",
            allow=[
                Allow(["aps:RemoteWrite"], [self.read(names.Parameter.PROMETHEUS_ARN)]),
                Allow(
                    [
                        "logs:CreateLogGroup",
                        "logs:CreateLogStream",
                        "logs:DescribeLogGroups",
                        "logs:DescribeLogStreams",
                        "logs:PutLogEvents",
                        "logs:GetLogEvents",
                        "logs:FilterLogEvents",
                        "logs:StartQuery",
                    ],
                    [groups, f"{groups}:log-stream:*"],
                    why="HyperPod's log groups end in an id that SageMaker chooses",
                ),
                Allow(["logs:GetLogRecord", "logs:GetQueryResults", "logs:StopQuery"], ["*"], why="these actions know no resource"),
            ],
        )
        addon(
            self,
            "AddOn",
            names.OBSERVABILITY_ADDON,
            configuration=self._configuration(),
            tags={"SageMaker": "true"},
            service_account_roles={names.OBSERVABILITY_SERVICE_ACCOUNT: collector.role_arn},
        )
        self._file_system_alarm()
        if settings.observability.monthly_budget_usd:
            self._budget(settings.observability.monthly_budget_usd)

    def _configuration(self) -> dict[str, Any]:
        wanted = self.settings.observability
        levels = {
            "trainingMetrics": wanted.training_metrics,
            "inferenceMetrics": "BASIC",
            "taskGovernanceMetrics": "ADVANCED" if self.settings.hyperpod.task_governance else "DISABLED",
            "scalingMetrics": "ADVANCED" if self.settings.hyperpod.autoscaling == "karpenter" else "DISABLED",
            "clusterMetrics": wanted.cluster_metrics,
            "nodeMetrics": wanted.node_metrics,
            "acceleratedComputeMetrics": wanted.accelerated_compute_metrics,
            "networkMetrics": wanted.network_metrics,
            "rayMetrics": wanted.ray_metrics,
        }
        metrics: dict[str, Any] = {
            name: {"level": level, "scrapeInterval": wanted.scrape_interval_seconds} for name, level in levels.items()
        }
        configuration: dict[str, Any] = {
            "ampWorkspace": {
                "prometheusEndpoint": self.read(names.Parameter.PROMETHEUS_ENDPOINT),
                "arn": self.read(names.Parameter.PROMETHEUS_ARN),
            },
            "metricsProvider": {**metrics, "logging": {"enabled": wanted.logging}},
        }
        if wanted.grafana != "none":
            workspace = f"arn:{self.partition}:grafana:{self.region}:{self.account}:/workspaces/{self.read(names.Parameter.GRAFANA_ID)}"
            configuration["amgWorkspace"] = {"workspaceName": self.read(Shared.GRAFANA_NAME), "arn": workspace}
        return configuration

    def _file_system_alarm(self) -> None:
        """Free space below a share of the whole: a full file system ends a run at its next checkpoint."""
        capacity = self.settings.storage.file_system.capacity_gib * 2**30
        cloudwatch.CfnAlarm(
            self,
            "FileSystemNearlyFull",
            alarm_description=f"The file system is more than {FILE_SYSTEM_FULL_PERCENT} % full",
            namespace="AWS/FSx",
            metric_name="FreeDataStorageCapacity",
            statistic="Sum",
            period=300,
            evaluation_periods=3,
            dimensions=[{"name": "FileSystemId", "value": self.read(names.Parameter.FILE_SYSTEM_ID)}],
            comparison_operator="LessThanThreshold",
            threshold=capacity * (100 - FILE_SYSTEM_FULL_PERCENT) // 100,
            treat_missing_data="missing",
        )

    def _budget(self, usd: int) -> None:
        budgets.CfnBudget(
            self,
            "Budget",
            budget={
                "budgetName": f"{names.PREFIX}-{self.settings.name}",
                "budgetType": "COST",
                "timeUnit": "MONTHLY",
                "budgetLimit": {"amount": usd, "unit": "USD"},
                "costFilters": {"TagKeyValue": [f"user:hyperpod-rl-environment${self.settings.name}"]},
            },
        )
