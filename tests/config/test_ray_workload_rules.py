"""Each rule about a RayService and a RayJob beside their clusters: an example that breaks it, and the same object that does not."""

from __future__ import annotations

import pytest

from config import kubernetes_rules
from tests.config.ray_objects import Change, both, check_refused, good, put, served

STEPS = {"gatewayClassName": "nginx", "maxSurgePercent": 50, "stepSizePercent": 10, "intervalSeconds": 5}

# (kind, change, what the refused field contains, what the sentence contains)
BROKEN: list[tuple[str, Change, str, str]] = [
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
    ("RayService", served(engine_kwargs={"max_modle_len": 8}), "engine_kwargs.max_modle_len", "did you mean max_model_len"),
    ("RayService", served(accelerator_type="H100"), "accelerator_type", "nodes have RTX-PRO-6000"),
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


@pytest.mark.parametrize(
    ("kind", "change", "field", "text"), BROKEN, ids=[f"{kind}-{field}-{index}" for index, (kind, _, field, _) in enumerate(BROKEN)]
)
def test_a_broken_object_is_refused_with_field_and_fix(kind: str, change: Change, field: str, text: str) -> None:
    check_refused(kind, change, field, text)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("RayService", put({"ray.io/initializing-timeout": "1h30m"}, "metadata", "annotations")),
        ("RayService", both(put(True, "spec", "rayClusterConfig", "enableInTreeAutoscaling"),
                            put({"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": STEPS}, "spec", "upgradeStrategy"))),
        ("RayService", put({"ray.io/initializing-timeout": "900"}, "metadata", "annotations")),
        ("RayService", served(lora_config={"max_num_adapters_per_replica": 4}, engine_kwargs={"max_cpu_loras": 4})),
        ("RayService", served(deployment_config={"num_replicas": 6})),
        ("RayService", served(engine_kwargs={"enforce_eager": True, "max_num_seqs": 8}, accelerator_type="RTX-PRO-6000")),
        ("RayJob", both(put({"ray.io/cluster": "x"}, "spec", "clusterSelector"), put(0, "spec", "backoffLimit"))),
    ],
)  # fmt: skip
def test_what_is_allowed_is_not_refused(kind: str, change: Change) -> None:
    obj = good(kind)
    change(obj)
    assert [str(problem) for problem in kubernetes_rules.problems(obj)] == []
