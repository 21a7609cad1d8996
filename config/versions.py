"""Version sets. Each set is consistent in itself; nothing outside this file names a version of these things.

Sources: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-prerequisites.html (Kubernetes 1.30-1.35),
https://aws.github.io/deep-learning-containers/ray-llm/ (serving image), https://github.com/ray-project/kuberay (KubeRay 1.7.1),
https://github.com/aws/sagemaker-hyperpod-cluster-setup (chart revision). Add-on versions were seen in a catalog or follow
Kubernetes 1.34; `hyperpod-rl doctor` is the place that checks them against the account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class TrainingImage:
    """What the training image is built from."""

    ray: str = "2.57.0"
    python: str = "3.12"
    base: str = "novaskyai/skyrl-train-ray-2.57.0-py3.12-cu13.0"
    skyrl_commit: str = "4298730b55bb01fe1b711662df53dca42a3b7615"
    visgym_commit: str = "184fbd5e5dc81e32c8b944d9e40ac54dad62e3f2"
    pygame: str = "2.6.1"
    toolkit: str = "1.0.4"


@dataclass(frozen=True)
class ServingImage:
    """AWS Deep Learning Container for Ray Serve LLM."""

    ray: str = "2.58.0"
    python: str = "3.13"
    vllm: str = "0.26.0"
    repository: str = "public.ecr.aws/deep-learning-containers/ray"
    tag: str = "serve-llm-cuda-v1.0.0"


@dataclass(frozen=True)
class Client:
    """What runs on a laptop: Ray's Jobs API needs no equality with the cluster (https://docs.ray.io, Jobs API)."""

    ray: str = "2.57.0"
    toolkit: str = "1.0.4"


def _addons() -> Mapping[str, str]:
    return MappingProxyType({
        "vpc-cni": "v1.20.4-eksbuild.2",
        "kube-proxy": "v1.34.0-eksbuild.2",
        "coredns": "v1.12.3-eksbuild.1",
        "eks-pod-identity-agent": "v1.3.8-eksbuild.2",
        "aws-fsx-csi-driver": "v1.10.0-eksbuild.1",
        "cert-manager": "v1.18.2-eksbuild.2",
        "metrics-server": "v0.8.0-eksbuild.2",
        "amazon-sagemaker-hyperpod-observability": "v1.3.0-eksbuild.1",
        "amazon-sagemaker-hyperpod-taskgovernance": "v1.6.1-eksbuild.2",
        # With a domain. HyperPod's volumes want an EBS driver of at least v1.47.0, Ray a Spaces of at least 0.2.0.
        "aws-ebs-csi-driver": "v1.47.0-eksbuild.1",
        "external-dns": "v0.19.0-eksbuild.2",
        "amazon-sagemaker-spaces": "v0.2.1-eksbuild.1",
    })  # fmt: skip


def _chart_images() -> Mapping[str, str]:
    """Images of the charts' pods, by what they are. Only a network without a way out has to know them: elsewhere a chart knows its own.

    https://github.com/aws/sagemaker-hyperpod-cli (helm_chart: readme.md and the sub-charts' values; the tags are inferred for the pinned
    revision), the KubeRay, NVIDIA and eks-charts charts' own defaults.
    """
    aws = "{}.dkr.ecr.us-west-2.amazonaws.com"
    return MappingProxyType({
        "kuberay": "quay.io/kuberay/operator:v1.7.1",
        "load-balancer-controller": "public.ecr.aws/eks/aws-load-balancer-controller:v2.14.0",
        "endpoint-operator": f"{aws.format('148286033537')}/hyperpod-ray-endpoint-operator:1.0.188.0_1.0.19.0",
        "nvidia-device-plugin": "nvcr.io/nvidia/k8s-device-plugin:v0.16.1",
        "efa-device-plugin": f"{aws.format('602401143452')}/eks/aws-efa-k8s-device-plugin:v0.5.8",
        "neuron-device-plugin": "public.ecr.aws/neuron/neuron-device-plugin:2.19.16.0",
        "health-monitoring-agent": f"{aws.format('905418368575')}/hyperpod-health-monitoring-agent:1.0.1892.0_1.0.424.0",
        "mpi-operator": "docker.io/mpioperator/mpi-operator:0.5",
        "training-operator": "docker.io/kubeflow/training-operator:v1-855e096",
    })  # fmt: skip


@dataclass(frozen=True)
class Platform:
    """Kubernetes and everything that is installed into it. Add-on builds are inferred unless a catalog entry was seen."""

    kubernetes: str = "1.34"
    kuberay: str = "1.7.1"
    kuberay_repository: str = "https://ray-project.github.io/kuberay-helm/"
    # The chart's own name and version (helm_chart/HyperPodHelmChart/Chart.yaml of https://github.com/aws/sagemaker-hyperpod-cli).
    dependency_chart: str = "hyperpod-helm-chart"
    dependency_chart_version: str = "0.1.0"
    # The commit that AWS's own quick setup pins; whether its device plugins list ml.g7e.* is checked when it is mirrored.
    dependency_chart_revision: str = "bb6a9f9534217c55a5806ae968e1dd8b285d4b8c"
    # Its sub-chart hyperpod-ray-endpoint-operator is younger than that commit (inferred); its Chart.yaml was seen at this one.
    endpoint_operator_version: str = "0.1.0"
    endpoint_operator_revision: str = "067d658b2d5c"
    load_balancer_chart: str = "1.14.0"
    load_balancer_repository: str = "https://aws.github.io/eks-charts"
    # The client that mirrors charts into ECR.
    helm: str = "3.18.4"
    # A shell and coreutils for one-shot Jobs.
    shell_image: str = "public.ecr.aws/docker/library/busybox:1.37.0"
    lustre: str = "2.15"
    grafana: str = "10.4"
    chart_images: Mapping[str, str] = field(default_factory=_chart_images)
    addons: Mapping[str, str] = field(default_factory=_addons)


@dataclass(frozen=True)
class VersionSet:
    """One consistent choice, named in an environment by `versions:`."""

    name: str
    training: TrainingImage = TrainingImage()
    serving: ServingImage = ServingImage()
    client: Client = Client()
    platform: Platform = field(default_factory=Platform)


VERSION_SETS: Mapping[str, VersionSet] = MappingProxyType({"2026.11": VersionSet(name="2026.11")})
