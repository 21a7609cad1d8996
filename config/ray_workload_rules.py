"""What KubeRay's controllers refuse in a RayJob and a RayService beside their clusters (KubeRay 1.7, validation.go)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from config import pod_rules, serve_rules
from config.instances import INSTANCES
from config.manifest import Json, at, integer, items, mapping, pod_spec, text
from config.problems import Problem

_SERVICE_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
_DURATION = re.compile(r"([0-9]+(\.[0-9]+)?(ms|s|m|h))+|[0-9]+")


def ray_job(spec: Json) -> Iterator[Problem]:
    """What KubeRay refuses in the spec of a RayJob, its cluster apart."""
    mode, selector = spec.get("submissionMode") or "K8sJobMode", mapping(spec.get("clusterSelector"))
    backoff = integer(spec.get("backoffLimit"))
    shuts_down = spec.get("shutdownAfterJobFinishes") is True
    if not spec.get("rayClusterSpec") and not selector:
        yield Problem("spec.rayClusterSpec", "", "a RayJob needs a cluster of its own or a clusterSelector", "give one of the two")
    if selector and not text(selector.get("ray.io/cluster")):
        yield Problem("spec.clusterSelector", "", "it selects by the key ray.io/cluster", "set ray.io/cluster to a RayCluster's name")
    if selector and mode == "SidecarMode":
        yield Problem("spec.submissionMode", "SidecarMode", "it does not work with a clusterSelector", "use HTTPMode")
    if backoff and (selector or mode == "InteractiveMode"):
        yield Problem(
            "spec.backoffLimit",
            str(backoff),
            "each retry makes a new RayCluster, which a clusterSelector and InteractiveMode rule out",
            "set 0",
        )
    if backoff is not None and backoff < 0:
        yield Problem("spec.backoffLimit", str(backoff), "it must not be negative", "set 0 or more")
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        seconds = integer(spec.get(name))
        if seconds is not None and seconds <= 0:
            yield Problem(f"spec.{name}", str(seconds), "it must be positive", "leave it out for no limit")
    ttl = integer(spec.get("ttlSecondsAfterFinished")) or 0
    if ttl < 0:
        yield Problem("spec.ttlSecondsAfterFinished", str(ttl), "it must not be negative", "set 0 or more")
    if ttl > 0 and not shuts_down:
        yield Problem(
            "spec.ttlSecondsAfterFinished", str(ttl), "it counts only with shutdownAfterJobFinishes: true", "set that, or drop the TTL"
        )
    if spec.get("suspend") is True and (not shuts_down or selector):
        yield Problem("spec.suspend", "true", "only a RayJob with its own cluster and shutdownAfterJobFinishes can be suspended", "drop it")
    if spec.get("deletionStrategy") is not None:
        yield from _deletion(mapping(spec.get("deletionStrategy")), shuts_down=shuts_down)
    try:
        yaml.safe_load(text(spec.get("runtimeEnvYAML")))
    except (yaml.YAMLError, RecursionError) as error:
        yield Problem("spec.runtimeEnvYAML", "", f"this is not valid YAML ({str(error).splitlines()[0]})", "mend it")
    if mode == "SidecarMode":
        for name in ("submitterPodTemplate", "submitterConfig"):
            if spec.get(name) is not None:
                yield Problem(f"spec.{name}", "set", "SidecarMode has no submitter of its own", "leave it out")
        policy = at(spec, "rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy")
        if policy not in (None, "", "Never"):
            yield Problem(
                "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy",
                str(policy),
                "SidecarMode wants Never or nothing",
                "set Never",
            )


def _deletion(strategy: Json, *, shuts_down: bool) -> Iterator[Problem]:
    """Either rules, or both of the older onSuccess and onFailure."""
    field, rules = "spec.deletionStrategy", items(strategy.get("deletionRules"))
    older = {name: at(strategy, name, "policy") for name in ("onSuccess", "onFailure") if strategy.get(name) is not None}
    if rules and older:
        yield Problem(field, ", ".join(older), "deletionRules excludes onSuccess and onFailure", "keep deletionRules")
    if not rules and not (older.get("onSuccess") and older.get("onFailure")):
        yield Problem(field, "", "it needs deletionRules, or both onSuccess and onFailure with their policies", "give deletionRules")
    if shuts_down and (rules or "DeleteNone" in older.values()):
        yield Problem("spec.shutdownAfterJobFinishes", "true", "deletionRules and DeleteNone exclude it", "drop one of the two")


def _steps(options: Json) -> Iterator[Problem]:
    """Traffic moves in steps that are no larger than what the new cluster takes at once."""
    field = "spec.upgradeStrategy.clusterUpgradeOptions"
    step, interval = integer(options.get("stepSizePercent")), integer(options.get("intervalSeconds"))
    surge = integer(options.get("maxSurgePercent", 100))
    if not text(options.get("gatewayClassName")) or step is None or interval is None:
        yield Problem(field, "", "it needs gatewayClassName, stepSizePercent and intervalSeconds", "use NewCluster or None")
    elif surge is None or not 0 <= step <= surge <= 100 or interval <= 0:
        yield Problem(field, f"steps of {step} %", "0 <= stepSizePercent <= maxSurgePercent <= 100, and intervalSeconds above 0", "mend it")


def ray_service(obj: Json) -> Iterator[Problem]:
    """What KubeRay and Ray Serve LLM refuse in a RayService, its cluster apart."""
    spec = mapping(obj.get("spec"))
    if name := text(at(spec, "rayClusterConfig", "headGroupSpec", "headService", "metadata", "name")):
        yield Problem(
            "spec.rayClusterConfig.headGroupSpec.headService.metadata.name", name, "KubeRay names this service itself", "leave it out"
        )
    strategy = at(spec, "upgradeStrategy", "type")
    if strategy not in (None, *_SERVICE_UPGRADES):
        known = ", ".join(_SERVICE_UPGRADES)
        yield Problem("spec.upgradeStrategy.type", str(strategy), f"KubeRay knows {known}", "use one of them")
    if strategy == "NewClusterWithIncrementalUpgrade":
        if at(spec, "rayClusterConfig", "enableInTreeAutoscaling") is not True:
            yield Problem("spec.upgradeStrategy.type", str(strategy), "it needs Ray's autoscaler", "use NewCluster or None")
        yield from _steps(mapping(at(spec, "upgradeStrategy", "clusterUpgradeOptions")))
    delay = integer(spec.get("rayClusterDeletionDelaySeconds"))
    if delay is not None and delay < 0:
        yield Problem("spec.rayClusterDeletionDelaySeconds", str(delay), "it must not be negative", "the default is 60")
    timeout = at(obj, "metadata", "annotations", "ray.io/initializing-timeout")
    if timeout not in (None, "") and not (_DURATION.fullmatch(text(timeout)) and re.search("[1-9]", text(timeout))):
        yield Problem(
            "metadata.annotations ray.io/initializing-timeout", str(timeout), "it is a duration or a number of seconds", "for example 60m"
        )
    gpus = sum(
        (integer(group.get("replicas")) or 0) * int(pod_rules.amount(group, pod_rules.GPU))
        for group in items(at(spec, "rayClusterConfig", "workerGroupSpecs"))
    )
    yield from serve_rules.problems(spec.get("serveConfigV2"), gpus=gpus, accelerators=_accelerators(spec))


def _accelerators(spec: Json) -> set[str]:
    """Ray's names of the GPUs on the nodes that the worker groups ask for; empty where one of them is not known."""
    found = set()
    for group in items(at(spec, "rayClusterConfig", "workerGroupSpecs")):
        instance = INSTANCES.get(text(at(pod_spec(group), "nodeSelector", pod_rules.INSTANCE_TYPE)))
        if instance is None or instance.gpu not in serve_rules.ACCELERATORS:
            return set()
        found.add(serve_rules.ACCELERATORS[instance.gpu])
    return found
