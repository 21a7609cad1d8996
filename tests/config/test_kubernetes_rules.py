"""Each rule about RayCluster, RayService and RayJob: an example that breaks it, and the same object that does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from config import kubernetes_rules

Object = dict[str, Any]
Change = Callable[[Object], object]


def pod(*, cpu: str = "4", memory: str = "64Gi", **extra: str) -> Object:
    amounts = {"cpu": cpu, "memory": memory} | extra
    container = {"name": "ray", "image": "ray:1", "env": [], "resources": {"requests": dict(amounts), "limits": dict(amounts)}}
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    return {"metadata": {"labels": {}}, "spec": {"containers": [container], "volumes": [volume], "nodeSelector": {}}}


def cluster_spec() -> Object:
    worker = pod(**{"nvidia.com/gpu": "2", "vpc.amazonaws.com/efa": "1"})
    worker["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": "ml.g7e.12xlarge"}
    return {
        "rayVersion": "2.57.0",
        "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"}, "template": pod()},
        "workerGroupSpecs": [
            {"groupName": "workers", "replicas": 3, "minReplicas": 3, "maxReplicas": 3, "rayStartParams": {}, "template": worker}
        ],
    }


def llm() -> Object:
    return {
        "model_loading_config": {"model_id": "maze", "model_source": "/shared/models/maze"},
        "lora_config": {"dynamic_lora_loading_path": "s3://bucket/adapters", "max_num_adapters_per_replica": 2},
        "engine_kwargs": {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32, "tensor_parallel_size": 1},
        "deployment_config": {"num_replicas": 2},
    }


def serve(config: Object | None = None) -> str:
    return yaml.safe_dump({"applications": [{"name": "llm", "args": {"llm_configs": [config or llm()]}}]})


def good(kind: str) -> Object:
    if kind == "RayCluster":
        spec = {"upgradeStrategy": {"type": "Recreate"}} | cluster_spec()
    elif kind == "RayService":
        spec = {"serveConfigV2": serve(), "upgradeStrategy": {"type": "None"}, "rayClusterConfig": cluster_spec()}
    else:
        spec = {"entrypoint": "true", "submissionMode": "HTTPMode", "shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 60,
                "backoffLimit": 2, "activeDeadlineSeconds": 3600, "rayClusterSpec": cluster_spec()}  # fmt: skip
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "skyrl-visgym", "namespace": "training"}, "spec": spec}


def path(*keys: str | int) -> Callable[[Object], Any]:
    def walk(obj: Object) -> Any:
        here: Any = obj
        for key in keys:
            here = here[key]
        return here

    return walk


def put(value: Any, *keys: str | int) -> Change:
    """A change that sets a value at a path."""

    def change(obj: Object) -> None:
        path(*keys[:-1])(obj)[keys[-1]] = value

    return change


def both(*changes: Change) -> Change:
    def change(obj: Object) -> None:
        for one in changes:
            one(obj)

    return change


HEAD, WORKER = ("spec", "headGroupSpec"), ("spec", "workerGroupSpecs", 0)
HEAD_POD, WORKER_POD = (*HEAD, "template", "spec"), (*WORKER, "template", "spec")
WORKER_LIMITS = (*WORKER_POD, "containers", 0, "resources")


def variable(where: tuple[str | int, ...], name: str, value: str) -> Change:
    return put([{"name": name, "value": value}], *where, "containers", 0, "env")


def amount(resource: str, value: str) -> Change:
    return both(*(put(value, *WORKER_LIMITS, kind, resource) for kind in ("requests", "limits")))


def served(**changes: Any) -> Change:
    """A change of the endpoint's model: `engine_kwargs={"max_loras": 1}` merges into that part."""
    config = llm()
    for part, values in changes.items():
        config[part] = {**config[part], **values}
    return put(serve(config), "spec", "serveConfigV2")


