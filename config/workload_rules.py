"""Rules about what runs on the nodes: GPUs that are enough for all, a model that fits them, pods that fit their nodes.

Each rule is a function that yields what is wrong with a whole environment, like those of config/rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import PurePosixPath

from config import base_models, capacity, engine_memory, names
from config.base_models import BaseModel
from config.compute import InstanceGroup
from config.environment import Environment
from config.instances import INSTANCES
from config.model import Scalar
from config.pod_rules import is_efa_variable, is_secret
from config.problems import Problem
from config.serve_rules import LORA_RANKS, server_rank

DEFAULT_MEMORY_SHARE = 0.8  # SkyRL's (skyrl 0.3.0)
_SHARE = "generator.inference_engine.gpu_memory_utilization"
# Others live there: the platform would put its quotas and policies on them, and a destroy would take them all with the namespace.
_RESERVED_NAMESPACES = {
    "default", names.KUBERAY_NAMESPACE, names.ENDPOINT_OPERATOR_NAMESPACE, names.OBSERVABILITY_NAMESPACE, "aws-hyperpod", "cert-manager",
    "external-dns", "jupyter-k8s-system", "jupyter-k8s-shared", "hyperpod-inference-system", "kueue-system", "amazon-cloudwatch",
    "amazon-guardduty",
}  # fmt: skip
# Set by the chart, by KubeRay or by Ray itself; a second value would win or lose by chance.
_RESERVED_VARIABLES = {
    "HYPERPOD_JMA_HOST", "RAY_ADDRESS", "RAY_IP", "FQ_RAY_IP", "RAY_PORT", "RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME",
    "RAY_enable_autoscaler_v2", "RAY_CLUSTER_NAME", "RAY_AUTH_MODE", "RAY_ENABLE_K8S_TOKEN_AUTH", "CUDA_VISIBLE_DEVICES",
}  # fmt: skip


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Mounted by the charts, or part of every image: under another volume they would be gone, or two volumes would want one place.
_TAKEN_FOLDERS = ("/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/lib", "/opt/fetch", "/tmp", "/home/ray", "/var/run")  # noqa: S108
# Only the folder itself is taken: what lies in it may be another volume's.
_ROOMY_FOLDERS = ("/home/ray",)


def _known(env: Environment) -> bool:
    """Whether the environment has the groups and types that these rules compute with (other rules say what is missing)."""
    one_each = len(env.groups("head")) == len(env.groups("workers")) == 1
    return one_each and all(group.figures is not None or group.instance_type in INSTANCES for group in env.instance_groups)


def gpus_for_all(env: Environment) -> Iterator[Problem]:
    """RayCluster and RayService together must not ask for more GPUs than there are; a group of 0 nodes is a pause, not a mistake."""
    if not _known(env):
        return
    own, need = env.groups("serving"), capacity.serving_gpus(env)
    if env.serving.share_workers:
        if own:
            yield Problem(
                "serving.share_workers",
                "true",
                f"there is a serving group ({own[0].name}) that would stand idle",
                "set false, or drop the group",
            )
        if env.workers.count and need > env.training_gpus:
            yield Problem(
                "serving.replicas",
                str(env.serving.replicas),
                f"the endpoint needs {need} GPUs and the workers have {env.training_gpus}",
                "fewer replicas, or more workers",
            )
    elif not own:
        have = env.training_gpus
        yield Problem(
            "serving.share_workers",
            "false",
            f"the RayCluster takes all {have} GPUs and the RayService needs {need} more",
            "add a group with `role: serving`, or set true (the RayCluster is then down while the endpoint is up)",
        )
    elif own[0].count and need > own[0].gpus:
        yield Problem(
            "serving.replicas",
            str(env.serving.replicas),
            f"the endpoint needs {need} GPUs and its group has {own[0].gpus}",
            "fewer replicas, or more nodes",
        )


def engine_fits_gpu(env: Environment) -> Iterator[Problem]:
    """The engine's share of a GPU holds the weights and the cache of one longest sequence, or vLLM ends at its start."""
    model = base_models.of(env)
    if model is None or not _known(env):
        return
    share = _number(env, _SHARE, DEFAULT_MEMORY_SHARE)
    sizes = (_number(env, f"generator.inference_engine.{axis}_parallel_size", 1) for axis in ("tensor", "pipeline"))
    shards = max(1, int(prod(sizes)))
    tokens = int(_number(env, "generator.inference_engine.engine_init_kwargs.max_model_len", 0))
    yield from _rollout_engine(env, model, share=share, shards=shards, tokens=tokens)
    yield from _server_engine(model, capacity.serving_group(env), tokens=env.serving.max_model_len)


