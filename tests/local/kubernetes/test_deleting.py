"""Deletion in order: owners, namespaces, finalizers, claims in use, definitions."""

from __future__ import annotations

import pytest

from local.kubernetes.cluster import Cluster, Clusters, Node
from local.kubernetes.errors import Rejected
from tests.local.kubernetes.conftest import config_map, deployment, install_kuberay, namespace, ray_cluster
from tests.local.kubernetes.test_admission import claim, volume


def test_deleting_twice_and_deleting_nothing_is_fine(cluster: Cluster) -> None:
    cluster.apply([config_map()], manager="test")
    cluster.delete([config_map(), config_map("never-there"), ray_cluster()])
    cluster.delete([config_map()])
    assert cluster.get("ConfigMap", "default", "settings") is None


def test_a_namespace_takes_what_is_in_it(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes)
    before = cluster.objects()
    cluster.apply([namespace("team"), config_map(namespace="team"), deployment(namespace="team", replicas=2)], manager="test")
    assert sum("Pod team/" in line for line in cluster.objects()) == 2
    cluster.delete([namespace("team")])
    assert cluster.objects() == before


def test_a_finalizer_holds_its_object_and_its_namespace(cluster: Cluster) -> None:
    held = config_map(namespace="team")
    held["metadata"]["finalizers"] = ["example.org/hold"]
    cluster.apply([namespace("team"), held], manager="test")
    with pytest.raises(Rejected, match=r"waits for ConfigMap settings with finalizer example\.org/hold"):
        cluster.delete([namespace("team")])
    assert cluster.get("Namespace", None, "team")["status"]["phase"] == "Terminating"
    kind = cluster.api.kind("v1", "ConfigMap")
    cluster.api.patch(kind, "team", "settings", {"metadata": {"finalizers": None}}, style="merge", manager="test")
    cluster.api.collect()
    assert cluster.get("ConfigMap", "team", "settings") is None
    assert cluster.get("Namespace", None, "team") is None


def test_what_an_owner_owned_goes_with_it(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes)
    cluster.apply([deployment(replicas=3)], manager="test")
    assert len(cluster.store.select(kind="Pod")) == 3
    cluster.delete([deployment()])
    assert cluster.store.select(kind="Pod") == []


def test_a_claim_in_use_stays_until_its_pods_are_gone(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes)
    user = deployment(volumes=[{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}])
    cluster.apply([volume(), claim(), user], manager="test")
    with pytest.raises(Rejected, match=r"kubernetes\.io/pvc-protection"):
        cluster.delete([claim()])
    assert cluster.get("PersistentVolumeClaim", "default", "shared")["metadata"]["deletionTimestamp"]
    cluster.delete([user])
    assert cluster.get("PersistentVolumeClaim", "default", "shared") is None
    assert cluster.get("PersistentVolume", None, "shared")["status"] == {"phase": "Released"}


def test_a_definition_takes_its_objects_and_its_kind(cluster: Cluster) -> None:
    install_kuberay(cluster)
    cluster.apply([ray_cluster()], manager="test")
    definition = cluster.get("CustomResourceDefinition", None, "rayclusters.ray.io")
    cluster.delete([definition])
    assert cluster.get("RayCluster", "default", "skyrl-visgym") is None
    with pytest.raises(Rejected, match="no matches for kind"):
        cluster.apply([ray_cluster()], manager="test")


def test_kubernetes_own_namespaces_stay(cluster: Cluster) -> None:
    with pytest.raises(Rejected, match="may not be deleted"):
        cluster.delete([namespace("kube-system")])


def test_a_deleted_cluster_leaves_nothing(clusters: Clusters) -> None:
    cluster = clusters.create("other")
    cluster.apply([config_map()], manager="test")
    assert clusters.objects() == ["other Cluster", "other ConfigMap default/settings"]
    with pytest.raises(Rejected, match="already exists"):
        clusters.create("other")
    clusters.delete("other")
    clusters.delete("other")
    assert clusters.objects() == []
    assert clusters.get("other") is None
