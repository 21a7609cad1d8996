"""CDK's Kubernetes custom resources, with the properties that its templates carry."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from local.kubernetes import custom_resources as resources
from local.kubernetes.cluster import Cluster, Clusters, Node
from local.kubernetes.errors import Rejected
from local.kubernetes.jsonpath import read
from tests.local.kubernetes.conftest import config_map, deployment, install_kuberay, namespace, ray_cluster


def manifest(*objects: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"ClusterName": "demo", "Manifest": json.dumps(objects), **more}


def test_a_manifest_comes_changes_and_goes(clusters: Clusters, cluster: Cluster) -> None:
    old = manifest(namespace("team"), config_map(namespace="team", a="1", b="2"))
    physical, attributes = resources.create(resources.MANIFEST, old, clusters)
    assert attributes == {}
    new = manifest(namespace("team"), config_map(namespace="team", a="9"))
    assert resources.update(resources.MANIFEST, physical, old, new, clusters) == (physical, {})
    assert cluster.get("ConfigMap", "team", "settings")["data"] == {"a": "9"}
    resources.delete(resources.MANIFEST, physical, new, clusters)
    resources.delete(resources.MANIFEST, physical, new, clusters)
    assert cluster.get("Namespace", None, "team") is None


def test_create_does_not_take_over_what_exists_unless_it_may(clusters: Clusters, cluster: Cluster) -> None:
    cluster.apply([config_map(a="1")], manager="someone")
    with pytest.raises(Rejected, match='configmaps "settings" already exists'):
        resources.create(resources.MANIFEST, manifest(config_map(a="2")), clusters)
    resources.create(resources.MANIFEST, manifest(config_map(a="2"), Overwrite="true"), clusters)
    resources.create(resources.MANIFEST, manifest(config_map(a="3"), Overwrite=True), clusters)
    assert cluster.get("ConfigMap", "default", "settings")["data"] == {"a": "3"}


def test_two_resources_never_share_a_physical_id(clusters: Clusters, cluster: Cluster) -> None:
    made = {resources.create(resources.MANIFEST, manifest(config_map(f"c{i}")), clusters)[0] for i in range(5)}
    assert len(made) == 5


def test_an_object_that_left_the_manifest_is_pruned_by_its_label_only(clusters: Clusters, cluster: Cluster) -> None:
    def labelled(name: str) -> dict[str, Any]:
        value = config_map(name)
        value["metadata"]["labels"] = {"aws.cdk.eks/prune-c8a": ""}
        return value

    old = manifest(labelled("one"), labelled("two"), PruneLabel="aws.cdk.eks/prune-c8a")
    physical, _ = resources.create(resources.MANIFEST, old, clusters)
    cluster.apply([config_map("stranger")], manager="someone")
    new = manifest(labelled("one"), PruneLabel="aws.cdk.eks/prune-c8a")
    resources.update(resources.MANIFEST, physical, old, new, clusters)
    assert cluster.get("ConfigMap", "default", "two") is None
    assert cluster.get("ConfigMap", "default", "one")
    assert cluster.get("ConfigMap", "default", "stranger")
    without = manifest()
    resources.update(resources.MANIFEST, physical, new, without, clusters)
    assert cluster.get("ConfigMap", "default", "one")  # as kubectl without --prune


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (manifest(config_map()) | {"ClusterName": "other"}, "No cluster found for name: other"),
        ({"ClusterName": "demo", "Manifest": "{"}, "Manifest: not a JSON list"),
        ({"ClusterName": "demo"}, "Manifest: not a JSON list"),
        (manifest({"kind": "ConfigMap"}), 'Object "apiVersion" is missing'),
        (manifest(ray_cluster()), 'no matches for kind "RayCluster"'),
    ],
)
def test_bad_manifests(clusters: Clusters, cluster: Cluster, properties: dict[str, Any], text: str) -> None:
    with pytest.raises(Rejected) as refused:
        resources.create(resources.MANIFEST, properties, clusters)
    assert text in str(refused.value)


def chart(**more: Any) -> dict[str, Any]:
    return {
        "ClusterName": "demo",
        "Release": "kuberay",
        "Chart": "kuberay-operator",
        "Namespace": "kuberay",
        "CreateNamespace": "true",
        **more,
    }


def test_a_chart_comes_and_goes(clusters: Clusters, cluster: Cluster, nodes: list[Node]) -> None:
    with pytest.raises(Rejected, match="no node is Ready"):
        resources.create(resources.CHART, chart(Wait="true"), clusters)
    cluster.set_nodes(nodes)
    properties = chart(Wait="true", Values=json.dumps({"watchNamespace": ["training"]}), Timeout="600s")
    physical, _ = resources.create(resources.CHART, properties, clusters)
    cluster.apply([ray_cluster()], manager="test")
    with pytest.raises(Rejected, match="still exist"):
        resources.delete(resources.CHART, physical, properties, clusters)
    cluster.delete([ray_cluster()])
    resources.delete(resources.CHART, physical, properties, clusters)
    assert not cluster.has_release("kuberay")


def test_a_chart_from_an_asset_is_told_by_its_release(clusters: Clusters, cluster: Cluster) -> None:
    asset = {"ClusterName": "demo", "ChartAssetURL": "s3://bucket/key.zip", "Namespace": "kube-system"}
    resources.create(resources.CHART, asset | {"Release": "hyperpod-dependencies"}, clusters)
    assert cluster.get("CustomResourceDefinition", None, "pytorchjobs.kubeflow.org") is not None
    with pytest.raises(Rejected, match="region: Required value"):
        resources.create(resources.CHART, asset | {"Release": "hyperpod-ray-endpoint-operator"}, clusters)
    with pytest.raises(Rejected, match="must point to as s3 location"):
        resources.create(resources.CHART, asset | {"Release": "x", "ChartAssetURL": "https://x"}, clusters)
    with pytest.raises(Rejected, match="chart or chartAsset must be specified"):
        resources.create(resources.CHART, {"ClusterName": "demo", "Release": "x"}, clusters)


def test_a_patch_is_applied_and_restored(clusters: Clusters, cluster: Cluster) -> None:
    cluster.apply([deployment(replicas=2)], manager="test")
    properties = {
        "ClusterName": "demo", "ResourceName": "deployment/web", "ResourceNamespace": "default", "PatchType": "strategic",
        "ApplyPatchJson": json.dumps({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:9"}]}}}}),
        "RestorePatchJson": json.dumps({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:1"}]}}}}),
    }  # fmt: skip
    physical, _ = resources.create(resources.PATCH, properties, clusters)
    spec = cluster.get("Deployment", "default", "web")["spec"]
    assert (spec["replicas"], spec["template"]["spec"]["containers"]) == (2, [{"name": "web", "image": "web:9"}])
    resources.delete(resources.PATCH, physical, properties, clusters)
    assert cluster.get("Deployment", "default", "web")["spec"]["template"]["spec"]["containers"][0]["image"] == "web:1"
    with pytest.raises(Rejected, match="not found"):
        resources.create(resources.PATCH, properties | {"ResourceName": "deploy/none"}, clusters)
    with pytest.raises(Rejected, match='resource type "gadget"'):
        resources.create(resources.PATCH, properties | {"ResourceName": "gadget/none"}, clusters)


def value_of(path: str, **more: str) -> dict[str, Any]:
    base = {"ClusterName": "demo", "ObjectType": "cm", "ObjectName": "settings", "ObjectNamespace": "default", "JsonPath": path}
    return base | {"TimeoutSeconds": "0.3"} | more


def test_a_value_is_read_and_waited_for(clusters: Clusters, cluster: Cluster) -> None:
    cluster.apply([config_map(host="a.example.org")], manager="test")
    assert resources.create(resources.VALUE, value_of(".data.host"), clusters)[1] == {"Value": "a.example.org"}
    with pytest.raises(Rejected, match=r"Timeout waiting for output of \.data\.later"):
        resources.create(resources.VALUE, value_of(".data.later"), clusters)
    timer = threading.Timer(0.1, lambda: cluster.apply([config_map(host="a", later="b")], manager="test"))
    timer.start()
    assert resources.create(resources.VALUE, value_of(".data.later", TimeoutSeconds="10"), clusters)[1] == {"Value": "b"}
    timer.join()


def test_unknown_types_are_refused(clusters: Clusters, cluster: Cluster) -> None:
    with pytest.raises(Rejected, match="unknown resource type"):
        resources.create("Custom::Else", {"ClusterName": "demo"}, clusters)


def test_what_kuberay_brings_is_there_for_a_manifest(clusters: Clusters, cluster: Cluster) -> None:
    install_kuberay(cluster)
    resources.create(resources.MANIFEST, manifest(ray_cluster()), clusters)
    assert cluster.get("RayCluster", "default", "skyrl-visgym") is not None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".a.b", "1"), ("{.a.b}", "1"), ("a.b", "1"), (".l[0].x", "p"), (".l[-1].x", "q"), (".l[*].x", "p q"), (".a['b']", "1"),
        (r".a.with\.dot", "d"), (".none.x", ""), (".a", '{"b":1,"with.dot":"d"}'), (".t", "true"),
    ],
)  # fmt: skip
def test_json_paths(path: str, text: str) -> None:
    assert read({"a": {"b": 1, "with.dot": "d"}, "l": [{"x": "p"}, {"x": "q"}], "t": True}, path) == text


def test_a_json_path_that_is_not_understood() -> None:
    with pytest.raises(Rejected, match="only fields, indices"):
        read({}, ".a[?(@.b==1)]")
