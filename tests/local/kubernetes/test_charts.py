"""Charts and add-ons bring kinds and objects; installing and uninstalling fail where Helm or AWS would."""

from __future__ import annotations

from typing import Any

import pytest

from local.kubernetes import addons, releases
from local.kubernetes.charts import Release
from local.kubernetes.cluster import Cluster, Node
from local.kubernetes.errors import Rejected
from tests.local.kubernetes.conftest import config_map, install_kuberay, ray_cluster


def install(cluster: Cluster, chart: str, *, release: str = "r", namespace: str = "ns", wait: bool = False, **values: Any) -> None:
    releases.install(cluster, Release(release, namespace, chart, values=values), wait=wait, create_namespace=True)


def test_waiting_without_a_ready_node_is_refused_and_makes_nothing(cluster: Cluster) -> None:
    cluster.set_nodes([Node("a", ready=False)])
    before = cluster.objects()
    with pytest.raises(Rejected, match="`wait` is set and no node is Ready"):
        install_kuberay(cluster, wait=True)
    assert cluster.objects() == before
    assert not cluster.has_release("kuberay-operator")


def test_waiting_for_pods_that_fit_nowhere_is_refused(cluster: Cluster) -> None:
    cluster.set_nodes([Node("a", capacity={"cpu": "10m"})])
    with pytest.raises(Rejected, match="deployment kuberay-operator is not available"):
        install_kuberay(cluster, wait=True)


def test_a_release_comes_and_goes_but_its_definitions_stay(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes)
    install_kuberay(cluster, wait=True)
    assert cluster.has_release("kuberay-operator")
    assert cluster.get("Deployment", "kuberay", "kuberay-operator")["status"]["availableReplicas"] == 1
    releases.uninstall(cluster, "kuberay-operator", "kuberay")
    releases.uninstall(cluster, "kuberay-operator", "kuberay")
    assert not cluster.has_release("kuberay-operator")
    assert cluster.get("Deployment", "kuberay", "kuberay-operator") is None
    assert cluster.get("CustomResourceDefinition", None, "rayclusters.ray.io") is not None


def test_the_operator_does_not_go_before_its_clusters(cluster: Cluster) -> None:
    install_kuberay(cluster)
    cluster.apply([ray_cluster()], manager="test")
    with pytest.raises(Rejected, match="RayCluster default/skyrl-visgym still exist"):
        releases.uninstall(cluster, "kuberay-operator", "kuberay")
    cluster.delete([ray_cluster()])
    releases.uninstall(cluster, "kuberay-operator", "kuberay")


def test_a_second_release_does_not_take_over_the_first_ones_objects(cluster: Cluster) -> None:
    install_kuberay(cluster)
    with pytest.raises(Rejected, match=r'ClusterRole "raycronjob-editor-role".*it belongs to kuberay-operator in kuberay'):
        install(cluster, "kuberay-operator", release="second", namespace="elsewhere")


def test_an_unknown_chart_is_refused_with_those_that_are_known(cluster: Cluster) -> None:
    with pytest.raises(Rejected, match=r"kuberay-operater.*knows .*kuberay-operator"):
        install(cluster, "kuberay-operater")


def test_a_namespace_that_may_not_be_created_must_be_there(cluster: Cluster) -> None:
    with pytest.raises(Rejected, match='namespaces "ns" not found'):
        releases.install(cluster, Release("r", "ns", "kuberay-operator"), wait=False, create_namespace=False)


def test_cert_manager_comes_once(cluster: Cluster) -> None:
    addons.install(cluster, "cert-manager")
    with pytest.raises(Rejected, match=r"set cert-manager\.enabled to false"):
        install(cluster, "HyperPodHelmChart", release="dependencies", namespace="kube-system")
    install(cluster, "HyperPodHelmChart", release="dependencies", namespace="kube-system", **{"cert-manager": {"enabled": False}})
    assert cluster.has_release("dependencies")