STEPS = {"gatewayClassName": "nginx", "maxSurgePercent": 50, "stepSizePercent": 10, "intervalSeconds": 5}
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
    # RayService
    ("RayService", put({"metadata": {"name": "x"}}, "spec", "rayClusterConfig", "headGroupSpec", "headService"), "headService", "itself"),
    ("RayService", put({"type": "Recreate"}, "spec", "upgradeStrategy"), "spec.upgradeStrategy.type", "NewCluster"),
    ("RayService", put({"type": "NewClusterWithIncrementalUpgrade"}, "spec", "upgradeStrategy"), "upgradeStrategy", "autoscaler"),
    ("RayService", put(-1, "spec", "rayClusterDeletionDelaySeconds"), "rayClusterDeletionDelaySeconds", "negative"),
    ("RayService", put({"ray.io/initializing-timeout": "soon"}, "metadata", "annotations"), "initializing-timeout", "duration"),
    ("RayService", put({"ray.io/initializing-timeout": "0s"}, "metadata", "annotations"), "initializing-timeout", "duration"),
    (
        "RayService",
        both(
            put(True, "spec", "rayClusterConfig", "enableInTreeAutoscaling"),
            put(
                {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": STEPS | {"stepSizePercent": 90}},
                "spec",
                "upgradeStrategy",
            ),
        ),
        "clusterUpgradeOptions",
        "90 %",
    ),
    ("RayService", put({"applications": []}, "spec", "serveConfigV2"), "spec.serveConfigV2", "text of YAML"),
    ("RayService", put("a: [", "spec", "serveConfigV2"), "spec.serveConfigV2", "not valid YAML"),
    ("RayService", put("a: 1", "spec", "serveConfigV2"), "applications", "no application"),
    ("RayService", served(model_loading_config={"model_id": "maze:1"}), "model_id", "no colon"),
    ("RayService", served(lora_config={"dynamic_lora_loading_path": "/shared/adapters"}), "dynamic_lora_loading_path", "s3://"),
    ("RayService", served(lora_config={"max_num_adapters_per_replica": 3}), "max_num_adapters_per_replica", "the engine holds 2"),
    ("RayService", served(engine_kwargs={"enable_lora": False}), "enable_lora", "no adapter"),
    ("RayService", served(engine_kwargs={"max_lora_rank": 48}), "max_lora_rank", "64"),
    ("RayService", served(deployment_config={"num_replicas": 7}), "spec.serveConfigV2", "more than the 6 GPUs"),
    ("RayService", served(engine_kwargs={"tensor_parallel_size": 4}), "spec.serveConfigV2", "8 GPUs"),
    # RayJob
    ("RayJob", lambda o: o["spec"].pop("rayClusterSpec"), "spec.rayClusterSpec", "clusterSelector"),
    ("RayJob", put({"app": "x"}, "spec", "clusterSelector"), "spec.clusterSelector", "ray.io/cluster"),
    ("RayJob", put({"ray.io/cluster": "x"}, "spec", "clusterSelector"), "spec.backoffLimit", "new RayCluster"),
    ("RayJob", put("InteractiveMode", "spec", "submissionMode"), "spec.backoffLimit", "InteractiveMode"),
    ("RayJob", put(-1, "spec", "backoffLimit"), "spec.backoffLimit", "negative"),
    ("RayJob", put(0, "spec", "activeDeadlineSeconds"), "spec.activeDeadlineSeconds", "positive"),
    ("RayJob", put(0, "spec", "preRunningDeadlineSeconds"), "spec.preRunningDeadlineSeconds", "positive"),
    ("RayJob", put(-1, "spec", "ttlSecondsAfterFinished"), "spec.ttlSecondsAfterFinished", "negative"),
    ("RayJob", put(False, "spec", "shutdownAfterJobFinishes"), "spec.ttlSecondsAfterFinished", "shutdownAfterJobFinishes"),
    (
        "RayJob",
        both(put(False, "spec", "shutdownAfterJobFinishes"), put(0, "spec", "ttlSecondsAfterFinished"), put(True, "spec", "suspend")),
        "spec.suspend",
        "can be suspended",
    ),
    ("RayJob", put({"deletionRules": [{}]}, "spec", "deletionStrategy"), "shutdownAfterJobFinishes", "exclude"),
    ("RayJob", put({}, "spec", "deletionStrategy"), "spec.deletionStrategy", "needs deletionRules"),
    ("RayJob", put({"onSuccess": {"policy": "DeleteSelf"}}, "spec", "deletionStrategy"), "spec.deletionStrategy", "both onSuccess"),
    ("RayJob", put({"deletionRules": [{}], "onSuccess": {}}, "spec", "deletionStrategy"), "spec.deletionStrategy", "excludes"),
    ("RayJob", put("a: [", "spec", "runtimeEnvYAML"), "runtimeEnvYAML", "not valid YAML"),
    (
        "RayJob",
        both(put("SidecarMode", "spec", "submissionMode"), put({}, "spec", "submitterPodTemplate")),
        "spec.submitterPodTemplate",
        "no submitter",
    ),
    (
        "RayJob",
        both(
            put("SidecarMode", "spec", "submissionMode"),
            put("Always", "spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy"),
        ),
        "restartPolicy",
        "SidecarMode",
    ),
]


