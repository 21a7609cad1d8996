"""Helm charts that are known here: which kinds and objects one brings.

Charts are not rendered: no chart archive is on this machine. What a release makes is written down below, with the names that the
charts are documented to use (https://ray-project.github.io/kuberay-helm/, https://github.com/aws/sagemaker-hyperpod-cli).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from local.kubernetes.bundles import (
    Object,
    cert_manager_definitions,
    cluster_role,
    column,
    daemon_set,
    definition,
    deployment,
    namespace,
    service_account,
)
from local.kubernetes.errors import Rejected

RAY_KINDS = ("RayCluster", "RayJob", "RayService", "RayCronJob")
_RAY_CLUSTER_COLUMNS = (
    column("desired workers", ".status.desiredWorkerReplicas", "integer"),
    column("available workers", ".status.availableWorkerReplicas", "integer"),
    column("cpus", ".status.desiredCPU"),
    column("memory", ".status.desiredMemory"),
    column("gpus", ".status.desiredGPU"),
    column("status", ".status.state"),
    column("age", ".metadata.creationTimestamp", "date"),
)
_RAY_SERVICE_COLUMNS = (
    column("service status", ".status.serviceStatus"),
    column("num serve endpoints", ".status.numServeEndpoints", "integer"),
)


@dataclass(frozen=True)
class Release:
    """One `helm upgrade --install`."""

    name: str
    namespace: str
    chart: str
    repository: str | None = None
    version: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chart_name(self) -> str:
        """The chart's own name: the last part of its path or of its OCI address."""
        address = self.repository if (self.repository or "").startswith("oci://") else self.chart
        return (address or self.chart).rstrip("/").rpartition("/")[2]

    @property
    def brings_cert_manager(self) -> bool:
        """Whether cert-manager comes with this release."""
        known = CHARTS.get(self.chart_name)
        return known is dependency_chart and switched_on(self.values, "cert-manager", default=True)


@dataclass(frozen=True)
class Content:
    """What a chart holds: `definitions` from its crds folder (Helm never deletes those), `objects` from its templates."""

    definitions: list[Object]
    objects: list[Object]


def switched_on(values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A sub-chart's switch: `enabled`, in a few `enable`, in the device plugins `devicePlugin.enabled`."""
    part = values.get(name)
    if not isinstance(part, Mapping):
        return default
    inner = part.get("devicePlugin")  # where the device plugins keep theirs
    part = inner if isinstance(inner, Mapping) else part
    return str(part.get("enabled", part.get("enable", default))).lower() == "true"


def ray_definitions() -> list[Object]:
    """KubeRay's four kinds (https://github.com/ray-project/kuberay, helm-chart/kuberay-operator/crds)."""
    columns = {"RayCluster": _RAY_CLUSTER_COLUMNS, "RayService": _RAY_SERVICE_COLUMNS}
    return [definition("ray.io", kind, columns=columns.get(kind, ())) for kind in RAY_KINDS]


def kuberay_operator(release: Release) -> Content:
    """KubeRay's operator."""
    roles = [cluster_role(f"{kind.lower()}-editor-role", "ray.io", [f"{kind.lower()}s"]) for kind in RAY_KINDS]
    name = "kuberay-operator"
    return Content(
        ray_definitions(),
        [
            service_account(name, release.namespace),
            cluster_role(name, "ray.io", ["*"]),
            *roles,
            deployment(name, release.namespace, image=f"quay.io/kuberay/operator:v{release.version or '1.7.1'}", account=name),
        ],
    )


def dependency_chart(release: Release) -> Content:
    """The HyperPod dependency chart (HyperPodHelmChart). Object names of its agents are inferred."""
    on = release.values
    definitions: list[Object] = []
    objects: list[Object] = [namespace("aws-hyperpod")]
    if switched_on(on, "cert-manager", default=True):
        definitions += cert_manager_definitions()
        objects += [namespace("cert-manager"), deployment("cert-manager", "cert-manager", image="cert-manager")]
    if switched_on(on, "trainingOperators", default=True) and switched_on(on, "training-operators", default=True):
        definitions += [definition("kubeflow.org", kind) for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")]
        objects += [namespace("kubeflow"), deployment("training-operator", "kubeflow", image="training-operator")]
    if switched_on(on, "mpi-operator", default=True):
        definitions.append(definition("kubeflow.org", "MPIJob", version="v2beta1"))
    for part, name in (
        ("nvidia-device-plugin", "nvidia-device-plugin"),
        ("aws-efa-k8s-device-plugin", "aws-efa-k8s-device-plugin"),
    ):
        if switched_on(on, part, default=True):
            objects.append(daemon_set(name, "kube-system", image=name))
    if switched_on(on, "health-monitoring-agent", default=True):
        objects.append(daemon_set("health-monitoring-agent", "aws-hyperpod", image="hyperpod-health-monitoring-agent"))
    return Content(definitions, objects)


def endpoint_operator(release: Release) -> Content:
    """HyperPod's Ray Endpoint Operator; the chart's template fails without its two required values.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-endpoint-operator.html
    """
    manager = release.values.get("manager")
    default = str(manager.get("enableEndpointsByDefault", "")).lower() if isinstance(manager, Mapping) else ""
    found: list[str] = []
    if default not in ("true", "false"):
        found.append('manager.enableEndpointsByDefault: Required value: "true" or "false"')
    if not release.values.get("region"):
        found.append("region: Required value")
    if found:
        raise Rejected([f"{release.chart_name}: {problem}" for problem in found])
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1alpha1.connection.access.sagemaker.amazonaws.com"},
        "spec": {
            "group": "connection.access.sagemaker.amazonaws.com", "version": "v1alpha1", "groupPriorityMinimum": 1000,
            "versionPriority": 15, "service": {"name": "hyperpod-ray-endpoint-operator", "namespace": release.namespace},
        },
    }  # fmt: skip
    name = "hyperpod-ray-endpoint-operator-controller-manager"
    return Content([], [service, deployment(name, release.namespace, image="hyperpod-ray-endpoint-operator")])


def load_balancer_controller(release: Release) -> Content:
    """AWS Load Balancer Controller: https://github.com/aws/eks-charts/tree/master/stable/aws-load-balancer-controller"""
    if not release.values.get("clusterName"):
        raise Rejected("aws-load-balancer-controller: Chart cannot be installed without a valid clusterName!")
    name = "aws-load-balancer-controller"
    account = release.values.get("serviceAccount") or {}
    account_name = account.get("name") or name
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": "alb"},
        "spec": {"controller": "ingress.k8s.aws/alb"},
    }
    own = [service_account(account_name, release.namespace)] if account.get("create", True) else []
    kinds = [definition("elbv2.k8s.aws", "TargetGroupBinding", version="v1beta1")]
    kinds.append({**definition("elbv2.k8s.aws", "IngressClassParams", version="v1beta1", scope="Cluster")})
    return Content(kinds, [*own, ingress, deployment(name, release.namespace, image=name, account=account_name)])


CHARTS: Mapping[str, Callable[[Release], Content]] = {
    "kuberay-operator": kuberay_operator,
    "HyperPodHelmChart": dependency_chart,
    "hyperpod-helm-chart": dependency_chart,
    "hyperpod-ray-endpoint-operator": endpoint_operator,
    "aws-load-balancer-controller": load_balancer_controller,
}