def test_the_other_way_round_too(cluster: Cluster) -> None:
    install(cluster, "hyperpod-helm-chart", release="dependencies", namespace="kube-system")
    with pytest.raises(Rejected, match="installed by the HyperPod dependency chart already"):
        addons.install(cluster, "cert-manager")


def test_the_dependency_chart_follows_its_switches(cluster: Cluster) -> None:
    off = {"cert-manager": {"enabled": False}, "nvidia-device-plugin": {"devicePlugin": {"enabled": False}}}
    install(cluster, "HyperPodHelmChart", release="any-name", namespace="kube-system", **off)
    assert cluster.get("DaemonSet", "kube-system", "nvidia-device-plugin") is None
    assert cluster.get("DaemonSet", "kube-system", "aws-efa-k8s-device-plugin") is not None
    assert cluster.get("CustomResourceDefinition", None, "pytorchjobs.kubeflow.org") is not None
    assert cluster.get("Namespace", None, "cert-manager") is None


def test_an_upgrade_removes_what_the_new_values_switch_off(cluster: Cluster) -> None:
    off = {"cert-manager": {"enabled": False}}
    install(cluster, "HyperPodHelmChart", namespace="kube-system", **off)
    install(cluster, "HyperPodHelmChart", namespace="kube-system", **off, **{"nvidia-device-plugin": {"enabled": False}})
    assert cluster.get("DaemonSet", "kube-system", "nvidia-device-plugin") is None


@pytest.mark.parametrize(
    ("chart", "values", "problems"),
    [
        ("hyperpod-ray-endpoint-operator", {}, ["manager.enableEndpointsByDefault: Required", "region: Required"]),
        ("hyperpod-ray-endpoint-operator", {"region": "us-west-2", "manager": {"enableEndpointsByDefault": "yes"}}, ['"true" or "false"']),
        ("aws-load-balancer-controller", {}, ["valid clusterName"]),
    ],
)
def test_required_values(cluster: Cluster, chart: str, values: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(Rejected) as refused:
        install(cluster, chart, **values)
    assert all(problem in str(refused.value) for problem in problems)


@pytest.mark.parametrize(
    ("chart", "repository", "name"),
    [
        ("kuberay-operator", None, "kuberay-operator"),
        ("kuberay/kuberay-operator", None, "kuberay-operator"),
        ("any", "oci://111122223333.dkr.ecr.us-west-2.amazonaws.com/hyperpod-rl-local/charts/kuberay-operator", "kuberay-operator"),
        ("/tmp/charts/HyperPodHelmChart/", None, "HyperPodHelmChart"),
    ],
)
def test_how_a_chart_is_named(chart: str, repository: str | None, name: str) -> None:
    assert Release("r", "ns", chart, repository).chart_name == name


def test_an_addon_comes_and_goes_with_its_kinds(cluster: Cluster) -> None:
    before = cluster.objects()
    issuer = {"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "ca", "namespace": "default"}, "spec": {}}
    with pytest.raises(Rejected, match="the EKS add-on cert-manager brings it"):
        cluster.apply([issuer], manager="test")
    addons.install(cluster, "cert-manager")
    addons.install(cluster, "cert-manager")
    cluster.apply([issuer], manager="test")
    addons.remove(cluster, "cert-manager")
    addons.remove(cluster, "cert-manager")
    assert cluster.objects() == before


@pytest.mark.parametrize("name", ["vpc-cni", "coredns", "aws-fsx-csi-driver", "metrics-server", "amazon-sagemaker-hyperpod-observability"])
def test_every_addon_leaves_as_it_came(cluster: Cluster, nodes: list[Node], name: str) -> None:
    cluster.set_nodes(nodes)
    before = cluster.objects()
    addons.install(cluster, name)
    assert cluster.objects() != before
    addons.remove(cluster, name)
    assert cluster.objects() == before


def test_an_unknown_addon_brings_nothing(cluster: Cluster) -> None:
    cluster.apply([config_map()], manager="test")
    before = cluster.objects()
    addons.install(cluster, "some-addon")
    addons.remove(cluster, "some-addon")
    assert cluster.objects() == before