def _rollout_engine(env: Environment, model: BaseModel, *, share: float, shards: int, tokens: int) -> Iterator[Problem]:
    instance, gpu = env.workers.instance, env.workers.instance.gpu_memory_gib
    if not gpu or not 0 < share <= 1:
        return
    if engine_memory.need_gib(model, tokens=tokens, shards=shards, overhead=0) <= share * gpu:
        return
    # What is promised must pass preflight too.
    whole = engine_memory.need_gib(model, tokens=tokens, shards=shards)
    fits = sorted({name.split(".")[1] for name, row in INSTANCES.items() if row.gpus and whole <= share * row.gpu_memory_gib})
    fix = f"use a type of {', '.join(fits)}" if fits else "shard the engine with tensor_parallel_size"
    together = env.training.overrides.get("trainer.placement.colocate_all") is not False
    if (wider := engine_memory.smallest_share(whole, gpu)) <= engine_memory.largest_share(gpu, colocated=together):
        fix += f", or set at least {wider:.2f} if the policy leaves room for it"
    elif fits:
        fix += ", or shard the engine with tensor_parallel_size"
    rule = (
        f"{model.name} with {tokens} tokens needs {whole:.1f} GiB ({engine_memory.OVERHEAD_GIB:g} of them vLLM's own, inferred),"
        f" {share:g} of a GPU of {instance.name} is {share * gpu:.1f}"
    )
    yield Problem(f"training.overrides {_SHARE}", f"{share:g}", rule, fix)


def _server_engine(model: BaseModel, group: InstanceGroup, *, tokens: int) -> Iterator[Problem]:
    of, gpu, share = group.instance_type, group.instance.gpu_memory_gib, capacity.SERVING_MEMORY_SHARE
    need = engine_memory.need_gib(model, tokens=tokens, shards=1, overhead=0)
    if not gpu or need <= share * gpu:
        return
    fits = sorted({name.split(".")[1] for name, row in INSTANCES.items() if need <= share * row.gpu_memory_gib})
    fix = f"use a type of {', '.join(fits)}" if fits else "shard the engine with tensor_parallel_size"
    rule = f"{model.name} with {tokens} tokens needs {need:.1f} GiB, {share:g} of a GPU of {of} is {share * gpu:.1f}"
    yield Problem("serving.max_model_len", str(tokens), rule, fix)


def adapters_fit_gpu(env: Environment) -> Iterator[Problem]:
    """vLLM sets memory aside for every adapter that it may hold, of the highest rank, before it takes the rest for its cache."""
    model = base_models.of(env)
    if model is None or not _known(env):
        return
    group, rank, asked = capacity.serving_group(env), server_rank(env), env.serving.adapters_per_replica
    have = capacity.SERVING_MEMORY_SHARE * group.instance.gpu_memory_gib
    room = have - model.engine_weights_gib - model.cache_gib(env.serving.max_model_len)
    each = 2 * model.adapter_parameters(rank) / base_models.GIB
    if 0 < room < asked * each:
        most = int(room / each)
        yield Problem(
            "serving.adapters_per_replica",
            str(asked),
            f"adapters of rank {rank} take {each:.2f} GiB each, and a GPU of {group.instance_type} has {room:.1f} GiB beside the model",
            f"set at most {most}" if most else "lower the rank or serving.max_model_len",
        )


