"""What KubeRay's controllers refuse, and what would leave GPUs idle, said before anything is applied.

`problems` takes one object as a dict, so the charts, the launcher and the local cloud can call it; it needs neither cdk8s nor a
cluster. The controller's rules are those of KubeRay 1.7 (ray-operator/controllers/ray/utils/validation.go); each is one function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from config import manifest, pod_rules, ray_workload_rules
from config.manifest import Json, at, integer, items, mapping, text
from config.problems import Problem

KINDS = ("RayCluster", "RayService", "RayJob")
_LONGEST = {"RayCluster": 53, "RayService": 47, "RayJob": 47}
_SPEC = {"RayCluster": "spec", "RayService": "spec.rayClusterConfig", "RayJob": "spec.rayClusterSpec"}
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_AUTOSCALER_V2 = "RAY_enable_autoscaler_v2"
ClusterRule = Callable[[Json, str, str], Iterator[Problem]]


def problems(obj: dict[str, Any]) -> list[Problem]:
    """Everything wrong with a RayCluster, RayService or RayJob; an empty list for any other object."""
    kind = text(obj.get("kind"))
    if kind not in KINDS or not text(obj.get("apiVersion")).startswith("ray.io/"):
        return []
    found = list(_metadata(obj, kind))
    field = _SPEC[kind]
    spec = mapping(at(obj, *field.split(".")))
    if spec or kind != "RayJob":
        found += [problem for rule in CLUSTER_RULES for problem in rule(spec, field, kind)]
        found += pod_rules.problems(spec, field, metadata=mapping(obj.get("metadata")))
    found += _external_storage(obj, spec)
    if kind == "RayJob":
        found += ray_workload_rules.ray_job(mapping(obj.get("spec")))
    if kind == "RayService":
        found += ray_workload_rules.ray_service(obj)
    return found


def _metadata(obj: Json, kind: str) -> Iterator[Problem]:
    name, longest = text(at(obj, "metadata", "name")), _LONGEST[kind]
    if len(name) > longest:
        yield Problem("metadata.name", name, f"a {kind}'s name has at most {longest} characters, this one has {len(name)}", "shorten it")
    if not _NAME.match(name):
        yield Problem(
            "metadata.name", name, "it must be a DNS-1035 label: a-z, 0-9 and `-`, a letter first, no `-` last", "for example skyrl-visgym"
        )


def _external_storage(obj: Json, spec: Json) -> Iterator[Problem]:
    """The annotations from before gcsFaultToleranceOptions exclude it."""
    for name in ("ray.io/ft-enabled", "ray.io/external-storage-namespace"):
        value = text(at(obj, "metadata", "annotations", name))
        if value and spec.get("gcsFaultToleranceOptions") is not None:
            yield Problem(f"metadata.annotations {name}", value, "gcsFaultToleranceOptions is set too", "drop the annotation")


def has_containers(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Each group needs a container, the first of which runs Ray."""
    for path, group in manifest.groups(spec, field):
        if not manifest.containers(group):
            yield Problem(f"{path}.template.spec.containers", "", "a group needs at least one container", "add Ray's container")


