"""What each Ray pod asks for, derived from the instance table: the one place where nodes become pod sizes.

One pod takes one node, so its requests are what the node can allocate less the daemon pods. `/dev/shm` is a memory volume:
the kernel charges its pages to the pod's memory limit (https://kubernetes.io/docs/concepts/storage/volumes/#emptydir), so it
is counted inside `memory_gib`, never beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from config.compute import InstanceGroup
from config.environment import Environment

GIB = 1 << 30
# Ray gives its object store 30 % of memory and at most 200 GB (ray/_private/ray_constants.py, 2.57.0). The rest of
# /dev/shm is for NCCL's and PyTorch's own segments.
OBJECT_STORE_SHARE, OBJECT_STORE_CAP_BYTES = 0.30, 200 * 10**9
SHARED_MEMORY_SHARE = 0.35
# Of a /dev/shm that the user made small, Ray takes this much; more and Ray falls back to files in /tmp.
OBJECT_STORE_OF_SHARED_MEMORY = 0.85
# Head of the endpoint: GCS, dashboard and Serve's controller only (https://github.com/ray-project/kuberay/issues/4287: a
# head with 1-2 GiB is killed, 8 GiB holds).
SERVE_HEAD_CPUS, SERVE_HEAD_MEMORY_GIB = 2, 8
# Share of a GPU that the endpoint's engine takes (vLLM's gpu_memory_utilization): it has the GPU for itself.
SERVING_MEMORY_SHARE = 0.9


@dataclass(frozen=True)
class PodSize:
    """Requests of one pod, equal to its limits. Memory in GiB and with `/dev/shm` inside it."""

    cpus: int
    memory_gib: int
    shared_memory_gib: int
    gpus: int = 0
    efa_interfaces: int = 0

    @property
    def object_store_bytes(self) -> int:
        """What Ray's object store may take of `/dev/shm`, in bytes."""
        share = floor(self.memory_gib * GIB * OBJECT_STORE_SHARE)
        return min(share, OBJECT_STORE_CAP_BYTES, floor(self.shared_memory_gib * GIB * OBJECT_STORE_OF_SHARED_MEMORY))


def shared_memory_gib(memory_gib: int) -> int:
    """Size of `/dev/shm` in a pod with this much memory, if the environment does not say."""
    return max(1, floor(memory_gib * SHARED_MEMORY_SHARE))


def head(env: Environment) -> PodSize:
    """The Ray head of the training cluster: the whole head node."""
    wanted, group = env.ray_cluster, env.head
    return _node(group, cpus=wanted.head_cpus, memory_gib=wanted.head_memory_gib, shared=wanted.shared_memory_gib)


def worker(env: Environment) -> PodSize:
    """One Ray worker of the training cluster: a whole node of the workers group, with its GPUs and EFA interfaces."""
    wanted, group = env.ray_cluster, env.workers
    size = _node(group, cpus=wanted.worker_cpus, memory_gib=wanted.worker_memory_gib, shared=wanted.shared_memory_gib)
    return PodSize(size.cpus, size.memory_gib, size.shared_memory_gib, group.instance.gpus, group.instance.efa_interfaces)


def _node(group: InstanceGroup, *, cpus: int | None, memory_gib: int | None, shared: int | None) -> PodSize:
    memory = memory_gib or group.instance.pod_memory_gib()
    return PodSize(cpus or group.instance.pod_cpus(group.threads_per_core or 2), memory, shared or shared_memory_gib(memory))


def serving_group(env: Environment) -> InstanceGroup:
    """The group that carries the endpoint's GPUs: its own one, or the workers while the training cluster is down."""
    own = env.groups("serving")
    return own[0] if own and not env.serving.share_workers else env.workers


def serving_head_group(env: Environment) -> InstanceGroup:
    """The group that carries the endpoint's head pod.

    With shared GPUs the training cluster is down, so its head node is free. With a group of its own the head pod sits beside
    a worker pod there: the training head fills the head node, and the image is on the serving node already.
    """
    return env.head if env.serving.share_workers else serving_group(env)


def serving_pods(env: Environment) -> int:
    """Worker pods of the endpoint: one a node, as many as the replicas (one GPU each) fill."""
    return ceil(env.serving.replicas / max(1, serving_group(env).instance.gpus))


def serving_head() -> PodSize:
    """The head pod of the endpoint."""
    return PodSize(SERVE_HEAD_CPUS, SERVE_HEAD_MEMORY_GIB, shared_memory_gib(SERVE_HEAD_MEMORY_GIB))


def serving_worker(env: Environment) -> PodSize:
    """One worker pod of the endpoint. No EFA: a replica is one GPU and speaks to no other node."""
    group = serving_group(env)
    cpus, memory = group.instance.pod_cpus(group.threads_per_core or 2), group.instance.pod_memory_gib()
    if serving_head_group(env) is group:
        # While NewCluster upgrades there are two endpoints, and both heads may come to stand on one node.
        heads = 2 if serving_upgrade(env).strategy == "NewCluster" else 1
        cpus, memory = max(1, cpus - heads * SERVE_HEAD_CPUS), max(1, memory - heads * SERVE_HEAD_MEMORY_GIB)
    # Weights are read once into page cache and copied to the GPU; a pod for one GPU of eight does not claim the whole node.
    gpus = _serving_pod_gpus(env)
    share = gpus / max(1, group.instance.gpus)
    memory = max(1, floor(memory * share))
    return PodSize(max(1, floor(cpus * share)), memory, shared_memory_gib(memory), gpus)


def serving_gpus(env: Environment) -> int:
    """GPUs that the endpoint takes in all."""
    return serving_pods(env) * _serving_pod_gpus(env)


def _serving_pod_gpus(env: Environment) -> int:
    return min(serving_group(env).instance.gpus, env.serving.replicas)


@dataclass(frozen=True)
class Upgrade:
    """How KubeRay replaces a RayService whose cluster changed, and why that way."""

    strategy: str
    reason: str


def serving_upgrade(env: Environment) -> Upgrade:
    """NewCluster builds a second cluster before it ends the first, so it needs every GPU of the endpoint twice."""
    have, need = serving_group(env).gpus, 2 * serving_gpus(env)
    if have >= need:
        return Upgrade("NewCluster", f"{have} GPUs hold the endpoint twice ({need}), so a new one starts before the old one ends")
    return Upgrade(
        "None", f"an upgrade beside the old endpoint needs {need} GPUs and there are {have}: run `serve down` and `serve up` instead"
    )


def sharing_notice(env: Environment) -> str | None:
    """What somebody who brings up the endpoint must know where it has no GPUs of its own, or None."""
    if not env.serving.share_workers:
        return None
    return (
        f"the endpoint {env.serving.name} and the RayCluster {env.ray_cluster.name} take turns with the GPUs of the group "
        f"{env.workers.name}: run `cluster down` before `serve up`, and `serve down` before `cluster up`"
    )
