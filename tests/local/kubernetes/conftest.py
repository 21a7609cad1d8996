"""Clusters without Ray processes: everything here is memory."""

from __future__ import annotations

from typing import Any

import pytest

from local.kubernetes import releases
from local.kubernetes.charts import Release
from local.kubernetes.cluster import Cluster, Clusters, Node

Object = dict[str, Any]


@pytest.fixture
def clusters() -> Clusters:
    return Clusters()


@pytest.fixture
def cluster(clusters: Clusters) -> Cluster:
    return clusters.create("demo")


@pytest.fixture
def nodes() -> list[Node]:
    gpu = {"cpu": "48", "memory": "460Gi", "nvidia.com/gpu": "2"}
    return [Node(f"worker-{i}", labels={"node.kubernetes.io/instance-type": "ml.g7e.12xlarge"}, capacity=gpu) for i in range(2)]


def config_map(name: str = "settings", namespace: str = "default", **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def namespace(name: str, **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}


def deployment(name: str = "web", *, replicas: int = 1, image: str = "web:1", namespace: str = "default", **spec: Any) -> Object:
    labels = {"app": name}
    pod = {"containers": [{"name": "web", "image": image}], **spec}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }  # fmt: skip


def ray_cluster(name: str = "skyrl-visgym", *, workers: int = 1, gpus: int = 0, namespace: str = "default", **annotations: str) -> Object:
    def template(amount: int) -> Object:
        limits = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(amount)} if amount else {})
        container = {"name": "ray", "image": "ray:2.57.0", "resources": {"limits": limits, "requests": limits}}
        return {"spec": {"containers": [container]}}

    group = {
        "groupName": "gpu", "replicas": workers, "minReplicas": workers, "maxReplicas": workers, "rayStartParams": {},
        "template": template(gpus),
    }  # fmt: skip
    head = {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"}, "template": template(0)}
    metadata = {"name": name, "namespace": namespace, "annotations": {key.replace("__", "/"): text for key, text in annotations.items()}}
    spec = {"rayVersion": "2.57.0", "headGroupSpec": head, "workerGroupSpecs": [group]}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def install_kuberay(cluster: Cluster, *, wait: bool = False) -> None:
    repository = "https://ray-project.github.io/kuberay-helm/"
    release = Release("kuberay-operator", "kuberay", chart="kuberay-operator", repository=repository, version="1.7.1")
    releases.install(cluster, release, wait=wait, create_namespace=True)
