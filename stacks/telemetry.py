"""Telemetry: the Prometheus and Grafana workspaces. Low, since the HyperPod cluster carries the Grafana workspace's id as a tag."""

from __future__ import annotations

from aws_cdk import aws_aps as aps
from aws_cdk import aws_grafana as grafana
from aws_cdk import aws_iam as iam
from constructs import Construct

from config import names
from stacks.allow import Allow
from stacks.functions import log_group
from stacks.roles import role
from stacks.stack import EnvironmentStack, Settings, Shared

AUTHENTICATION = {"identity-center": "AWS_SSO", "saml": "SAML"}


class Telemetry(EnvironmentStack):
    """Amazon Managed Service for Prometheus and, by `observability.grafana`, Amazon Managed Grafana."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.TELEMETRY, description="Prometheus and Grafana workspaces")
        name = f"{names.PREFIX}-{settings.name}"
        logs = log_group(self, "PrometheusLogs", name=f"/aws/vendedlogs/prometheus/{name}")
        prometheus = aps.CfnWorkspace(
            self,
            "Prometheus",
            alias=name,
            logging_configuration={"logGroupArn": f"{logs.log_group_arn}"},
            tags=[{"key": "SageMaker", "value": "true"}],
        )
        # GetAtt PrometheusEndpoint ends with a slash; the add-on wants it without.
        self.publish(
            names.Parameter.PROMETHEUS_ENDPOINT,
            f"https://aps-workspaces.{self.region}.amazonaws.com/workspaces/{prometheus.attr_workspace_id}",
        )
        self.publish(names.Parameter.PROMETHEUS_ARN, prometheus.attr_arn)
        if settings.observability.grafana == "none":
            return
        reader = role(
            self,
            "GrafanaRole",
            principal=iam.ServicePrincipal("grafana.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": self.account}}),
            description="Grafana reads metrics",
            allow=[
                Allow(
                    ["aps:QueryMetrics", "aps:GetLabels", "aps:GetSeries", "aps:GetMetricMetadata", "aps:DescribeWorkspace"],
                    [prometheus.attr_arn],
                ),
                Allow(["aps:ListWorkspaces"], ["*"], why="a list names no workspace"),
                Allow(
                    ["cloudwatch:DescribeAlarms", "cloudwatch:GetMetricData", "cloudwatch:ListMetrics", "tag:GetResources"],
                    ["*"],
                    why="CloudWatch metrics know no resource",
                ),
            ],
        )
        workspace = grafana.CfnWorkspace(
            self,
            "Grafana",
            name=name,
            account_access_type="CURRENT_ACCOUNT",
            authentication_providers=[AUTHENTICATION[settings.observability.grafana]],
            permission_type="CUSTOMER_MANAGED",
            role_arn=reader.role_arn,
            data_sources=["PROMETHEUS", "CLOUDWATCH"],
            grafana_version=settings.version_set.platform.grafana,
            plugin_admin_enabled=False,
        )
        self.publish(names.Parameter.GRAFANA_ID, workspace.attr_id)
        self.publish(names.Parameter.GRAFANA_ENDPOINT, workspace.attr_endpoint)
        self.publish(Shared.GRAFANA_NAME, name)
