"""Ray objects that break no rule, and changes of them: what the tests of the rules start from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import yaml

from config import kubernetes_rules

Object = dict[str, Any]
Change = Callable[[Object], object]


def pod(*, cpu: str = "4", memory: str = "64Gi", **extra: str) -> Object:
    amounts = {"cpu": cpu, "memory": memory} | extra
    container = {"name": "ray", "image": "ray:1", "env": [], "resources": {"requests": dict(amounts), "limits": dict(amounts)}}
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    return {"metadata": {"labels": {}}, "spec": {"containers": [container], "volumes": [volume], "nodeSelector": {}}}


def cluster_spec() -> Object:
    worker = pod(**{"nvidia.com/gpu": "2", "vpc.amazonaws.com/efa": "1"})
    worker["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": "ml.g7e.12xlarge"}
    return {
        "rayVersion": "2.57.0",
        "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"}, "template": pod()},
        "workerGroupSpecs": [
            {"groupName": "workers", "replicas": 3, "minReplicas": 3, "maxReplicas": 3, "rayStartParams": {}, "template": worker}
        ],
    }


def llm() -> Object:
    return {
        "model_loading_config": {"model_id": "maze", "model_source": "/shared/models/maze"},
        "lora_config": {"dynamic_lora_loading_path": "s3://bucket/adapters", "max_num_adapters_per_replica": 2},
        "engine_kwargs": {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32, "tensor_parallel_size": 1},
        "deployment_config": {"num_replicas": 2},
    }


def serve(config: Object | None = None) -> str:
    return yaml.safe_dump({"applications": [{"name": "llm", "args": {"llm_configs": [config or llm()]}}]})


def good(kind: str) -> Object:
    if kind == "RayCluster":
        spec = {"upgradeStrategy": {"type": "Recreate"}} | cluster_spec()
    elif kind == "RayService":
        spec = {"serveConfigV2": serve(), "upgradeStrategy": {"type": "None"}, "rayClusterConfig": cluster_spec()}
    else:
        spec = {"entrypoint": "true", "submissionMode": "HTTPMode", "shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 60,
                "backoffLimit": 2, "activeDeadlineSeconds": 3600, "rayClusterSpec": cluster_spec()}  # fmt: skip
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "skyrl-visgym", "namespace": "training"}, "spec": spec}


def path(*keys: str | int) -> Callable[[Object], Any]:
    def walk(obj: Object) -> Any:
        here: Any = obj
        for key in keys:
            here = here[key]
        return here

    return walk


def put(value: Any, *keys: str | int) -> Change:
    """A change that sets a value at a path."""

    def change(obj: Object) -> None:
        path(*keys[:-1])(obj)[keys[-1]] = value

    return change


def both(*changes: Change) -> Change:
    def change(obj: Object) -> None:
        for one in changes:
            one(obj)

    return change


HEAD, WORKER = ("spec", "headGroupSpec"), ("spec", "workerGroupSpecs", 0)
HEAD_POD, WORKER_POD = (*HEAD, "template", "spec"), (*WORKER, "template", "spec")
WORKER_LIMITS = (*WORKER_POD, "containers", 0, "resources")


def variable(where: tuple[str | int, ...], name: str, value: str) -> Change:
    return put([{"name": name, "value": value}], *where, "containers", 0, "env")


def amount(resource: str, value: str) -> Change:
    return both(*(put(value, *WORKER_LIMITS, kind, resource) for kind in ("requests", "limits")))


def served(**changes: Any) -> Change:
    """A change of the endpoint's model: `engine_kwargs={"max_loras": 1}` merges into that part."""
    config = llm()
    for part, values in changes.items():
        config[part] = {**config[part], **values} if isinstance(values, dict) else values
    return put(serve(config), "spec", "serveConfigV2")


def check_refused(kind: str, change: Change, field: str, text: str) -> None:
    """A good object with the change is refused for the field, in one sentence with a fix, and is not changed by the rules."""
    obj = good(kind)
    change(obj)
    before = copy.deepcopy(obj)
    found = kubernetes_rules.problems(obj)
    assert obj == before, "rules do not change what they look at"
    matching = [problem for problem in found if field in problem.field and text in str(problem)]
    assert matching, [str(problem) for problem in found]
    assert all(problem.fix for problem in found)
    assert all("\n" not in str(problem) for problem in found)
