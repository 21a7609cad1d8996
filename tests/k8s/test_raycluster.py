"""The RayCluster: what a reviewer looks for, and how it follows the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import capacity, kubernetes_rules, names, workload_rules
from config.environment import Environment
from config.instances import DAEMON_CPU_MILLICORES, DAEMON_MEMORY_GIB, INSTANCES
from config.load import load
from config.manifest import quantity
from k8s import raycluster
from tests.k8s.conftest import Objects
from training import run

Edit = Callable[..., Environment]


def ray_cluster(env: Environment) -> dict[str, Any]:
    """The object as the chart makes it, without starting cdk8s."""
    metadata = {"name": env.ray_cluster.name, "namespace": env.ray_cluster.namespace, "annotations": raycluster.remote_endpoint(env)}
    labels = raycluster.queue_label(env, env.ray_cluster.namespace)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata | {"labels": labels},
        "spec": raycluster.cluster_spec(env),
    }


def head(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["headGroupSpec"]["template"]["spec"]


def worker(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["workerGroupSpecs"][0]["template"]["spec"]


def environment_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in pod["containers"][0]["env"]}


def test_reference_is_what_a_reviewer_expects(reference: Environment) -> None:
    spec = raycluster.cluster_spec(reference)
    assert spec["rayVersion"] == "2.57.0"
    assert spec["enableInTreeAutoscaling"] is False
    start = spec["headGroupSpec"]["rayStartParams"]
    assert start["num-cpus"] == "0"
    assert start["dashboard-host"] == "0.0.0.0"
    group = spec["workerGroupSpecs"][0]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    assert head(spec)["nodeSelector"]["node.kubernetes.io/instance-type"] == "ml.r5d.16xlarge"
    assert worker(spec)["nodeSelector"]["node.kubernetes.io/instance-type"] == "ml.g7e.12xlarge"
    resources = worker(spec)["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["nvidia.com/gpu"] == "2"
    assert resources["limits"]["vpc.amazonaws.com/efa"] == "1"
    assert "nvidia.com/gpu" not in head(spec)["containers"][0]["resources"]["limits"]
    for pod in (head(spec), worker(spec)):
        container = pod["containers"][0]
        assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]
        assert {"name": "dshm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["image"] == names.image_uri(reference)
        assert environment_of(pod)["HYPERPOD_JMA_HOST"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
        assert pod["serviceAccountName"] == names.TRAINING_SERVICE_ACCOUNT
        assert pod["automountServiceAccountToken"] is False


def test_edits_reach_running_pods(objects: Objects) -> None:
    (cluster,) = objects["raycluster"]
    assert cluster["spec"]["upgradeStrategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("instance_type", "gpus", "efa", "cpus"),
    [
        ("ml.g7e.12xlarge", 2, 1, 46),
        ("ml.g7e.24xlarge", 4, 2, 94),
        ("ml.g6e.48xlarge", 8, 4, 190),
        ("ml.p5.48xlarge", 8, 32, 190),
    ],
)
def test_one_line_changes_everything(edited: Edit, instance_type: str, gpus: int, efa: int, cpus: int) -> None:
    env = edited(("ml.g7e.12xlarge", instance_type))
    assert [str(problem) for rule in workload_rules.RULES for problem in rule(env)] == []
    cluster = ray_cluster(env)
    assert kubernetes_rules.problems(cluster) == []
    spec, instance = cluster["spec"], INSTANCES[instance_type]
    pod = worker(spec)
    limits = pod["containers"][0]["resources"]["limits"]
    assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == instance_type
    assert limits["nvidia.com/gpu"] == str(gpus)
    assert limits["vpc.amazonaws.com/efa"] == str(efa)
    assert limits["cpu"] == str(cpus)
    memory, shared = quantity(limits["memory"]), quantity(pod["volumes"][1]["emptyDir"]["sizeLimit"])
    assert memory is not None
    assert shared is not None
    assert memory / 2**30 <= instance.allocatable_memory_gib()
    assert memory / 2**30 > 0.8 * instance.memory_gib, "a node's memory is not left lying"
    assert 0 < shared <= memory / 2
    assert int(spec["workerGroupSpecs"][0]["rayStartParams"]["object-store-memory"]) < shared
    assert spec["workerGroupSpecs"][0]["replicas"] == 3
    overrides = run.specify(env, run_id="table", code=run.Code(commit="0" * 40, dirty=False)).overrides
    assert overrides["generator.inference_engine.num_engines"] == 3 * gpus
    assert overrides["trainer.placement.policy_num_gpus_per_node"] == gpus
    assert overrides["trainer.placement.policy_num_nodes"] == 3


def test_pausing_the_workers_keeps_a_valid_cluster(edited: Edit) -> None:
    env = edited(("count: 3", "count: 0"))
    assert [str(problem) for rule in workload_rules.RULES for problem in rule(env)] == []
    cluster = ray_cluster(env)
    group = cluster["spec"]["workerGroupSpecs"][0]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (0, 0, 0)
    assert kubernetes_rules.problems(cluster) == []


def test_autoscaling_is_valid_when_turned_on(edited: Edit) -> None:
    cluster = ray_cluster(edited(("  namespace: training", "  namespace: training\n  autoscaling: true")))
    spec = cluster["spec"]
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert {head(spec)["restartPolicy"], worker(spec)["restartPolicy"]} == {"Never"}
    assert (spec["workerGroupSpecs"][0]["minReplicas"], spec["workerGroupSpecs"][0]["maxReplicas"]) == (0, 3)
    assert head(spec)["automountServiceAccountToken"] is True, "the autoscaler speaks to the API server"
    assert worker(spec)["automountServiceAccountToken"] is False
    assert kubernetes_rules.problems(cluster) == []


def test_efa_variables_go_with_the_resource(edited: Edit) -> None:
    with_efa = raycluster.cluster_spec(edited())
    assert environment_of(worker(with_efa))["FI_PROVIDER"] == "efa"
    assert not any(name.startswith("FI_") for name in environment_of(head(with_efa)))
    without = ray_cluster(edited(("ml.g7e.12xlarge", "ml.g7e.4xlarge"), ("count: 3", "count: 6")))
    assert not any(name.startswith("FI_") for name in environment_of(worker(without["spec"])))
    assert "vpc.amazonaws.com/efa" not in worker(without["spec"])["containers"][0]["resources"]["limits"]


def test_own_efa_variables_reach_the_workers_alone(edited: Edit) -> None:
    env = edited(("  namespace: training", "  namespace: training\n  environment: {FI_EFA_FORK_SAFE: '1', NCCL_DEBUG: INFO}"))
    spec = raycluster.cluster_spec(env)
    assert environment_of(worker(spec))["FI_EFA_FORK_SAFE"] == "1"
    assert "FI_EFA_FORK_SAFE" not in environment_of(head(spec))
    assert environment_of(head(spec))["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ("", {}),
        ("remote_access: {endpoint_operator: true}\n", {"enabled": "true", "access-strategy": "ray-access-strategy-private"}),
        (
            "remote_access: {domain: {name: ray.example.com, hosted_zone_id: Z0123456789}, strategy: public}\n",
            {"enabled": "true", "access-strategy": "ray-access-strategy-public"},
        ),
    ],
)
def test_remote_endpoint_is_switched_by_annotations(edited: Edit, access: str, expected: dict[str, str]) -> None:
    env = edited(("tags:\n", access + "tags:\n"))
    assert raycluster.remote_endpoint(env) == {f"access.sagemaker.amazonaws.com/{key}": value for key, value in expected.items()}


def test_task_governance_puts_the_queue_on_the_object_and_both_templates(edited: Edit) -> None:
    env = edited(
        ("  namespace: training", "  namespace: hyperpod-ns-vision"),
        ("tags:\n", "hyperpod: {task_governance: true}\nserving: {namespace: hyperpod-ns-vision}\ntags:\n"),
    )
    cluster = ray_cluster(env)
    spec = cluster["spec"]
    queue = {"kueue.x-k8s.io/queue-name": "hyperpod-ns-vision-localqueue"}
    labels = [cluster["metadata"]["labels"]]
    labels += [spec["headGroupSpec"]["template"]["metadata"]["labels"], spec["workerGroupSpecs"][0]["template"]["metadata"]["labels"]]
    assert all(queue.items() <= found.items() for found in labels)
    assert kubernetes_rules.problems(cluster) == []


def test_pods_tolerate_their_groups_taints_and_no_health_taint(edited: Edit) -> None:
    spec = raycluster.cluster_spec(edited())
    assert "tolerations" not in worker(spec)
    env = edited(
        ("    deep_health_checks: [InstanceStress]", "    taints: [{key: nvidia.com/gpu}, {key: team, value: rl, effect: NoExecute}]")
    )
    assert worker(raycluster.cluster_spec(env))["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "rl", "effect": "NoExecute"},
    ]
    assert "tolerations" not in head(raycluster.cluster_spec(env))


def test_hyperpods_health_taint_is_tolerated_where_that_is_wanted(edited: Edit) -> None:
    spec = raycluster.cluster_spec(edited(("  namespace: training", "  namespace: training\n  tolerate_unhealthy_nodes: true")))
    wanted = {
        "key": "sagemaker.amazonaws.com/node-health-status", "operator": "Equal", "value": "Unschedulable", "effect": "NoSchedule",
    }  # fmt: skip
    assert head(spec)["tolerations"] == worker(spec)["tolerations"] == [wanted]


def test_fault_tolerance_takes_its_password_from_a_secret(edited: Edit) -> None:
    extra = "\n  gcs_fault_tolerance: true\n  redis_address: redis.training:6379\n  redis_password_secret: redis"
    cluster = ray_cluster(edited(("  namespace: training", "  namespace: training" + extra)))
    options = cluster["spec"]["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == "redis.training:6379"
    assert options["redisPassword"] == {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}}
    assert kubernetes_rules.problems(cluster) == []


def test_image_is_pinned_by_digest_where_the_environment_says_so(edited: Edit) -> None:
    digest = "sha256:" + "ab" * 32
    spec = raycluster.cluster_spec(edited(("tags:\n", f"image: {{digest: '{digest}'}}\ntags:\n")))
    assert {head(spec)["containers"][0]["image"], worker(spec)["containers"][0]["image"]} == {
        f"111122223333.dkr.ecr.us-west-2.amazonaws.com/ray/skyrl-visgym@{digest}"
    }


GPU_TYPES = sorted(name for name, instance in INSTANCES.items() if instance.gpus)


@given(st.sampled_from(sorted(INSTANCES)), st.sampled_from(GPU_TYPES), st.integers(0, 64), st.sampled_from([None, 1, 2]))
def test_any_pod_fits_what_its_node_can_allocate(head_type: str, worker_type: str, count: int, threads: int | None) -> None:
    env = load("reference")
    groups = [
        group.model_copy(update={"instance_type": head_type, "threads_per_core": threads})
        if group.role == "head"
        else group.model_copy(update={"instance_type": worker_type, "count": count, "threads_per_core": threads})
        if group.role == "workers"
        else group
        for group in env.instance_groups
    ]
    env = env.model_copy(update={"instance_groups": tuple(groups)})
    spec = raycluster.cluster_spec(env)
    assert spec["workerGroupSpecs"][0]["replicas"] == count
    for pod, instance in ((head(spec), INSTANCES[head_type]), (worker(spec), INSTANCES[worker_type])):
        resources = pod["containers"][0]["resources"]
        assert resources["requests"] == resources["limits"]
        cpu, memory = quantity(resources["limits"]["cpu"]), quantity(resources["limits"]["memory"])
        assert cpu is not None
        assert memory is not None
        # One CPU and one GiB are the least a pod asks for; on a type so small that the daemons leave less, nothing could fit.
        room = instance.allocatable_cpu_millicores(threads or 2) - DAEMON_CPU_MILLICORES
        assert cpu * 1000 <= max(room, 1000)
        assert memory / 2**30 <= max(instance.allocatable_memory_gib() - DAEMON_MEMORY_GIB, 1)
        shared = quantity(pod["volumes"][1]["emptyDir"]["sizeLimit"])
        assert shared is not None
        assert shared <= memory
    assert quantity(worker(spec)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) == INSTANCES[worker_type].gpus
    assert capacity.worker(env).object_store_bytes <= capacity.worker(env).shared_memory_gib * 2**30
