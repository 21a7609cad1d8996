"""Pods of a Ray cluster against the nodes they ask for: what would stay Pending, be killed, or run on TCP in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from config import manifest
from config.instances import INSTANCES
from config.manifest import Json, at, items, mapping, quantity, text
from config.problems import Problem

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
QUEUE = "kueue.x-k8s.io/queue-name"
GIB = Decimal(1 << 30)
# Half of the pod's memory is what Linux gives a tmpfs by default; beyond it the processes of a training have too little left
# (rank 0 gathers the whole model in host memory: about 35 GB for 8.8 billion parameters in fp32).
SHARED_MEMORY_LIMIT = Decimal("0.5")
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY_ID|CREDENTIALS?)(_|$)", re.IGNORECASE)


def is_efa_variable(name: str, value: str = "efa") -> bool:
    """Whether an environment variable sends NCCL to EFA."""
    return (name == "FI_PROVIDER" and "efa" in value) or name.startswith(("FI_EFA_", "OFI_NCCL_"))


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret."""
    return bool(_SECRET.search(name))


def amount(group: Json, resource: str) -> Decimal:
    """What the containers of a group's pod ask of a resource together (limits stand in for requests)."""
    return sum((_asked(container, resource) for container in manifest.containers(group)), Decimal(0))


def problems(spec: Json, field: str, *, metadata: Json) -> list[Problem]:
    """Everything wrong with the pods of a RayClusterSpec. `metadata` is that of the object around it."""
    queue = text(at(metadata, "labels", QUEUE))
    found: list[Problem] = []
    for path, group in manifest.groups(spec, field):
        for rule in (_quantities, _requests_equal_limits, _memory_volumes, _fits_node, _efa_variables, _secrets):
            found += rule(group, f"{path}.template.spec")
        if queue and text(at(group, "template", "metadata", "labels", QUEUE)) != queue:
            found.append(Problem(f"{path}.template.metadata.labels", QUEUE, "Kueue wants the queue on the object and on each pod template",
                                 f"set it to {queue}"))  # fmt: skip
    return found


def _asked(container: Json, resource: str) -> Decimal:
    resources = mapping(container.get("resources"))
    asked = mapping(resources.get("requests")).get(resource, mapping(resources.get("limits")).get(resource))
    return quantity(asked) or Decimal(0)


def _quantities(group: Json, path: str) -> Iterator[Problem]:
    for index, container in enumerate(manifest.containers(group)):
        for kind in ("requests", "limits"):
            for name, value in mapping(at(container, "resources", kind)).items():
                number = quantity(value)
                if number is None or number < 0:
                    yield Problem(
                        f"{path}.containers[{index}].resources.{kind}.{name}",
                        str(value),
                        "this is no Kubernetes quantity",
                        "for example 8Gi",
                    )


def _requests_equal_limits(group: Json, path: str) -> Iterator[Problem]:
    """Extended resources cannot be overcommitted, and a Ray pod with less memory requested than allowed is the first to be evicted."""
    for index, container in enumerate(manifest.containers(group)):
        requests, limits = (mapping(at(container, "resources", kind)) for kind in ("requests", "limits"))
        for name in ("cpu", "memory", GPU, EFA):
            if name in requests and name in limits and quantity(requests[name]) != quantity(limits[name]):
                yield Problem(
                    f"{path}.containers[{index}].resources.requests.{name}",
                    str(requests[name]),
                    f"the limit is {limits[name]}",
                    "make the two equal",
                )


def _memory_volumes(group: Json, path: str) -> Iterator[Problem]:
    """A memory volume's pages are charged to the pod, so its size comes out of the pod's memory."""
    memory = amount(group, "memory")
    for index, volume in enumerate(items(manifest.pod_spec(group).get("volumes"))):
        if at(volume, "emptyDir", "medium") != "Memory":
            continue
        field = f"{path}.volumes[{index}].emptyDir.sizeLimit"
        size = quantity(at(volume, "emptyDir", "sizeLimit"))
        if size is None:
            yield Problem(field, "", "a memory volume without a size can take the whole node", "set a size below the pod's memory")
        elif memory and size > memory * SHARED_MEMORY_LIMIT:
            yield Problem(
                field,
                str(at(volume, "emptyDir", "sizeLimit")),
                f"its pages are charged to the pod's {memory / GIB:.0f} GiB of memory, of which at least half is for processes",
                f"set at most {int(memory * SHARED_MEMORY_LIMIT / GIB)}Gi",
            )


def _fits_node(group: Json, path: str) -> Iterator[Problem]:
    """A pod that asks for more than its node can allocate stays Pending for ever."""
    instance = INSTANCES.get(text(at(manifest.pod_spec(group), "nodeSelector", INSTANCE_TYPE)))
    if instance is None:
        return
    limits = {
        "cpu": Decimal(instance.allocatable_cpu_millicores()) / 1000,
        "memory": Decimal(int(instance.allocatable_memory_gib() * float(GIB))),
        GPU: Decimal(instance.gpus),
        EFA: Decimal(instance.efa_interfaces),
    }
    for name, limit in limits.items():
        asked = amount(group, name)
        if asked > limit:
            unit = GIB if name == "memory" else Decimal(1)
            shown = f"{limit / unit:.1f}{' GiB' if name == 'memory' else ''}"
            yield Problem(
                f"{path}.containers resources.{name}",
                f"{asked / unit:.1f}{' GiB' if name == 'memory' else ''}",
                f"{instance.name} can give {shown} to pods",
                "ask for less, or for a larger type",
            )


def _efa_variables(group: Json, path: str) -> Iterator[Problem]:
    """https://github.com/ray-project/kuberay/issues/2435: without the resource NCCL uses TCP and says nothing."""
    if amount(group, EFA):
        return
    for name, value in manifest.variables(group).items():
        if is_efa_variable(name, value):
            yield Problem(
                f"{path}.containers[0].env {name}",
                value,
                f"the pod asks for no {EFA}, so NCCL would use TCP in silence",
                f"ask for {EFA}, or drop the variable",
            )


def _secrets(group: Json, path: str) -> Iterator[Problem]:
    """Ray shows a process's environment in its dashboard, and manifests lie in files."""
    for name, value in manifest.variables(group).items():
        if value and is_secret(name):
            yield Problem(
                f"{path}.containers[0].env {name}",
                "(hidden)",
                "a secret does not belong into a manifest",
                "take it from a Secret with valueFrom",
            )
