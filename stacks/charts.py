"""Helm charts: which there are, where each comes from and where the cluster installs it from, and the values that we give them.

The keys of the dependency chart are those of its values.yaml (https://github.com/aws/sagemaker-hyperpod-cli,
helm_chart/HyperPodHelmChart/values.yaml). They are fields here, so that a misspelt one is an error before a deploy, not a value that
Helm ignores. Whether the pinned revision knows each of them was not checked (inferred from a later revision).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from config import images, names
from stacks.stack import Settings

HYPERPOD_CHARTS = "https://github.com/aws/sagemaker-hyperpod-cli.git"
ENDPOINT_OPERATOR = "hyperpod-ray-endpoint-operator"


@dataclass(frozen=True)
class Chart:
    """One chart. `revision`: a commit of the Git repository `origin` with the chart at `path`; without it `origin` is a Helm repository."""

    name: str
    version: str
    origin: str
    revision: str | None = None
    path: str = "."

    @property
    def tag(self) -> str:
        """Tag of the chart in an OCI registry: Helm writes `_` for the `+` that tags do not allow."""
        return self.version.replace("+", "_")

    def prefix(self, settings: Settings) -> str:
        """What `helm push` puts before the chart's own name."""
        return f"{names.PREFIX}-{settings.name}/charts"

    def repository(self, settings: Settings) -> str:
        """ECR repository that mirrors this chart."""
        return f"{self.prefix(settings)}/{self.name}"

    def mirror(self, settings: Settings) -> str:
        """OCI address of the mirrored chart."""
        return f"oci://{registry(settings)}/{self.repository(settings)}"


def registry(settings: Settings) -> str:
    """Host of the account's private ECR."""
    suffix = "amazonaws.com.cn" if settings.region.startswith("cn-") else "amazonaws.com"
    return f"{settings.account}.dkr.ecr.{settings.region}.{suffix}"


def dependency_chart(settings: Settings) -> Chart:
    """HyperPod's dependencies: device plugins, health agents, job restart. AWS publishes it in Git alone, so it is mirrored always."""
    platform = settings.version_set.platform
    return Chart(
        name=platform.dependency_chart,
        version=f"{platform.dependency_chart_version}-{platform.dependency_chart_revision[:12]}",
        origin=HYPERPOD_CHARTS,
        revision=platform.dependency_chart_revision,
        path="helm_chart/HyperPodHelmChart",
    )


def endpoint_operator(settings: Settings) -> Chart:
    """The Ray Endpoint Operator: a sub-chart of the dependency chart, installed as a release of its own, never as both.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-endpoint-operator.html
    """
    platform = settings.version_set.platform
    return Chart(
        name=ENDPOINT_OPERATOR,
        version=f"{platform.endpoint_operator_version}-{platform.endpoint_operator_revision[:12]}",
        origin=HYPERPOD_CHARTS,
        revision=platform.endpoint_operator_revision,
        path=f"helm_chart/HyperPodHelmChart/charts/{ENDPOINT_OPERATOR}",
    )


def kuberay(settings: Settings) -> Chart:
    """The KubeRay operator."""
    platform = settings.version_set.platform
    return Chart(name="kuberay-operator", version=platform.kuberay, origin=platform.kuberay_repository)


def load_balancer_controller(settings: Settings) -> Chart:
    """AWS Load Balancer Controller: ingresses and Services of type LoadBalancer become load balancers."""
    platform = settings.version_set.platform
    return Chart(name="aws-load-balancer-controller", version=platform.load_balancer_chart, origin=platform.load_balancer_repository)


def wants_load_balancers(settings: Settings) -> bool:
    """Whether something in the cluster asks for a load balancer: the domain's web UI, or the endpoint inside the VPC."""
    return settings.remote_access.domain is not None or settings.serving.authentication == "internal-load-balancer"


def wants_endpoint_operator(settings: Settings) -> bool:
    """Whether Ray is reached through the operator: there is a domain, or the operator is there without one of ours."""
    return settings.remote_access.endpoint_operator or settings.remote_access.domain is not None