@pytest.mark.parametrize("kind", kubernetes_rules.KINDS)
def test_a_good_object_breaks_no_rule(kind: str) -> None:
    assert kubernetes_rules.problems(good(kind)) == []


@pytest.mark.parametrize(
    ("kind", "change", "field", "text"), BROKEN, ids=[f"{kind}-{field}-{index}" for index, (kind, _, field, _) in enumerate(BROKEN)]
)
def test_a_broken_object_is_refused_with_field_and_fix(kind: str, change: Change, field: str, text: str) -> None:
    obj = good(kind)
    change(obj)
    before = copy.deepcopy(obj)
    found = kubernetes_rules.problems(obj)
    assert obj == before, "rules do not change what they look at"
    matching = [problem for problem in found if field in problem.field and text in str(problem)]
    assert matching, [str(problem) for problem in found]
    assert all(problem.fix for problem in found)
    assert all("\n" not in str(problem) for problem in found)


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
        ("RayCluster", variable(HEAD_POD, "TOKENIZERS_PARALLELISM", "false")),
        ("RayCluster", put([{"name": "HF_TOKEN", "valueFrom": FROM_SECRET}], *WORKER_POD, "containers", 0, "env")),
        ("RayCluster", both(put(True, "spec", "enableInTreeAutoscaling"), FIRST_AUTOSCALER, put("Always", *HEAD_POD, "restartPolicy"))),
        ("RayCluster", put({"redisAddress": "redis:6379"}, "spec", "gcsFaultToleranceOptions")),
        ("RayService", put({"ray.io/initializing-timeout": "1h30m"}, "metadata", "annotations")),
        ("RayCluster", both(put(True, "spec", "enableInTreeAutoscaling"), put({"version": "v2"}, "spec", "autoscalerOptions"),
                            put(60, *WORKER, "idleTimeoutSeconds"), put(5, *WORKER, "priority"))),
        ("RayCluster", put({"ray.io/zone": "a", "x": ""}, *WORKER, "labels")),
        ("RayService", both(put(True, "spec", "rayClusterConfig", "enableInTreeAutoscaling"),
                            put({"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": STEPS}, "spec", "upgradeStrategy"))),
        ("RayService", put({"ray.io/initializing-timeout": "900"}, "metadata", "annotations")),
        ("RayService", served(lora_config={"max_num_adapters_per_replica": 4}, engine_kwargs={"max_cpu_loras": 4})),
        ("RayService", served(deployment_config={"num_replicas": 6})),
        ("RayJob", both(put({"ray.io/cluster": "x"}, "spec", "clusterSelector"), put(0, "spec", "backoffLimit"))),
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


@settings(deadline=None)
@given(st.data(), st.sampled_from(kubernetes_rules.KINDS), anything)
def test_no_shape_of_object_raises(data: st.DataObject, kind: str, value: Any) -> None:
    obj = good(kind)
    where = data.draw(st.sampled_from([found for found in _paths(obj) if found and found[0] in ("metadata", "spec")]))
    put(value, *where)(obj)
    for problem in kubernetes_rules.problems(obj):
        assert str(problem)
