"""The RayService and its serveConfigV2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
from ray.util.accelerators import accelerators

from config import capacity, ingress, kubernetes_rules, names, workload_rules
from config.environment import Environment
from config.instances import INSTANCES
from config.load import load
from config.manifest import quantity
from k8s import manifests, rayservice, serve_config
from tests.k8s.conftest import Objects

Edit = Callable[..., Environment]


def llm(env: Environment) -> dict[str, Any]:
    loaded = yaml.safe_load(serve_config.text(serve_config.serve_config(env)))
    (application,) = loaded["applications"]
    (config,) = application["args"]["llm_configs"]
    return config


def ray_service(env: Environment) -> dict[str, Any]:
    """The object as the chart makes it, without starting cdk8s."""
    spec = {
        "serveConfigV2": serve_config.text(serve_config.serve_config(env)),
        "upgradeStrategy": {"type": capacity.serving_upgrade(env).strategy},
        "rayClusterConfig": rayservice.cluster_spec(env),
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": env.serving.name}, "spec": spec}


def test_serve_config_follows_the_environment(edited: Edit) -> None:
    env = edited(
        ("lora.rank: 32", "lora.rank: 24"),
        ("tags:\n", "serving: {adapters_per_replica: 3, images_per_prompt: 20, max_model_len: 20000, replicas: 2}\ntags:\n"),
    )
    config = llm(env)
    assert config["model_loading_config"] == {"model_id": "visgym-qwen3vl", "model_source": "/shared/models/visgym_sft_mixed_qwen3vl"}
    engine = config["engine_kwargs"]
    assert engine["enable_lora"] is True
    assert engine["max_lora_rank"] == 32, "vLLM knows no rank of 24"
    assert engine["max_loras"] == config["lora_config"]["max_num_adapters_per_replica"] == 3
    assert engine["limit_mm_per_prompt"] == {"image": 20}
    assert engine["max_model_len"] == 20000
    assert config["deployment_config"]["num_replicas"] == 2
    assert config["accelerator_type"] == "RTX-PRO-6000"
    assert config["lora_config"]["dynamic_lora_loading_path"] == f"s3://{names.artifact_bucket(env)}/lora-adapters"


@pytest.mark.parametrize(("rank", "served"), [(1, 8), (8, 8), (9, 16), (64, 64), (65, 128), (129, 256), (300, 320), (512, 512)])
def test_rank_is_rounded_up_to_one_that_vllm_takes(edited: Edit, rank: int, served: int) -> None:
    assert serve_config.lora_rank(edited(("lora.rank: 32", f"lora.rank: {rank}"))) == served


def test_every_gpu_of_the_table_has_rays_name() -> None:
    known = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA_")}
    for instance in INSTANCES.values():
        if instance.gpus:
            name = serve_config.ACCELERATORS[instance.gpu]
            assert name in known
            card = instance.gpu + (" Server Edition" if "Blackwell" in instance.gpu else "-SXM" if "A100" in instance.gpu else "")
            assert NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(card) == name, "the node must offer what the replica asks for"


def test_service_is_what_a_reviewer_expects(environment: Environment, objects: Objects) -> None:
    (service,) = objects["rayservice"]
    spec = service["spec"]
    assert isinstance(spec["serveConfigV2"], str)
    assert spec["excludeHeadPodFromServeSvc"] is True
    cluster = spec["rayClusterConfig"]
    assert cluster["rayVersion"] == environment.version_set.serving.ray
    assert "upgradeStrategy" not in cluster
    assert "authOptions" not in cluster
    pods = [cluster["headGroupSpec"]["template"]["spec"], cluster["workerGroupSpecs"][0]["template"]["spec"]]
    for pod in pods:
        variables = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
        assert variables["AWS_REGION"] == environment.region
        assert pod["serviceAccountName"] == names.SERVING_SERVICE_ACCOUNT
        (shared,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "shared"]
        assert shared["readOnly"] is True, "an endpoint reads weights and writes nothing there"
        assert pod["containers"][0]["image"].endswith(environment.version_set.serving.tag)
    assert pods[1]["containers"][0]["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": 8000}
    assert service["metadata"]["annotations"]["ray.io/initializing-timeout"] == "60m"
    assert yaml.safe_load(spec["serveConfigV2"])["http_options"]["port"] == 8000


def test_upgrade_needs_every_gpu_twice(edited: Edit) -> None:
    assert capacity.serving_upgrade(edited()).strategy == "NewCluster"
    upgrade = capacity.serving_upgrade(edited(("tags:\n", "serving: {replicas: 4}\ntags:\n")))
    assert upgrade.strategy == "None"
    assert "8 GPUs" in upgrade.reason
    assert "there are 6" in upgrade.reason


def test_own_group_carries_head_and_workers_of_two_endpoints_at_once() -> None:
    env = load("production")
    assert capacity.serving_upgrade(env).strategy == "NewCluster"
    group = capacity.serving_group(env)
    assert group.role == "serving"
    spec = rayservice.cluster_spec(env)
    pods = [spec["headGroupSpec"]["template"]["spec"], spec["workerGroupSpecs"][0]["template"]["spec"]]
    assert {pod["nodeSelector"]["sagemaker.amazonaws.com/instance-group-name"] for pod in pods} == {"serving"}
    for resource, room in (("cpu", group.instance.pod_cpus()), ("memory", group.instance.pod_memory_gib() * 2**30), ("nvidia.com/gpu", 2)):
        asked = [quantity(pod["containers"][0]["resources"]["limits"].get(resource, "0")) or 0 for pod in pods]
        assert 2 * sum(asked) <= room * group.count, resource


@pytest.mark.parametrize(("replicas", "pods", "gpus"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (6, 3, 2)])
def test_replicas_fill_nodes(edited: Edit, replicas: int, pods: int, gpus: int) -> None:
    env = edited(("tags:\n", f"serving: {{replicas: {replicas}}}\ntags:\n"))
    (group,) = rayservice.cluster_spec(env)["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == pods
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
    assert kubernetes_rules.problems(ray_service(env)) == []
    assert [str(problem) for rule in workload_rules.RULES for problem in rule(env)] == []


GPU_TYPES = sorted(name for name, instance in INSTANCES.items() if instance.gpus)


@given(st.sampled_from(GPU_TYPES), st.integers(1, 8), st.integers(1, 16))
def test_all_pods_that_a_node_may_get_fit_on_it(instance_type: str, count: int, replicas: int) -> None:
    """As many worker pods as its GPUs take, and the heads of the old and the new endpoint, unless the environment is refused."""
    env = load("production")
    groups = tuple(
        group.model_copy(update={"instance_type": instance_type, "count": count}) if group.role == "serving" else group
        for group in env.instance_groups
    )
    env = env.model_copy(update={"instance_groups": groups, "serving": env.serving.model_copy(update={"replicas": replicas})})
    if list(workload_rules.serving_pods_fit(env)) or list(workload_rules.gpus_for_all(env)):
        return
    instance, size, upgrade = INSTANCES[instance_type], capacity.serving_worker(env), capacity.serving_upgrade(env)
    assert capacity.serving_gpus(env) >= replicas
    assert capacity.serving_gpus(env) * (2 if upgrade.strategy == "NewCluster" else 1) <= instance.gpus * count
    workers = instance.gpus // size.gpus
    heads = 2 if upgrade.strategy == "NewCluster" else 1
    if upgrade.strategy == "None":
        workers = min(workers, capacity.serving_pods(env))
    assert workers * size.cpus + heads * capacity.SERVE_HEAD_CPUS <= instance.pod_cpus()
    assert workers * size.memory_gib + heads * capacity.SERVE_HEAD_MEMORY_GIB <= instance.pod_memory_gib()


def with_authentication(env: Environment, how: str) -> Environment:
    return env.model_copy(update={"serving": env.serving.model_copy(update={"authentication": how})})


def test_the_front_is_told_where_the_aliases_are_and_comes_from_the_bucket() -> None:
    env = load("reference")
    (application,) = yaml.safe_load(serve_config.text(serve_config.serve_config(env)))["applications"]
    bucket = names.artifact_bucket(env)
    assert application["import_path"] == "serving.ingress:build"
    assert application["args"]["front"] == {
        "aliases": f"s3://{bucket}/lora-adapters/aliases", "authentication": "none", "application": "ray.serve.llm:build_openai_app"
    }  # fmt: skip
    assert names.alias_key("current") == "lora-adapters/aliases/current.json"
    assert application["runtime_env"] == {"working_dir": f"s3://{bucket}/{ingress.key()}"}


def test_serve_itself_takes_the_configuration() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="needs ray[serve]")
    for name in ("reference", "production", "local"):
        found = schema.ServeDeploySchema.model_validate(yaml.safe_load(serve_config.text(serve_config.serve_config(load(name)))))
        assert found.applications[0].import_path == ingress.IMPORT_PATH


def test_keys_come_from_a_secret_and_are_written_nowhere() -> None:
    env = with_authentication(load("reference"), "api-key")
    assert "authentication: api-key" in serve_config.text(serve_config.serve_config(env))
    wanted = {"name": "HYPERPOD_RL_API_KEYS", "valueFrom": {"secretKeyRef": {"name": "maze-vlm-api-keys", "key": "keys"}}}
    for pod in (rayservice.head_pod(env), rayservice.worker_pod(env)):
        assert wanted in pod.environment
    for pod in (rayservice.head_pod(load("reference")), rayservice.worker_pod(load("reference"))):
        assert wanted not in pod.environment


def callers(env: Environment, made: Objects) -> list[dict[str, Any]]:
    """Who may reach the endpoint's port."""
    (policy,) = [
        found for found in made["platform"] if found["kind"] == "NetworkPolicy" and found["metadata"]["namespace"] == env.serving.namespace
    ]
    rules = [rule for rule in policy["spec"]["ingress"] if {"port": names.SERVE_PORT, "protocol": "TCP"} in rule.get("ports", ())]
    return [source for rule in rules for source in rule["from"]]


def test_a_load_balancer_inside_the_vpc_only() -> None:
    env = with_authentication(load("reference"), "internal-load-balancer")
    made = manifests.charts(env)
    service, balancer = made["rayservice"]
    assert (service["kind"], balancer["kind"], balancer["metadata"]["name"]) == ("RayService", "Service", "maze-vlm-internal")
    assert balancer["metadata"]["annotations"]["service.beta.kubernetes.io/aws-load-balancer-scheme"] == "internal"
    assert balancer["spec"]["loadBalancerSourceRanges"] == ["10.192.0.0/16", "10.1.0.0/16"]
    assert balancer["spec"]["selector"]["app.kubernetes.io/instance"] == env.serving.name
    assert {"ipBlock": {"cidr": "10.192.0.0/16"}} in callers(env, made)
    plain = load("reference")
    assert not [source for source in callers(plain, manifests.charts(plain)) if "ipBlock" in source]