def mirrored(settings: Settings) -> tuple[Chart, ...]:
    """Charts that ECR must hold before anything installs them: those of a Git repository, and all of them in a closed network."""
    charts = [dependency_chart(settings)]
    if wants_endpoint_operator(settings):
        charts.append(endpoint_operator(settings))
    if settings.network.egress == "closed":
        charts.append(kuberay(settings))
        if wants_load_balancers(settings):
            charts.append(load_balancer_controller(settings))
    return tuple(charts)


@dataclass(frozen=True)
class DependencyValues:
    """Values of the dependency chart. cert-manager stays off: the EKS add-on brings it, and two of them fight over one set of CRDs."""

    region: str
    gpu_types: tuple[str, ...]
    efa_types: tuple[str, ...]
    cert_manager: bool = False
    # HyperPod refuses a cluster on an EKS cluster with "missing one or more required dependencies" and does not list them, so what the
    # chart turns on by default stays on, whether Ray needs it or not.
    training_operators: bool = True
    mpi_operator: bool = True
    neuron_device_plugin: bool = True
    health_monitoring_agent: bool = True
    deep_health_check: bool = True
    job_auto_restart: bool = True
    patching: bool = True
    # Images from the account's own ECR, by the names of config.images; empty where the charts' own are pulled.
    images: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def rendered(self) -> Mapping[str, Any]:
        """The mapping that Helm takes.

        Device plugins run where the node's type is listed, so the environment's own types are: an older list knows no ml.g7e, and a
        worker without the plugin has no GPU to allocate.
        """
        values: dict[str, Any] = {
            "global": {"region": self.region},
            "cert-manager": {"enabled": self.cert_manager},
            "trainingOperators": {"enabled": self.training_operators},
            "mpi-operator": {"enabled": self.mpi_operator},
            "mlflow": {"enabled": False},
            "inferenceOperators": {"enabled": False},
            "storage": {"enabled": False},
            "gpu-operator": {"enabled": False},
            "neuron-device-plugin": {"devicePlugin": {"enabled": self.neuron_device_plugin}},
            "nvidia-device-plugin": {
                "devicePlugin": {"enabled": bool(self.gpu_types)},
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(self.gpu_types)}
                                    ]
                                },
                            ]
                        }
                    }
                },
            },
            "aws-efa-k8s-device-plugin": {
                "devicePlugin": {"enabled": bool(self.efa_types)},
                "supportedInstanceLabels": {"values": list(self.efa_types)},
            },
            "health-monitoring-agent": {"enabled": self.health_monitoring_agent},
            "deep-health-check": {"enabled": self.deep_health_check},
            "job-auto-restart": {"enabled": self.job_auto_restart},
            "hyperpod-patching": {"enabled": self.patching},
        }
        if self.images:
            # Neuron's plugin takes no value for its image: the mirror rewrites it in the chart.
            repository, tag = self.images["health-monitoring-agent"]
            values["health-monitoring-agent"]["hmaimage"] = f"{repository}:{tag}"
            values["nvidia-device-plugin"]["image"] = self._image("nvidia-device-plugin")
            values["aws-efa-k8s-device-plugin"]["image"] = self._image("efa-device-plugin")
            values["mpi-operator"]["mpiOperator"] = {"image": self._image("mpi-operator")}
            values["training-operators"] = {"image": self._image("training-operator")}
        return values

    def _image(self, name: str) -> dict[str, str]:
        repository, tag = self.images[name]
        return {"repository": repository, "tag": tag}


def own_images(settings: Settings) -> dict[str, tuple[str, str]]:
    """Repository and tag of each chart image in the account's ECR; empty unless the network is closed."""
    return {name: (images.own(settings, image), image.tag) for name, image in images.of_charts(settings).items()}


def image_values(settings: Settings, name: str) -> dict[str, Any]:
    """Values that point a chart with the usual `image.repository` and `image.tag` at the account's ECR."""
    found = own_images(settings).get(name)
    return {"image": {"repository": found[0], "tag": found[1]}} if found else {}


def dependency_values(settings: Settings) -> DependencyValues:
    """Values of the dependency chart that follow from the environment's instance groups."""
    instances = {group.instance_type: group.instance for group in settings.instance_groups}
    return DependencyValues(
        region=settings.region,
        gpu_types=tuple(sorted(kind for kind, instance in instances.items() if instance.gpus)),
        efa_types=tuple(sorted(kind for kind, instance in instances.items() if instance.efa_interfaces)),
        images=own_images(settings),
    )
