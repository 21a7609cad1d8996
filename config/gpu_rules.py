"""GPUs are counted: what a RayCluster and a RayService ask for together must be there, or one of the two waits for ever.

`problems` takes manifests as dicts, as they are about to be applied: charts call it at synth, the launcher before it applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from config import manifest, pod_rules
from config.compute import InstanceGroup
from config.environment import Environment
from config.manifest import Json, at, integer, items, mapping, text
from config.problems import Problem

INSTANCE_GROUP = "sagemaker.amazonaws.com/instance-group-name"
_SPEC = {"RayCluster": ("spec",), "RayService": ("spec", "rayClusterConfig")}


@dataclass(frozen=True)
class Demand:
    """GPUs that one object asks for on the nodes of one instance group, and where it says so."""

    kind: str
    name: str
    field: str
    group: str
    gpus: int


def problems(objects: Iterable[Mapping[str, Any]], env: Environment) -> list[Problem]:
    """What RayClusters and RayServices ask for beyond the environment's GPUs; other kinds are left alone.

    With shared workers the two take turns, so each is counted alone, else both at once. A group of 0 nodes is a pause, not a mistake.
    """
    known = [obj for obj in objects if obj.get("kind") in _SPEC and text(obj.get("apiVersion")).startswith("ray.io/")]
    groups = {group.name: group for group in env.instance_groups if group.count}
    demands = [demand for obj in known for demand in _demands(obj)]
    found = list(_too_many(demands, groups, take_turns=env.serving.share_workers))
    for obj in known:
        if obj.get("kind") == "RayService":
            found += _upgrade(obj, [demand for demand in demands if demand.name == text(at(obj, "metadata", "name"))], groups)
    return found


def _demands(obj: Json) -> Iterator[Demand]:
    kind, name = text(obj.get("kind")), text(at(obj, "metadata", "name"))
    spec = mapping(at(obj, *_SPEC[kind]))
    scales = spec.get("enableInTreeAutoscaling") is True
    for index, group in enumerate(items(spec.get("workerGroupSpecs"))):
        count = integer(group.get("maxReplicas" if scales else "replicas")) or 0
        gpus = count * int(pod_rules.amount(group, pod_rules.GPU)) * (integer(group.get("numOfHosts")) or 1)
        node_group = text(at(manifest.pod_spec(group), "nodeSelector", INSTANCE_GROUP))
        if gpus > 0:
            yield Demand(kind, name, f"{'.'.join(_SPEC[kind])}.workerGroupSpecs[{index}].replicas", node_group, gpus)


def _too_many(demands: list[Demand], groups: Mapping[str, InstanceGroup], *, take_turns: bool) -> Iterator[Problem]:
    for name in dict.fromkeys(demand.group for demand in demands):
        if name not in groups:
            continue
        here = [demand for demand in demands if demand.group == name]
        have = groups[name].gpus
        sets = [[demand for demand in here if demand.kind == kind] for kind in _SPEC] if take_turns else [here]
        for together in sets:
            asked = sum(demand.gpus for demand in together)
            if asked > have:
                who = " and ".join(f"{demand.kind} {demand.name}" for demand in together)
                yield Problem(
                    together[-1].field,
                    f"{asked} GPUs",
                    f"{who} together ask for more than the {have} GPUs of group {name}"
                    if len(together) > 1
                    else f"{who} asks for more than the {have} GPUs of group {name}",
                    "fewer replicas, more nodes, or a group of its own for the endpoint",
                )


def _upgrade(obj: Json, demands: list[Demand], groups: Mapping[str, InstanceGroup]) -> Iterator[Problem]:
    strategy = at(obj, "spec", "upgradeStrategy", "type") or "NewCluster"  # KubeRay's default
    if strategy != "NewCluster":
        return
    for demand in demands:
        group = groups.get(demand.group)
        if group is not None and 2 * demand.gpus > group.gpus:
            yield Problem(
                "spec.upgradeStrategy.type",
                strategy,
                f"a second cluster beside the first needs {2 * demand.gpus} GPUs and group {group.name} has {group.gpus}",
                "set None, or double the group",
            )