def resources_in_one_place(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Ray's resources are said once: by the container's limits, by rayStartParams, or by the group's `resources`."""
    for path, group in manifest.groups(spec, field):
        parameters = manifest.start_parameters(group)
        given = [name for name in ("num-cpus", "num-gpus", "memory", "resources") if parameters.get(name)]
        if given and mapping(group.get("resources")):
            yield Problem(
                f"{path}.rayStartParams",
                ", ".join(given),
                "the group's `resources` are set too, and KubeRay takes one of the two",
                "drop one of them",
            )
        if parameters.get("num-gpus") not in (None, "0") and pod_rules.amount(group, pod_rules.GPU):
            yield Problem(
                f"{path}.rayStartParams.num-gpus",
                str(parameters["num-gpus"]),
                "the container's nvidia.com/gpu limit says it already",
                "drop num-gpus: KubeRay takes it from the limit",
            )
        if "labels" in parameters:
            yield Problem(
                f"{path}.rayStartParams.labels", str(parameters["labels"]), "KubeRay does not take labels here", "use the group's `labels`"
            )


def replicas_in_range(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """minReplicas <= replicas <= maxReplicas, and both bounds given where nothing scales."""
    scales = spec.get("enableInTreeAutoscaling") is True
    for path, group in manifest.worker_groups(spec, field):
        low, high, count = (integer(group.get(name)) for name in ("minReplicas", "maxReplicas", "replicas"))
        for name, value in (("minReplicas", low), ("maxReplicas", high), ("replicas", count)):
            if value is None and not scales and name != "replicas":
                yield Problem(
                    f"{path}.{name}", "", "without autoscaling KubeRay wants both minReplicas and maxReplicas", "set it to replicas"
                )
            if value is not None and value < 0:
                yield Problem(f"{path}.{name}", str(value), "it must not be negative", "set 0 or more")
        if low is not None and high is not None and low > high:
            yield Problem(f"{path}.minReplicas", str(low), f"it is above maxReplicas {high}", "set minReplicas at most maxReplicas")
        elif count is not None and ((low is not None and count < low) or (high is not None and count > high)):
            yield Problem(
                f"{path}.replicas", str(count), f"it lies outside minReplicas {low} and maxReplicas {high}", "set it between the two"
            )


def autoscaler(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Autoscaler v2 lets a pod end and makes a new one, so its pods must not restart in place."""
    head = mapping(spec.get("headGroupSpec"))
    scales, version = spec.get("enableInTreeAutoscaling") is True, at(spec, "autoscalerOptions", "version")
    variable = manifest.variables(head).get(_AUTOSCALER_V2)
    if variable in ("1", "true") and not scales:
        yield Problem(
            f"{field}.headGroupSpec {_AUTOSCALER_V2}", variable, "autoscaling is off", "set enableInTreeAutoscaling: true or drop it"
        )
    if scales and version and variable is not None:
        yield Problem(
            f"{field}.headGroupSpec {_AUTOSCALER_V2}",
            variable,
            "autoscalerOptions.version is set too",
            "keep autoscalerOptions.version only",
        )
    # Ray takes v2 by itself from 2.47 on; KubeRay's own rule looks at the version that is written down.
    second = version == "v2" or (
        version is None and (variable in ("1", "true") or (variable is None and manifest.at_least(spec.get("rayVersion"), "2.47")))
    )
    if scales and second:
        for path, group in manifest.groups(spec, field):
            policy = manifest.pod_spec(group).get("restartPolicy")
            if policy not in (None, "", "Never"):
                yield Problem(f"{path}.template.spec.restartPolicy", str(policy), "autoscaler v2 wants Never or nothing", "set Never")
    if "KUBERAY_GEN_AUTOSCALER_START_CMD" in [item.get("name") for item in items(at(spec, "autoscalerOptions", "env"))]:
        yield Problem(f"{field}.autoscalerOptions.env", "KUBERAY_GEN_AUTOSCALER_START_CMD", "KubeRay sets this variable", "leave it out")
    idle = integer(at(spec, "autoscalerOptions", "idleTimeoutSeconds"))
    if idle is not None and idle < 0:
        yield Problem(f"{field}.autoscalerOptions.idleTimeoutSeconds", str(idle), "it must not be negative", "for example 600")
    for path, group in manifest.worker_groups(spec, field):
        if scales and group.get("suspend") is True:
            yield Problem(f"{path}.suspend", "true", "a group cannot be suspended while the autoscaler is on", "turn one of the two off")


def scaled_groups(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """A group's own idle time and priority are the autoscaler v2's, said so in the object."""
    variable = manifest.variables(mapping(spec.get("headGroupSpec"))).get(_AUTOSCALER_V2)
    second = at(spec, "autoscalerOptions", "version") == "v2" or variable in ("1", "true")
    for path, group in manifest.worker_groups(spec, field):
        idle, priority = integer(group.get("idleTimeoutSeconds")), integer(group.get("priority"))
        if idle is not None and (idle < 0 or not second):
            yield Problem(
                f"{path}.idleTimeoutSeconds", str(idle), "it is for autoscaler v2 and not negative", "set autoscalerOptions.version: v2"
            )
        if priority and not second:
            yield Problem(f"{path}.priority", str(priority), "it is for autoscaler v2", "set autoscalerOptions.version: v2")
        if priority and not manifest.at_least(spec.get("rayVersion"), "2.56"):
            yield Problem(
                f"{path}.priority", str(priority), "it needs Ray 2.56 or later, said in rayVersion", "raise the version or leave it out"
            )


def group_labels(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Labels of a group follow the syntax of Kubernetes."""
    for path, group in manifest.groups(spec, field):
        for name, value in mapping(group.get("labels")).items():
            if not _LABEL.fullmatch(str(name)) or not _LABEL_VALUE.fullmatch(str(value)):
                yield Problem(f"{path}.labels.{name}", str(value), "this is no Kubernetes label", "use letters, digits, `-`, `_` and `.`")


def fault_tolerance(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """GCS fault tolerance is set by gcsFaultToleranceOptions alone."""
    head, options = mapping(spec.get("headGroupSpec")), spec.get("gcsFaultToleranceOptions")
    variables, parameters = manifest.variables(head), manifest.start_parameters(head)
    instead = f"use {field}.gcsFaultToleranceOptions"
    for name in ("RAY_REDIS_ADDRESS", "REDIS_USERNAME", *(["REDIS_PASSWORD"] if options is not None else [])):
        if name in variables:
            yield Problem(
                f"{field}.headGroupSpec {name}", variables[name] and "set", "KubeRay takes Redis from its own options only", instead
            )
    for name in ("redis-username", *(["redis-password"] if options is not None else [])):
        if parameters.get(name):
            yield Problem(f"{field}.headGroupSpec.rayStartParams.{name}", "set", "KubeRay takes Redis from its own options only", instead)
    if options is None:
        return
    backend = at(options, "backend") or "redis"
    if backend == "rocksdb":
        yield Problem(
            f"{field}.gcsFaultToleranceOptions.backend",
            "rocksdb",
            "it is behind KubeRay's gate GCSFaultToleranceEmbeddedStorage, which is off",
            "use redis",
        )
        return
    if at(options, "storage") is not None:
        yield Problem(f"{field}.gcsFaultToleranceOptions.storage", "set", "it is for the backend rocksdb", "leave it out")
    if not text(at(options, "redisAddress")):
        yield Problem(f"{field}.gcsFaultToleranceOptions.redisAddress", "", "the backend redis needs an address", "for example redis:6379")


def gates_are_off(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Alpha features that the operator refuses unless it was started with their gates."""
    for name, gate in (
        ("networkPolicy", "RayClusterNetworkPolicy"),
        ("tlsOptions", "RayClusterMTLS"),
        ("historyServerOptions", "RayClusterHistoryServer"),
    ):
        if spec.get(name) is not None:
            yield Problem(f"{field}.{name}", "set", f"it needs KubeRay's feature gate {gate}, which is off", "leave it out")


def upgrade_strategy(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Recreate or None, and only on a RayCluster of its own."""
    given = at(spec, "upgradeStrategy", "type")
    if given is not None and kind != "RayCluster":
        yield Problem(f"{field}.upgradeStrategy.type", str(given), f"a cluster that a {kind} makes has none", "leave it out")
    elif given not in (None, "Recreate", "None"):
        yield Problem(f"{field}.upgradeStrategy.type", str(given), "KubeRay knows Recreate and None", "use one of them")


def authentication_by_hand(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Ray's token authentication is turned on by authOptions alone: KubeRay itself cannot call a Ray that it knows no token of."""
    for path, group in manifest.groups(spec, field):
        value = manifest.variables(group).get("RAY_AUTH_MODE")
        if value and value != "disabled":
            instead = f"use {field}.authOptions" if kind == "RayCluster" else "leave it out: its network policy guards the ports"
            yield Problem(f"{path}.template.spec.containers[0].env RAY_AUTH_MODE", value, "KubeRay sets it by authOptions", instead)


def authentication(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """Ray's token authentication: versions, and not below a RayJob or a RayService."""
    options = spec.get("authOptions")
    if not isinstance(options, dict):
        return
    mode, through_kubernetes = at(options, "mode") or "none", at(options, "enableK8sTokenAuth") is True
    version = spec.get("rayVersion")
    if through_kubernetes and kind != "RayCluster":
        yield Problem(
            f"{field}.authOptions.enableK8sTokenAuth",
            "true",
            f"KubeRay has no Kubernetes token authentication for a {kind}",
            "leave it out",
        )
    elif mode == "token" and kind != "RayCluster":
        yield Problem(
            f"{field}.authOptions.mode",
            "token",
            f"nothing that calls a {kind} here carries a Ray token; its network policy guards the ports",
            "leave authOptions out",
        )
    elif through_kubernetes and mode != "token":
        yield Problem(
            f"{field}.authOptions.enableK8sTokenAuth", "true", f"it works with mode token, and the mode is {mode}", "set mode: token"
        )
    if mode == "token" and not manifest.at_least(version, "2.55" if through_kubernetes else "2.52"):
        yield Problem(
            f"{field}.rayVersion",
            text(version),
            f"token authentication needs Ray {'2.55' if through_kubernetes else '2.52'} or later, said here",
            "raise the version or leave authOptions out",
        )
    if through_kubernetes and text(at(options, "secretName")):
        yield Problem(
            f"{field}.authOptions.secretName", str(at(options, "secretName")), "enableK8sTokenAuth takes no Secret", "drop one of the two"
        )


def dashboard_is_reachable(spec: Json, field: str, kind: str) -> Iterator[Problem]:
    """The endpoint operator and KubeRay reach the dashboard over the pod network."""
    host = manifest.start_parameters(mapping(spec.get("headGroupSpec"))).get("dashboard-host")
    if host != "0.0.0.0":  # noqa: S104
        yield Problem(
            f"{field}.headGroupSpec.rayStartParams.dashboard-host",
            str(host or ""),
            "jobs and the dashboard come from outside the pod",
            'set "0.0.0.0"',
        )


CLUSTER_RULES: tuple[ClusterRule, ...] = (
    has_containers,
    resources_in_one_place,
    group_labels,
    replicas_in_range,
    autoscaler,
    scaled_groups,
    fault_tolerance,
    gates_are_off,
    upgrade_strategy,
    authentication,
    authentication_by_hand,
    dashboard_is_reachable,
)
