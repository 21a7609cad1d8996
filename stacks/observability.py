"""Observability: the HyperPod add-on, which wants a node before it is installed, what Grafana shows, and the alarms.

Shape of the add-on's configuration: https://github.com/aws/sagemaker-hyperpod-cluster-setup, observability-template.yaml at 0ab564d78aa5
(`rayMetrics`, `clusterMetrics` and `metricsProvider.logging`; earlier versions had `customMetrics` and `logging` at the top).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from config import names
from stacks.alarms import alarms
from stacks.allow import Allow
from stacks.dashboards import documents
from stacks.functions import function, resource
from stacks.kubernetes import addon
from stacks.roles import pod_principal, role
from stacks.stack import EnvironmentStack, Settings, Shared


class Observability(EnvironmentStack):
    """Metrics to Prometheus, dashboards' workspace to the add-on, alarms on the file system and the budget."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.OBSERVABILITY, description="HyperPod observability add-on and alarms")
        logs = f"arn:{self.partition}:logs:{self.region}:{self.account}:log-group"
        # This cluster's alone, though AWS's own policy names every cluster's: another environment's are none of its business.
        groups = f"{logs}:{names.hang_log_groups(settings)}*"
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
                        "logs:DescribeLogStreams",
                        "logs:PutLogEvents",
                        "logs:GetLogEvents",
                        "logs:FilterLogEvents",
                        "logs:StartQuery",
                    ],
                    [groups, f"{groups}:log-stream:*"],
                    why="HyperPod's log groups end in an id that SageMaker chooses",
                ),
                Allow(
                    ["logs:DescribeLogGroups"],
                    [f"{logs}:/aws/sagemaker/Clusters/*"],
                    why="a list of groups names none of them; it shows their names alone",
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
        if settings.observability.grafana != "none":
            self._dashboards()
        alarms(self)

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
            configuration["amgWorkspace"] = {"workspaceName": self.read(Shared.GRAFANA_NAME), "arn": self._grafana_arn()}
        return configuration

    def _dashboards(self) -> None:
        """Data sources, dashboards and alert rules of Grafana: an asset, since their text is larger than a property may be.

        Another content is another object, whose key makes the resource do its work again.
        """
        with tempfile.TemporaryDirectory() as folder:  # the asset is copied into the assembly at once
            documents.write(Path(folder))
            files = assets.Asset(self, "Dashboards", path=folder)
        workspace = self._grafana_arn()
        filler = function(
            self,
            "GrafanaFunction",
            handler="grafana.handler",
            description="Gives Grafana its data sources, dashboards and alert rules, and takes them away on delete",
            allow=[
                Allow(
                    [
                        "grafana:DescribeWorkspace",
                        "grafana:ListWorkspaceServiceAccounts",
                        "grafana:CreateWorkspaceServiceAccount",
                        "grafana:CreateWorkspaceServiceAccountToken",
                        "grafana:DeleteWorkspaceServiceAccount",
                    ],
                    [workspace],
                ),
                Allow(["s3:GetObject"], [files.bucket.arn_for_objects(files.s3_object_key)]),
            ],
        )
        resource(
            self,
            "GrafanaContent",
            kind="GrafanaContent",
            token=filler.function_arn,
            timeout_minutes=6,
            properties={
                "WorkspaceId": self.read(names.Parameter.GRAFANA_ID),
                "Bucket": files.s3_bucket_name,
                "Key": files.s3_object_key,
                "PrometheusEndpoint": self.read(names.Parameter.PROMETHEUS_ENDPOINT),
                "Region": self.region,
            },
        )

    def _grafana_arn(self) -> str:
        return f"arn:{self.partition}:grafana:{self.region}:{self.account}:/workspaces/{self.read(names.Parameter.GRAFANA_ID)}"
