"""What a RayCluster object asks for, as KubeRay reads it."""

from __future__ import annotations

from typing import Any

import pytest

from local.ray import manifest
from tests.local.kubernetes.conftest import ray_cluster


def cluster(**changes: Any) -> dict[str, Any]:
    value = ray_cluster(workers=2, gpus=2)
    value["metadata"]["uid"] = "uid-1"
    value["spec"] |= changes
    return value


def flags_of(parameters: dict[str, str], **resources: str) -> list[str]:
    value = cluster()
    head = value["spec"]["headGroupSpec"]
    head["rayStartParams"] = parameters
    head["template"]["spec"]["containers"][0]["resources"] = {"limits": resources} if resources else {}
    return manifest.resource_flags(manifest.groups(value)[0])


@pytest.mark.parametrize(
    ("parameters", "resources", "flags"),
    [
        ({}, {}, ["--num-cpus=1", "--num-gpus=0"]),
        ({}, {"cpu": "1500m", "memory": "1Gi"}, ["--num-cpus=2", "--num-gpus=0", "--memory=1073741824"]),
        ({"num-cpus": "0"}, {"cpu": "4"}, ["--num-cpus=0", "--num-gpus=0"]),
        ({}, {"cpu": "4", "nvidia.com/gpu": "2"}, ["--num-cpus=4", "--num-gpus=2"]),
        ({"num-gpus": "0"}, {"cpu": "4", "nvidia.com/gpu": "2"}, ["--num-cpus=4", "--num-gpus=0"]),
        ({"resources": '"{\\"slot\\": 2}"'}, {"cpu": "1"}, ["--num-cpus=1", "--num-gpus=0", '--resources={"slot": 2}']),
        ({"dashboard-host": "0.0.0.0", "block": "true", "object-store-memory": "999"}, {"cpu": "1"}, ["--num-cpus=1", "--num-gpus=0"]),
    ],
)
def test_ray_start_gets_the_resources_of_the_manifest(parameters: dict[str, str], resources: dict[str, str], flags: list[str]) -> None:
    assert flags_of(parameters, **resources) == flags


def test_head_and_workers() -> None:
    found = manifest.groups(cluster())
    assert [(g.name, g.head, g.replicas) for g in found] == [("headgroup", True, 1), ("gpu", False, 2)]
    assert manifest.groups(cluster(suspend=True)) == []


@pytest.mark.parametrize(("replicas", "low", "high", "got"), [(None, 2, 3, 2), (5, 0, 3, 3), (0, 1, 3, 1), (2, 0, 3, 2)])
def test_replicas_stay_within_their_bounds(replicas: int | None, low: int, high: int, got: int) -> None:
    value = cluster()
    value["spec"]["workerGroupSpecs"][0] |= {"replicas": replicas, "minReplicas": low, "maxReplicas": high}
    assert manifest.groups(value)[1].replicas == got


def test_pods_carry_the_labels_that_people_select_by() -> None:
    value = cluster()
    pod = manifest.pod(value, manifest.groups(value)[1], suffix="abcde")
    assert pod["metadata"]["name"] == "skyrl-visgym-gpu-worker-abcde"
    labels = pod["metadata"]["labels"]
    assert (labels["ray.io/cluster"], labels["ray.io/node-type"], labels["ray.io/group"]) == ("skyrl-visgym", "worker", "gpu")
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_only_replicas_leave_the_template_digest_alone() -> None:
    value = cluster()
    before = manifest.template_digest(value)
    value["spec"]["workerGroupSpecs"][0] |= {"replicas": 1, "minReplicas": 1}
    assert manifest.template_digest(value) == before
    value["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["image"] = "ray:other"
    assert manifest.template_digest(value) != before


def test_demand() -> None:
    assert manifest.demand(cluster()) == {"desiredCPU": "3", "desiredMemory": "3Gi", "desiredGPU": "4"}


def pod_with_environment(*entries: dict[str, Any], **container: Any) -> dict[str, Any]:
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/shared"}]}
    spec = {
        "nodeName": "worker-0", "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}],
        "containers": [{"name": "ray", "env": list(entries), **mounts, **container}],
    }  # fmt: skip
    return {"metadata": {"name": "p", "namespace": "training"}, "spec": spec}


OBJECTS = {
    ("ConfigMap", "settings"): {"data": {"MODE": "fast"}},
    ("Secret", "keys"): {"data": {"TOKEN": "dG9rZW4="}},
}


def environment(value: dict[str, Any]) -> dict[str, str]:
    return manifest.environment(value, address="127.65.0.2", shared="/state/shared", look_up=lambda kind, name: OBJECTS.get((kind, name)))


def test_the_environment_of_a_container() -> None:
    value = pod_with_environment(
        {"name": "PLAIN", "value": "x"},
        {"name": "JOINED", "value": "$(PLAIN)-$(UNKNOWN)"},
        {"name": "HF_HOME", "value": "/shared/hf"},
        {"name": "OTHER", "value": "/sharedness"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "TOKEN"}}},
        envFrom=[{"configMapRef": {"name": "settings"}}],
    )
    assert environment(value) == {
        "MODE": "fast", "PLAIN": "x", "JOINED": "x-$(UNKNOWN)", "HF_HOME": "/state/shared/hf", "OTHER": "/sharedness", "POD": "p",
        "IP": "127.65.0.2", "SECRET": "token",
    }  # fmt: skip


def test_a_secret_that_is_missing_holds_the_container() -> None:
    missing = {"name": "none", "key": "K"}
    with pytest.raises(ValueError, match='secret "none" not found'):
        environment(pod_with_environment({"name": "X", "valueFrom": {"secretKeyRef": missing}}))
    assert environment(pod_with_environment({"name": "X", "valueFrom": {"secretKeyRef": {**missing, "optional": True}}})) == {}
