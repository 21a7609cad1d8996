"""Each rule about a RayCluster and its pods: an example that breaks it, and the same object that does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import kubernetes_rules
from tests.config.ray_objects import (
    HEAD,
    HEAD_POD,
    WORKER,
    WORKER_LIMITS,
    WORKER_POD,
    Change,
    amount,
    both,
    check_refused,
    good,
    path,
    put,
    variable,
)

THROUGH_KUBERNETES = {"mode": "token", "enableK8sTokenAuth": True}

# (kind, change, what the refused field contains, what the sentence contains)
BROKEN: list[tuple[str, Change, str, str]] = [
    ("RayCluster", put("a" * 60, "metadata", "name"), "metadata.name", "at most 53"),
    ("RayService", put("a" * 48, "metadata", "name"), "metadata.name", "at most 47"),
    ("RayJob", put("a" * 48, "metadata", "name"), "metadata.name", "at most 47"),
    ("RayCluster", put("1-digit-first", "metadata", "name"), "metadata.name", "DNS-1035"),
    ("RayCluster", put([], *HEAD_POD, "containers"), "headGroupSpec.template.spec.containers", "at least one container"),
    ("RayCluster", put([], *WORKER_POD, "containers"), "workerGroupSpecs[0].template.spec.containers", "at least one container"),
    ("RayCluster", both(put({"CPU": "4"}, *HEAD, "resources")), "headGroupSpec.rayStartParams", "takes one of the two"),
    ("RayCluster", put("2", *WORKER, "rayStartParams", "num-gpus"), "rayStartParams.num-gpus", "limit says it already"),
    ("RayCluster", put("a=b", *WORKER, "rayStartParams", "labels"), "rayStartParams.labels", "group's `labels`"),
    ("RayCluster", put(4, *WORKER, "replicas"), "workerGroupSpecs[0].replicas", "outside minReplicas 3 and maxReplicas 3"),
    ("RayCluster", put(2, *WORKER, "replicas"), "workerGroupSpecs[0].replicas", "outside"),
    ("RayCluster", put(5, *WORKER, "minReplicas"), "minReplicas", "above maxReplicas 3"),
    ("RayCluster", put(-1, *WORKER, "minReplicas"), "minReplicas", "negative"),
    ("RayCluster", lambda o: path(*WORKER)(o).pop("maxReplicas"), "maxReplicas", "both minReplicas and maxReplicas"),
    ("RayCluster", variable(HEAD_POD, "RAY_enable_autoscaler_v2", "1"), "RAY_enable_autoscaler_v2", "autoscaling is off"),
    (
        "RayCluster",
        both(
            put(True, "spec", "enableInTreeAutoscaling"),
            put({"version": "v2"}, "spec", "autoscalerOptions"),
            put("Always", *WORKER_POD, "restartPolicy"),
        ),
        "workerGroupSpecs[0].template.spec.restartPolicy",
        "Never",
    ),
    (
        "RayCluster",
        both(put(True, "spec", "enableInTreeAutoscaling"), put("OnFailure", *HEAD_POD, "restartPolicy")),
        "headGroupSpec.template.spec.restartPolicy",
        "Never",
    ),
    (
        "RayCluster",
        both(
            put(True, "spec", "enableInTreeAutoscaling"),
            put({"version": "v2"}, "spec", "autoscalerOptions"),
            variable(HEAD_POD, "RAY_enable_autoscaler_v2", "1"),
        ),
        "RAY_enable_autoscaler_v2",
        "autoscalerOptions.version only",
    ),
    ("RayCluster", put({"idleTimeoutSeconds": -5}, "spec", "autoscalerOptions"), "idleTimeoutSeconds", "negative"),
    (
        "RayCluster",
        both(put(True, "spec", "enableInTreeAutoscaling"), put(True, *WORKER, "suspend")),
        "workerGroupSpecs[0].suspend",
        "autoscaler is on",
    ),
    ("RayCluster", variable(HEAD_POD, "RAY_REDIS_ADDRESS", "redis:6379"), "RAY_REDIS_ADDRESS", "gcsFaultToleranceOptions"),
    ("RayCluster", put("me", *HEAD, "rayStartParams", "redis-username"), "redis-username", "gcsFaultToleranceOptions"),
    (
        "RayCluster",
        both(put({"redisAddress": "redis:6379"}, "spec", "gcsFaultToleranceOptions"), put("x", *HEAD, "rayStartParams", "redis-password")),
        "redis-password",
        "gcsFaultToleranceOptions",
    ),
    ("RayCluster", put({"backend": "rocksdb"}, "spec", "gcsFaultToleranceOptions"), "gcsFaultToleranceOptions.backend", "which is off"),
    ("RayCluster", put({}, "spec", "gcsFaultToleranceOptions"), "redisAddress", "needs an address"),
    ("RayCluster", put({"mode": "DenyAll"}, "spec", "networkPolicy"), "spec.networkPolicy", "RayClusterNetworkPolicy"),
    ("RayCluster", put({"enabled": True}, "spec", "tlsOptions"), "spec.tlsOptions", "RayClusterMTLS"),
    ("RayCluster", put({}, "spec", "historyServerOptions"), "spec.historyServerOptions", "RayClusterHistoryServer"),
    ("RayCluster", put({"type": "NewCluster"}, "spec", "upgradeStrategy"), "upgradeStrategy.type", "Recreate and None"),
    ("RayJob", put({"type": "Recreate"}, "spec", "rayClusterSpec", "upgradeStrategy"), "upgradeStrategy.type", "a RayJob makes"),
    (
        "RayCluster",
        both(put({"mode": "token"}, "spec", "authOptions"), put("2.51.0", "spec", "rayVersion")),
        "spec.rayVersion",
        "2.52 or later",
    ),
    (
        "RayCluster",
        both(put(THROUGH_KUBERNETES, "spec", "authOptions"), put("2.54.1", "spec", "rayVersion")),
        "spec.rayVersion",
        "2.55 or later",
    ),
    ("RayCluster", put({"enableK8sTokenAuth": True}, "spec", "authOptions"), "enableK8sTokenAuth", "mode token"),
    ("RayCluster", put({"mode": "disabled", "enableK8sTokenAuth": True}, "spec", "authOptions"), "enableK8sTokenAuth", "mode token"),
    ("RayCluster", put({**THROUGH_KUBERNETES, "secretName": "x"}, "spec", "authOptions"), "secretName", "takes no Secret"),
    (
        "RayService",
        put({"enableK8sTokenAuth": True}, "spec", "rayClusterConfig", "authOptions"),
        "enableK8sTokenAuth",
        "no Kubernetes token authentication for a RayService",
    ),
    ("RayService", put({"mode": "token"}, "spec", "rayClusterConfig", "authOptions"), "authOptions.mode", "RayService"),
    ("RayJob", put({"mode": "token"}, "spec", "rayClusterSpec", "authOptions"), "authOptions.mode", "RayJob"),
    ("RayCluster", variable(HEAD_POD, "RAY_AUTH_MODE", "token"), "env RAY_AUTH_MODE", "spec.authOptions"),
    ("RayCluster", variable(WORKER_POD, "RAY_AUTH_MODE", "token"), "workerGroupSpecs[0]", "spec.authOptions"),
    ("RayCluster", put("127.0.0.1", *HEAD, "rayStartParams", "dashboard-host"), "dashboard-host", "0.0.0.0"),
    ("RayCluster", put({"a b": "c"}, *WORKER, "labels"), "workerGroupSpecs[0].labels", "no Kubernetes label"),
    ("RayCluster", put({"a": "_b_"}, *HEAD, "labels"), "headGroupSpec.labels", "no Kubernetes label"),
    ("RayCluster", put(60, *WORKER, "idleTimeoutSeconds"), "idleTimeoutSeconds", "autoscaler v2"),
    ("RayCluster", put(5, *WORKER, "priority"), "priority", "autoscaler v2"),
    (
        "RayCluster",
        both(put(5, *WORKER, "priority"), put("2.55.0", "spec", "rayVersion"), put({"version": "v2"}, "spec", "autoscalerOptions")),
        "priority",
        "2.56",
    ),
    (
        "RayCluster",
        put({"env": [{"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "x"}]}, "spec", "autoscalerOptions"),
        "autoscalerOptions.env",
        "KubeRay sets",
    ),
    ("RayCluster", put({"redisAddress": "redis:6379", "storage": {}}, "spec", "gcsFaultToleranceOptions"), "storage", "rocksdb"),
    (
        "RayCluster",
        both(
            put({"redisAddress": "redis:6379"}, "spec", "gcsFaultToleranceOptions"),
            put({"ray.io/ft-enabled": "true"}, "metadata", "annotations"),
        ),
        "ray.io/ft-enabled",
        "drop the annotation",
    ),
    # pods
    ("RayCluster", put("600Mi", *WORKER_LIMITS, "requests", "memory"), "requests.memory", "limit is 64Gi"),
    ("RayCluster", amount("memory", "a lot"), "limits.memory", "no Kubernetes quantity"),
    ("RayCluster", amount("memory", "500Gi"), "resources.memory", "ml.g7e.12xlarge can give"),
    ("RayCluster", amount("cpu", "48"), "resources.cpu", "can give 47.8"),
    ("RayCluster", amount("nvidia.com/gpu", "4"), "resources.nvidia.com/gpu", "can give 2"),
    ("RayCluster", amount("vpc.amazonaws.com/efa", "2"), "resources.vpc.amazonaws.com/efa", "can give 1"),
    (
        "RayCluster",
        put("60Gi", *WORKER_POD, "volumes", 0, "emptyDir", "sizeLimit"),
        "volumes[0].emptyDir.sizeLimit",
        "64 GiB of memory",
    ),
    ("RayCluster", put({"medium": "Memory"}, *WORKER_POD, "volumes", 0, "emptyDir"), "sizeLimit", "whole node"),
    ("RayCluster", variable(HEAD_POD, "FI_PROVIDER", "efa"), "env FI_PROVIDER", "vpc.amazonaws.com/efa"),
    ("RayCluster", variable(HEAD_POD, "FI_EFA_USE_HUGE_PAGE", "0"), "env FI_EFA_USE_HUGE_PAGE", "vpc.amazonaws.com/efa"),
    ("RayCluster", variable(WORKER_POD, "HF_TOKEN", "hf_abc"), "env HF_TOKEN", "secret"),
    ("RayCluster", put({"kueue.x-k8s.io/queue-name": "q"}, "metadata", "labels"), "template.metadata.labels", "each pod template"),
]


@pytest.mark.parametrize("kind", kubernetes_rules.KINDS)
def test_a_good_object_breaks_no_rule(kind: str) -> None:
    assert kubernetes_rules.problems(good(kind)) == []


@pytest.mark.parametrize(
    ("kind", "change", "field", "text"), BROKEN, ids=[f"{kind}-{field}-{index}" for index, (kind, _, field, _) in enumerate(BROKEN)]
)
def test_a_broken_object_is_refused_with_field_and_fix(kind: str, change: Change, field: str, text: str) -> None:
    check_refused(kind, change, field, text)


FROM_SECRET = {"secretKeyRef": {"name": "hf", "key": "token"}}
FIRST_AUTOSCALER = put({"version": "v1"}, "spec", "autoscalerOptions")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("RayCluster", put("0", *HEAD, "rayStartParams", "num-gpus")),
        ("RayCluster", both(put(0, *WORKER, "replicas"), put(0, *WORKER, "minReplicas"), put(0, *WORKER, "maxReplicas"))),
        ("RayCluster", put({"mode": "token"}, "spec", "authOptions")),
        ("RayCluster", put(THROUGH_KUBERNETES, "spec", "authOptions")),
        ("RayCluster", variable(WORKER_POD, "FI_PROVIDER", "efa")),
        ("RayCluster", variable(HEAD_POD, "FI_PROVIDER", "tcp")),
        ("RayCluster", variable(HEAD_POD, "RAY_AUTH_MODE", "disabled")),
        ("RayCluster", variable(HEAD_POD, "TOKENIZERS_PARALLELISM", "false")),
        ("RayCluster", put([{"name": "HF_TOKEN", "valueFrom": FROM_SECRET}], *WORKER_POD, "containers", 0, "env")),
        ("RayCluster", both(put(True, "spec", "enableInTreeAutoscaling"), FIRST_AUTOSCALER, put("Always", *HEAD_POD, "restartPolicy"))),
        ("RayCluster", put({"redisAddress": "redis:6379"}, "spec", "gcsFaultToleranceOptions")),
        ("RayCluster", both(put(True, "spec", "enableInTreeAutoscaling"), put({"version": "v2"}, "spec", "autoscalerOptions"),
                            put(60, *WORKER, "idleTimeoutSeconds"), put(5, *WORKER, "priority"))),
        ("RayCluster", put({"ray.io/zone": "a", "x": ""}, *WORKER, "labels")),
    ],
)  # fmt: skip
def test_what_is_allowed_is_not_refused(kind: str, change: Change) -> None:
    obj = good(kind)
    change(obj)
    assert [str(problem) for problem in kubernetes_rules.problems(obj)] == []


@pytest.mark.parametrize("amount_of_memory", ["1e999999999", "9" * 60 + "Gi"])
def test_an_absurd_quantity_takes_no_time(amount_of_memory: str) -> None:
    obj = good("RayCluster")
    amount("memory", amount_of_memory)(obj)
    assert "no Kubernetes quantity" in " ".join(str(problem) for problem in kubernetes_rules.problems(obj))


def test_all_problems_are_said_at_once() -> None:
    obj = good("RayCluster")
    both(put("A", "metadata", "name"), put(9, *WORKER, "replicas"), variable(HEAD_POD, "FI_PROVIDER", "efa"))(obj)
    assert len(kubernetes_rules.problems(obj)) == 3


def test_a_secret_is_not_repeated() -> None:
    obj = good("RayCluster")
    variable(WORKER_POD, "WANDB_API_KEY", "s3cr3t")(obj)
    assert "s3cr3t" not in "".join(str(problem) for problem in kubernetes_rules.problems(obj))


def test_other_kinds_are_left_alone() -> None:
    assert kubernetes_rules.problems({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "X"}}) == []
    assert kubernetes_rules.problems({"apiVersion": "example.com/v1", "kind": "RayCluster", "metadata": {"name": "X"}}) == []


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _paths(value: Any, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(found for key, item in children for found in _paths(item, (*prefix, key)))]


@given(st.data(), st.sampled_from(kubernetes_rules.KINDS), anything)
def test_no_shape_of_object_raises(data: st.DataObject, kind: str, value: Any) -> None:
    obj = good(kind)
    where = data.draw(st.sampled_from([found for found in _paths(obj) if found and found[0] in ("metadata", "spec")]))
    put(value, *where)(obj)
    for problem in kubernetes_rules.problems(obj):
        assert str(problem)
