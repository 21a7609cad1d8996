"""What the API server would not take is not taken here either."""

from __future__ import annotations

from typing import Any

import pytest

from local.kubernetes.cluster import Cluster
from local.kubernetes.errors import Rejected
from tests.local.kubernetes.conftest import config_map, deployment, install_kuberay, namespace, ray_cluster


def refused(cluster: Cluster, value: dict[str, Any]) -> str:
    with pytest.raises(Rejected) as error:
        cluster.apply([value], manager="test")
    return str(error.value)


def with_container(**container: Any) -> dict[str, Any]:
    return deployment(containers=[{"name": "web", "image": "web:1", **container}])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (config_map() | {"dat": {}}, 'unknown field "dat"'),
        (with_container(imagee="x"), 'unknown field "spec.template.spec.containers[0].imagee"'),
        (with_container(resources={"limits": {"cpu": "2 cores"}}), "spec.template.spec.containers[0].resources.limits.cpu"),
        (with_container(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}), "must be less than or equal to cpu limit of 1"),
        (with_container(resources={"requests": {"nvidia.com/gpu": "1"}}), "Limit must be set for non overcommitable resources"),
        (with_container(volumeMounts=[{"name": "shared", "mountPath": "/shared"}]), 'volumeMounts[0].name: Not found: "shared"'),
        (deployment(containers=[]), "spec.template.spec.containers: Required value"),
        (deployment(replicas=-1), "spec.replicas: Invalid value: -1"),
        (deployment(replicas="two"), "must be of type integer"),  # type: ignore[arg-type]
        (config_map("Upper"), "lowercase RFC 1123 subdomain"),
        (config_map("x" * 254), "at most 253"),
        (namespace("a.b"), "lowercase RFC 1123 label"),
        (namespace("ok", labels={"team": "a b"}), "metadata.labels"),
        ({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "1st"}, "spec": {"ports": [{"port": 1}]}}, "DNS-1035"),
        (namespace("ok", namespace="default"), "not allowed on this type"),
        (config_map(namespace="nowhere"), 'namespaces "nowhere" not found'),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, "name or generateName is required"),
        ({"apiVersion": "v1", "metadata": {"name": "x"}}, 'Object "kind" is missing'),
        ({"apiVersion": "apps/v1beta1", "kind": "Deployment", "metadata": {"name": "x"}}, 'no matches for kind "Deployment" in version'),
    ],
)  # fmt: skip
def test_refused(cluster: Cluster, value: dict[str, Any], text: str) -> None:
    before = cluster.objects()
    assert text in refused(cluster, value)
    assert cluster.objects() == before


def test_every_problem_of_every_object_is_told_at_once(cluster: Cluster) -> None:
    bad = with_container(imagee="x", resources={"limits": {"cpu": "many"}})
    with pytest.raises(Rejected) as error:
        cluster.apply([bad, config_map("Upper"), config_map("fine")], manager="test")
    assert len(error.value.problems) == 3
    assert cluster.get("ConfigMap", "default", "fine") is not None  # as kubectl, which goes on with the next object


def test_a_selector_that_does_not_match_its_template(cluster: Cluster) -> None:
    value = deployment()
    value["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    assert "`selector` does not match template `labels`" in refused(cluster, value)


def test_ray_kinds_need_their_operator_and_the_message_names_it(cluster: Cluster) -> None:
    assert 'no matches for kind "RayCluster" in version "ray.io/v1": the chart kuberay-operator' in refused(cluster, ray_cluster())
    install_kuberay(cluster)
    cluster.apply([ray_cluster()], manager="test")
    assert cluster.get("RayCluster", "default", "skyrl-visgym") is not None


def test_pod_templates_of_ray_clusters_are_checked(cluster: Cluster) -> None:
    install_kuberay(cluster)
    value = ray_cluster()
    value["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["comand"] = ["x"]
    assert "spec.workerGroupSpecs[0].template.spec.containers[0].comand" in refused(cluster, value)


def test_nothing_new_enters_a_namespace_that_is_being_deleted(cluster: Cluster) -> None:
    held = config_map(namespace="team")
    held["metadata"]["finalizers"] = ["example.org/hold"]
    cluster.apply([namespace("team"), held], manager="test")
    cluster.api.delete(cluster.api.kind("v1", "Namespace"), None, "team")
    assert "because it is being terminated" in refused(cluster, config_map("late", namespace="team"))


def claim(size: str = "1200Gi", **spec: Any) -> dict[str, Any]:
    base = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": size}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "namespace": "default"},
        "spec": {**base, **spec},
    }


def volume(size: str = "1200Gi", handle: str = "fs-1") -> dict[str, Any]:
    csi = {"driver": "fsx.csi.aws.com", "volumeHandle": handle}
    spec = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": size}, "csi": csi, "storageClassName": ""}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shared"}, "spec": spec}


def job(image: str = "a") -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": image}]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once", "namespace": "default"}, "spec": {"template": template}}


def binding(role: str) -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "default"},
        "roleRef": reference,
    }


def reselected() -> dict[str, Any]:
    value = deployment()
    value["spec"]["selector"] = {"matchLabels": {"tier": "web"}}
    value["spec"]["template"]["metadata"]["labels"] = {"tier": "web"}
    return value


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (claim(), claim(accessModes=["ReadWriteOnce"]), "spec is immutable after creation"),
        (claim(), claim("2400Gi"), "only dynamically provisioned pvc can be resized"),
        (claim(), claim("600Gi"), "can not be less than"),
        (volume(), volume(handle="fs-2"), "spec.persistentvolumesource is immutable"),
        (job(), job("b"), "spec.template: Invalid value: field is immutable"),
        (deployment(), reselected(), "spec.selector: Invalid value: field is immutable"),
        (binding("one"), binding("two"), "cannot change roleRef"),
        (config_map(a="1") | {"immutable": True}, config_map(a="2") | {"immutable": True}, "field is immutable"),
    ],
)
def test_what_must_not_change(cluster: Cluster, before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    cluster.apply([before], manager="test")
    assert text in refused(cluster, after)


def test_a_volume_may_grow_in_capacity_only(cluster: Cluster) -> None:
    cluster.apply([volume("1200Gi")], manager="test")
    cluster.apply([volume("2400Gi")], manager="test")
    assert cluster.get("PersistentVolume", None, "shared")["spec"]["capacity"] == {"storage": "2400Gi"}


def test_secrets_are_stored_encoded(cluster: Cluster) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "stringData": {"k": "v"}}
    cluster.apply([secret], manager="test")
    assert cluster.get("Secret", "default", "s")["data"] == {"k": "dg=="}