def policy_fits_host(env: Environment) -> Iterator[Problem]:
    """Rank 0 gathers the whole model in host memory at each checkpoint, beside what the policy keeps there while the engine runs."""
    model = base_models.of(env)
    if model is None or not _known(env) or not env.workers.gpus:
        return
    size = capacity.worker(env)
    have = size.memory_gib - size.shared_memory_gib
    need = model.training_weights_gib * (1 + size.gpus / env.training_gpus)
    if have < need:
        yield Problem(
            "ray_cluster.worker_memory_gib",
            str(size.memory_gib),
            f"less shared memory it leaves {have} GiB for processes, and a checkpoint of {model.name} gathers {need:.0f} GiB",
            "raise it, lower shared_memory_gib, or use a type with more memory",
        )


def shared_memory_fits(env: Environment) -> Iterator[Problem]:
    """Shared memory is charged to the pod's memory: at least half of that stays for processes."""
    if not _known(env):
        return
    for what, size in (("head", capacity.head(env)), ("worker", capacity.worker(env))):
        if 2 * size.shared_memory_gib <= size.memory_gib:
            continue
        if env.ray_cluster.shared_memory_gib is None or size.memory_gib < 2:
            field, value, fix = f"{what}_memory_gib", size.memory_gib, "set at least 2"
        else:
            field, value, fix = "shared_memory_gib", size.shared_memory_gib, f"set at most {size.memory_gib // 2}"
        rule = f"shared memory is part of the {what} pod's {size.memory_gib} GiB, of which half is for processes"
        yield Problem(f"ray_cluster.{field}", str(value), rule, fix)


def serving_pods_fit(env: Environment) -> Iterator[Problem]:
    """Head and workers of the endpoint stand on one node of its group."""
    if not _known(env):
        return
    group, size = capacity.serving_group(env), capacity.serving_worker(env)
    instance = group.instance
    if not size.gpus:
        return
    shared_node = capacity.serving_head_group(env) is group
    cpus = size.cpus + (capacity.SERVE_HEAD_CPUS if shared_node else 0)
    memory = size.memory_gib + (capacity.SERVE_HEAD_MEMORY_GIB if shared_node else 0)
    if cpus > instance.pod_cpus(group.threads_per_core or 2) or memory > instance.pod_memory_gib():
        yield Problem(
            "instance_groups", group.instance_type, "the endpoint's head pod and a worker do not fit on one node", "use a larger type"
        )


def environment_variables(env: Environment) -> Iterator[Problem]:
    """Variables of the Ray pods: no secrets, nothing that the chart or KubeRay sets, EFA's only where there is EFA."""
    for name, value in env.ray_cluster.environment.items():
        field = f"ray_cluster.environment.{name}"
        if not _VARIABLE.fullmatch(name):
            yield Problem(field, value, "a variable's name has letters, digits and `_`, and no digit first", "rename it")
        if name in _RESERVED_VARIABLES:
            yield Problem(field, value, "the chart or KubeRay sets this variable", "leave it out")
        if is_secret(name):
            yield Problem(
                field, "(hidden)", "a secret does not belong into an environment file", "let the pods read it through Pod Identity"
            )
        if is_efa_variable(name, value) and _known(env) and not env.workers.instance.efa_interfaces:
            yield Problem(field, value, f"{env.workers.instance_type} has no EFA interface, so the pods ask for none", "leave it out")


def names_do_not_meet(env: Environment) -> Iterator[Problem]:
    """KubeRay names the Services of a cluster and of an endpoint after them: `<name>-head-svc` is one of the two only."""
    if (env.serving.namespace, env.serving.name) == (env.ray_cluster.namespace, env.ray_cluster.name):
        yield Problem(
            "serving.name",
            env.serving.name,
            f"the RayCluster beside it has this name, and KubeRay calls a Service of both {env.serving.name}-head-svc",
            "give the endpoint another name, or another namespace",
        )


