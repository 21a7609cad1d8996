"""What one instance of each type holds: the only place where GPUs, EFA interfaces, memory and pods per node are written.

Sources: EC2 instance type pages (vCPU, memory, GPUs, EFA), https://github.com/aws/sagemaker-hyperpod-cli/pull/390 (g7e),
https://github.com/awslabs/amazon-eks-ami `nodeadm/internal/kubelet` (reserved CPU and memory, pods per interface).
HyperPod gives a node one network interface, so pods per node = IPv4 addresses per interface - 1: inferred from two known
values (ml.g5.xlarge 14, ml.p5.48xlarge 49); the table of the HyperPod documentation was not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from types import MappingProxyType
from typing import Literal

# Total memory in MiB that nvidia-smi shows: less than the name says, most of all on cards with ECC in GDDR6.
_REPORTED_MIB = {
    "NVIDIA A10G": 23_028, "NVIDIA L4": 23_034, "NVIDIA L40S": 46_068, "NVIDIA RTX PRO 6000 Blackwell": 97_887, "NVIDIA A100": 40_960,
    "NVIDIA H100": 81_559, "NVIDIA H200": 143_771,
}  # fmt: skip

Certainty = Literal["documented", "published", "inferred", "given"]

# Pods that run on every HyperPod node before ours: device plugins, CNI, kube-proxy, health agent, collectors. CPU as
# requested on a live node that carries controllers too (field report of 2026-10-05); memory is an allowance (inferred).
DAEMON_CPU_MILLICORES = 1250
DAEMON_MEMORY_GIB = 2.0
# HyperPod's AMI and the hypervisor keep more than the plain EKS formula says (ml.m5.xlarge: 12959 of 16384 MiB were
# allocatable). 10 % and 1.3 GiB keep 512 GiB nodes below the 460 GiB that the field report allows (inferred).
HYPERVISOR_SHARE = 0.10
HYPERPOD_MEMORY_GIB = 1.3


@dataclass(frozen=True)
class Instance:
    """Capacity of one instance type. Memory in GiB, GPU memory in GB per GPU, pods = most pods that a HyperPod node takes."""

    name: str
    vcpus: int
    memory_gib: int
    gpus: int = 0
    gpu_memory_gb: int = 0
    gpu: str = ""
    efa_interfaces: int = 0
    max_pods: int = 14
    source: str = "EC2 instance type page"
    certainty: Certainty = "documented"

    @property
    def gpu_memory_gib(self) -> float:
        """Memory of one GPU as its driver reports it, in GiB; 93 % of the name's figure where that is not known."""
        return _REPORTED_MIB.get(self.gpu, self.gpu_memory_gb * 0.93 * 1024) / 1024

    def cpus(self, threads_per_core: int = 2) -> int:
        """Logical CPUs of the node; one thread a core halves them."""
        return self.vcpus if threads_per_core == 2 else max(1, self.vcpus // 2)

    def allocatable_cpu_millicores(self, threads_per_core: int = 2) -> int:
        """CPU left by kube-reserved: 6 % of core 1, 1 % of core 2, 0.5 % of cores 3-4, 0.25 % of the rest."""
        cpus = self.cpus(threads_per_core)
        reserved = 60.0 + (10 if cpus > 1 else 0) + 5 * max(0, min(cpus, 4) - 2) + 2.5 * max(0, cpus - 4)
        return cpus * 1000 - round(reserved)

    def allocatable_memory_gib(self) -> float:
        """Memory that pods can have together: an estimate on the safe side, to be checked against the live node."""
        reserved = (255 + 11 * self.max_pods + 100) / 1024
        return self.memory_gib * (1 - HYPERVISOR_SHARE) - HYPERPOD_MEMORY_GIB - reserved

    def pod_cpus(self, threads_per_core: int = 2) -> int:
        """Whole CPUs for the one Ray pod of a node, after the daemon pods."""
        return max(1, floor((self.allocatable_cpu_millicores(threads_per_core) - DAEMON_CPU_MILLICORES) / 1000))

    def pod_memory_gib(self) -> int:
        """Whole GiB for the one Ray pod of a node, after the daemon pods."""
        return max(1, floor(self.allocatable_memory_gib() - DAEMON_MEMORY_GIB))


def _family(
    prefix: str,
    rows: Mapping[str, tuple[int, int, int, int, int]],
    *,
    gpu: str = "",
    gpu_memory_gb: int = 0,
    source: str = "EC2 instance type page",
    certainty: Certainty = "documented",
) -> dict[str, Instance]:
    """Rows of one family: size -> (vCPU, memory GiB, GPUs, EFA interfaces, pods per node)."""
    return {
        f"ml.{prefix}.{size}": Instance(
            name=f"ml.{prefix}.{size}", vcpus=vcpus, memory_gib=memory, gpus=gpus, gpu=gpu if gpus else "",
            gpu_memory_gb=gpu_memory_gb if gpus else 0, efa_interfaces=efa, max_pods=pods, source=source, certainty=certainty,
        )
        for size, (vcpus, memory, gpus, efa, pods) in rows.items()
    }  # fmt: skip


_G7E_SOURCE = "https://github.com/aws/sagemaker-hyperpod-cli/pull/390; pods: safe floor"

INSTANCES: Mapping[str, Instance] = MappingProxyType(
    _family("g5", {
        "xlarge": (4, 16, 1, 0, 14), "2xlarge": (8, 32, 1, 0, 14), "4xlarge": (16, 64, 1, 0, 29), "8xlarge": (32, 128, 1, 1, 29),
        "12xlarge": (48, 192, 4, 1, 49), "16xlarge": (64, 256, 1, 1, 29), "24xlarge": (96, 384, 4, 1, 49),
        "48xlarge": (192, 768, 8, 1, 49),
    }, gpu="NVIDIA A10G", gpu_memory_gb=24)
    | _family("g6", {
        "xlarge": (4, 16, 1, 0, 14), "2xlarge": (8, 32, 1, 0, 14), "4xlarge": (16, 64, 1, 0, 29), "8xlarge": (32, 128, 1, 1, 29),
        "12xlarge": (48, 192, 4, 1, 29), "16xlarge": (64, 256, 1, 1, 49), "24xlarge": (96, 384, 4, 1, 49), "48xlarge": (192, 768, 8, 1, 49),
    }, gpu="NVIDIA L4", gpu_memory_gb=24)
    | _family("g6e", {
        "xlarge": (4, 32, 1, 0, 14), "2xlarge": (8, 64, 1, 0, 14), "4xlarge": (16, 128, 1, 0, 29), "8xlarge": (32, 256, 1, 1, 29),
        "12xlarge": (48, 384, 4, 1, 29), "16xlarge": (64, 512, 1, 1, 49), "24xlarge": (96, 768, 4, 2, 49),
        "48xlarge": (192, 1536, 8, 4, 49),
    }, gpu="NVIDIA L40S", gpu_memory_gb=48)
    | _family("g7e", {
        "2xlarge": (8, 64, 1, 0, 14), "4xlarge": (16, 128, 1, 0, 14), "8xlarge": (32, 256, 1, 1, 29),
        "12xlarge": (48, 512, 2, 1, 29), "24xlarge": (96, 1024, 4, 2, 29), "48xlarge": (192, 2048, 8, 4, 29),
    }, gpu="NVIDIA RTX PRO 6000 Blackwell", gpu_memory_gb=96, source=_G7E_SOURCE, certainty="published")
    | _family("p4d", {"24xlarge": (96, 1152, 8, 4, 49)}, gpu="NVIDIA A100", gpu_memory_gb=40)
    | _family("p5", {"48xlarge": (192, 2048, 8, 32, 49)}, gpu="NVIDIA H100", gpu_memory_gb=80)
    | _family("p5en", {"48xlarge": (192, 2048, 8, 16, 49)}, gpu="NVIDIA H200", gpu_memory_gb=141)
    | _family("m5", {
        "large": (2, 8, 0, 0, 9), "xlarge": (4, 16, 0, 0, 14), "2xlarge": (8, 32, 0, 0, 14), "4xlarge": (16, 64, 0, 0, 29),
        "8xlarge": (32, 128, 0, 0, 29), "12xlarge": (48, 192, 0, 0, 29), "16xlarge": (64, 256, 0, 0, 49), "24xlarge": (96, 384, 0, 0, 49),
    })
    | _family("r5d", {"16xlarge": (64, 512, 0, 0, 49)})
)  # fmt: skip