def mounts_do_not_meet(env: Environment) -> Iterator[Problem]:
    """The file system has a folder of its own in every pod, and the model lies in it."""
    mount, model = PurePosixPath(env.storage.file_system.mount_path), PurePosixPath(env.training.base_model)
    for taken in _TAKEN_FOLDERS:
        if PurePosixPath(taken).is_relative_to(mount) or (mount.is_relative_to(taken) and taken not in _ROOMY_FOLDERS):
            yield Problem(
                "storage.file_system.mount_path",
                str(mount),
                f"pods have {taken} from elsewhere",
                "use one of its own, for example /shared",
            )
            return
    if not model.is_relative_to(mount) or model == mount:
        yield Problem(
            "training.base_model",
            str(model),
            f"pods see weights below the file system's folder {mount} only",
            f"for example {mount}/models/{model.name or 'model'}",
        )


def namespaces_are_ours(env: Environment) -> Iterator[Problem]:
    """The platform labels its namespaces and sets quotas in them: not where others live."""
    for field, name in (("ray_cluster", env.ray_cluster.namespace), ("serving", env.serving.namespace)):
        if name in _RESERVED_NAMESPACES or name.startswith("kube-"):
            yield Problem(
                f"{field}.namespace",
                name,
                "this namespace belongs to Kubernetes or an operator",
                "use one of its own, for example training",
            )
        if env.hyperpod.task_governance and not name.startswith("hyperpod-ns-"):
            yield Problem(
                f"{field}.namespace",
                name,
                "task governance admits workloads in its teams' namespaces only, named hyperpod-ns-<team>",
                "use the team's namespace, or set hyperpod.task_governance: false",
            )


def fault_tolerance_has_redis(env: Environment) -> Iterator[Problem]:
    """GCS fault tolerance keeps its state in a Redis of the user's."""
    cluster = env.ray_cluster
    port = int((cluster.redis_address or ":1").rsplit(":", 1)[1])
    if not 1 <= port <= 65535:
        yield Problem(
            "ray_cluster.redis_address", cluster.redis_address or "", f"there is no port {port}", "Redis listens on 6379 by default"
        )
    if cluster.gcs_fault_tolerance and not cluster.redis_address:
        yield Problem(
            "ray_cluster.redis_address", "", "gcs_fault_tolerance needs a Redis", "give its address, or set gcs_fault_tolerance: false"
        )
    if not cluster.gcs_fault_tolerance and (cluster.redis_address or cluster.redis_password_secret):
        yield Problem(
            "ray_cluster.redis_address", cluster.redis_address or "", "nothing reads it", "set gcs_fault_tolerance: true, or drop it"
        )


def endpoint_takes_what_training_makes(env: Environment) -> Iterator[Problem]:
    """An adapter's conversations, as long and with as many pictures as in training, must pass the endpoint's limits."""
    turns = int(_number(env, "generator.max_turns", 0))
    if turns > env.serving.images_per_prompt:
        yield Problem(
            "serving.images_per_prompt",
            str(env.serving.images_per_prompt),
            f"a conversation of {turns} turns carries {turns} pictures",
            f"set at least {turns}",
        )
    longest = int(_number(env, "generator.max_input_length", 0) + _number(env, "generator.sampling_params.max_generate_length", 0))
    if longest > env.serving.max_model_len:
        yield Problem(
            "serving.max_model_len", str(env.serving.max_model_len), f"training reaches {longest} tokens", f"set at least {longest}"
        )
    rank = int(_number(env, "trainer.policy.model.lora.rank", 0))
    if rank > LORA_RANKS[-1]:
        yield Problem(
            "training.overrides trainer.policy.model.lora.rank", str(rank), f"vLLM serves ranks up to {LORA_RANKS[-1]}", "lower it"
        )


def _number(env: Environment, key: str, default: float) -> float:
    value: Scalar | tuple[Scalar, ...] | None = env.training.overrides.get(key, default)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


RULES = (
    gpus_for_all,
    engine_fits_gpu,
    adapters_fit_gpu,
    policy_fits_host,
    shared_memory_fits,
    serving_pods_fit,
    environment_variables,
    names_do_not_meet,
    mounts_do_not_meet,
    namespaces_are_ours,
    fault_tolerance_has_redis,
    endpoint_takes_what_training_makes,
)
