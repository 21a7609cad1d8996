"""What must never reach a cluster: as an environment, refused before a manifest is written, and as a manifest that somebody edited.

An environment goes through `python -m k8s` (exit code 2, nothing written). An edited RayCluster goes through what `cluster up` reads
before it applies, an edited RayService through what `serve up` reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import gpu_rules
from config.environment import Environment
from config.load import ENVIRONMENTS, load, parse
from config.problems import Problem, Refused
from k8s import __main__ as command
from k8s import manifests as writer
from serving import deploy
from tests.k8s.conftest import _charts
from training import cluster as launcher

Json = dict[str, Any]
REFERENCE, PRODUCTION = ((ENVIRONMENTS / f"{name}.yaml").read_text() for name in ("reference", "production"))


def edited(*changes: tuple[str, str], of: str = REFERENCE) -> str:
    for old, new in changes:
        assert old in of, old
        of = of.replace(old, new, 1)
    return of


def of_cluster(lines: str) -> tuple[str, str]:
    return ("  namespace: training\n", f"  namespace: training\n{lines}\n")


def serving(lines: str) -> tuple[str, str]:
    return ("tags:\n", f"serving:\n  {lines}\ntags:\n")


WORKERS = "ml.g7e.12xlarge"
ENVIRONMENTS_REFUSED = [
    pytest.param(edited(("name: skyrl-visgym", f"name: {'a' * 60}")), "ray_cluster.name", "1 to 53", id="a name of 60 characters"),
    pytest.param(edited(serving("model_id: 'visgym:1'")), "serving.model_id", "no `:`", id="a model id with a colon"),
    pytest.param(
        edited(of_cluster("  worker_memory_gib: 470")), "ray_cluster.worker_memory_gib", "at most 456", id="memory above allocatable"
    ),
    pytest.param(
        edited(of_cluster("  shared_memory_gib: 300")), "ray_cluster.shared_memory_gib", "at most 228", id="shared memory above half"
    ),
    pytest.param(
        edited((WORKERS, "ml.g7e.4xlarge"), ("count: 3", "count: 6"), of_cluster("  environment: {FI_PROVIDER: efa}")),
        "ray_cluster.environment.FI_PROVIDER", "no EFA interface", id="EFA variables without EFA",
    ),
    pytest.param(edited(serving("share_workers: false")), "serving.share_workers", "role: serving", id="both above the GPUs there are"),
    pytest.param(edited(serving("replicas: 7")), "serving.replicas", "the workers have 6", id="more replicas than GPUs"),
    pytest.param(edited((WORKERS, "ml.g5.12xlarge")), "gpu_memory_utilization", "use a type of", id="a GPU that is too small"),
    pytest.param(edited((WORKERS, "ml.m5.4xlarge")), "instance_type", "needs GPUs", id="a type without GPUs"),
    pytest.param(
        edited(serving("adapters_per_replica: 500")), "serving.adapters_per_replica", "set at most",
        id="more adapters a replica than the engine holds",
    ),
    # What follows from the rest of the environment has no key of its own: it cannot be set to what does not fit.
    pytest.param(edited(of_cluster("  min_replicas: 4")), "ray_cluster.min_replicas", "no such key", id="replicas outside min and max"),
    pytest.param(
        edited(of_cluster("  ray_start_params: {num-gpus: '2'}")), "ray_cluster.ray_start_params", "no such key", id="num-gpus twice"
    ),
    pytest.param(
        edited(of_cluster("  autoscaling: true\n  restart_policy: Always")), "ray_cluster.restart_policy", "no such key",
        id="autoscaler v2 with restartPolicy Always",
    ),
    pytest.param(
        edited(serving("authentication: token")), "serving.authentication", "'none', 'api-key' or 'internal-load-balancer'",
        id="token authentication of the endpoint",
    ),
    pytest.param(
        edited(of_cluster("  environment: {RAY_AUTH_MODE: token}")), "environment.RAY_AUTH_MODE", "leave it out",
        id="token authentication by a variable",
    ),
    pytest.param(
        edited(serving("adapter_prefix: /shared/adapters")), "serving.adapter_prefix", "no such key", id="an adapter prefix that is not S3"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "said"), ENVIRONMENTS_REFUSED)
def test_an_environment_is_refused_before_anything_is_written(
    text: str, field: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writer, "ROOT", tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    assert command.main(["--env", str(tmp_path / "mine.yaml")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert any(field in line and said in line for line in err.splitlines()), err
    assert not (tmp_path / "dist").exists()


def at(obj: Json, *path: str | int) -> Any:
    here: Any = obj
    for key in path:
        here = here[key]
    return here


def set_to(value: Any, *path: str | int) -> Callable[[Json], None]:
    def change(obj: Json) -> None:
        at(obj, *path[:-1])[path[-1]] = value

    return change


def several(*changes: Callable[[Json], None]) -> Callable[[Json], None]:
    def change(obj: Json) -> None:
        for one in changes:
            one(obj)

    return change


def llm(part: str, key: str, value: Any) -> Callable[[Json], None]:
    """A change inside serveConfigV2."""

    def change(obj: Json) -> None:
        config = yaml.safe_load(obj["spec"]["serveConfigV2"])
        config["applications"][0]["args"]["llm_configs"][0].setdefault(part, {})[key] = value
        obj["spec"]["serveConfigV2"] = yaml.safe_dump(config)

    return change


GROUP = ("spec", "workerGroupSpecs", 0)
HEAD_POD = ("spec", "headGroupSpec", "template", "spec")
CONTAINER = (*GROUP, "template", "spec", "containers", 0)


def ask(resource: str, amount: str | None) -> Callable[[Json], None]:
    def change(obj: Json) -> None:
        for kind in ("requests", "limits"):
            amounts = at(obj, *CONTAINER, "resources", kind)
            if amount is None:
                del amounts[resource]
            else:
                amounts[resource] = amount

    return change


CLUSTERS_REFUSED = [
    pytest.param(set_to(4, *GROUP, "replicas"), "workerGroupSpecs[0].replicas", "set it between", id="replicas above max"),
    pytest.param(set_to(2, *GROUP, "replicas"), "workerGroupSpecs[0].replicas", "set it between", id="replicas below min"),
    pytest.param(set_to("a" * 60, "metadata", "name"), "metadata.name", "shorten it", id="a name of 60 characters"),
    pytest.param(set_to("2", *GROUP, "rayStartParams", "num-gpus"), "rayStartParams.num-gpus", "drop num-gpus", id="num-gpus twice"),
    pytest.param(
        several(set_to(True, "spec", "enableInTreeAutoscaling"), set_to({"version": "v2"}, "spec", "autoscalerOptions")),
        "restartPolicy", "set Never", id="autoscaler v2 with restartPolicy Always",
    ),
    pytest.param(ask("memory", "500Gi"), "resources.memory", "ask for less", id="memory above allocatable"),
    pytest.param(
        set_to("400Gi", *GROUP, "template", "spec", "volumes", 1, "emptyDir", "sizeLimit"),
        "volumes[1].emptyDir.sizeLimit", "set at most 228Gi", id="shared memory above half of the pod",
    ),
    pytest.param(ask("vpc.amazonaws.com/efa", None), "env FI_PROVIDER", "drop the variable", id="EFA variables without EFA"),
    pytest.param(
        several(*(set_to(6, *GROUP, key) for key in ("replicas", "minReplicas", "maxReplicas"))),
        "workerGroupSpecs[0].replicas", "fewer replicas", id="more GPUs than there are",
    ),
]  # fmt: skip


def cluster_up(env: Environment, cluster: Json, root: Path, service: Json | None = None) -> list[Problem]:
    """Problems that `cluster up` finds in the files before it applies one."""
    for kind, obj in (("raycluster", cluster), ("rayservice", service)):
        if obj is not None:
            folder = root / "dist" / env.name / kind
            folder.mkdir(parents=True)
            (folder / "00.yaml").write_text(writer.dump(obj))
    try:
        launcher.manifests(env, env.name, root=root)
    except Refused as refused:
        return list(refused.problems)
    return []


@pytest.mark.parametrize(("change", "field", "fix"), CLUSTERS_REFUSED)
def test_an_edited_raycluster_is_refused_before_apply(
    change: Callable[[Json], None], field: str, fix: str, reference: Environment, tmp_path: Path
) -> None:
    cluster = copy.deepcopy(_charts("reference")["raycluster"][0])
    assert cluster_up(reference, cluster, tmp_path / "good") == []
    change(cluster)
    found = cluster_up(reference, cluster, tmp_path / "edited")
    assert any(field in problem.field and fix in problem.fix for problem in found), [str(problem) for problem in found]


SERVICE_SPEC = ("spec", "rayClusterConfig")
SERVICES_REFUSED = [
    pytest.param(set_to({"mode": "token"}, *SERVICE_SPEC, "authOptions"), "authOptions.mode", "leave", id="token authentication"),
    pytest.param(
        llm("lora_config", "max_num_adapters_per_replica", 9), "max_num_adapters_per_replica", "max_cpu_loras",
        id="more adapters a replica than the engine holds",
    ),
    pytest.param(llm("model_loading_config", "model_id", "visgym:1"), "model_id", "for example", id="a model id with a colon"),
    pytest.param(
        llm("lora_config", "dynamic_lora_loading_path", "/shared/adapters"), "dynamic_lora_loading_path", "s3://",
        id="an adapter prefix that is not S3",
    ),
    pytest.param(llm("engine_kwargs", "max_lora_rank", 16), "engine_kwargs.max_lora_rank", "set 32", id="a rank below the adapters'"),
    pytest.param(llm("engine_kwargs", "max_cpu_lora", 4), "engine_kwargs.max_cpu_lora", "max_cpu_loras", id="a misspelt argument"),
    pytest.param(llm("deployment_config", "num_replicas", 7), "serveConfigV2", "fewer replicas", id="more replicas than its workers' GPUs"),
    pytest.param(set_to({"type": "NewCluster"}, "spec", "upgradeStrategy"), "upgradeStrategy.type", "set None", id="no room to upgrade"),
    pytest.param(lambda obj: obj["spec"].pop("upgradeStrategy"), "upgradeStrategy.type", "set None", id="KubeRay's default upgrade"),
]  # fmt: skip


def serve_up(env: Environment, service: Json, root: Path) -> list[Problem]:
    """Problems that `serve up` finds in the files before it applies one."""
    folder = root / "dist" / env.name / "rayservice"
    folder.mkdir(parents=True)
    (folder / "00.yaml").write_text(writer.dump(service))
    try:
        deploy.manifests(env, env.name, root=root)
    except Refused as refused:
        return list(refused.problems)
    return []


@pytest.mark.parametrize(("change", "field", "fix"), SERVICES_REFUSED)
def test_an_edited_rayservice_is_refused_before_apply(change: Callable[[Json], None], field: str, fix: str, tmp_path: Path) -> None:
    production = load("production")
    service = copy.deepcopy(_charts("production")["rayservice"][0])
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] = {
        kind: {"cpu": "40", "memory": "400Gi", "nvidia.com/gpu": "2"} for kind in ("requests", "limits")
    }
    service["spec"]["upgradeStrategy"] = {"type": "None"}
    assert serve_up(production, service, tmp_path / "good") == []
    change(service)
    found = serve_up(production, service, tmp_path / "edited")
    assert any(field in problem.field and fix in problem.fix for problem in found), [str(problem) for problem in found]


def test_a_rayservice_on_the_nodes_of_a_raycluster_beside_it_is_refused(tmp_path: Path) -> None:
    production = load("production")
    cluster, service = (copy.deepcopy(_charts("production")[kind][0]) for kind in ("raycluster", "rayservice"))
    assert cluster_up(production, cluster, tmp_path / "good", service) == []
    group = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    group["nodeSelector"] = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"]
    (problem,) = cluster_up(production, cluster, tmp_path / "edited", service)
    assert problem.value == "7 GPUs"
    assert "RayCluster skyrl-visgym and RayService maze-vlm together ask for more than the 6 GPUs of group workers" in problem.rule


def test_shared_workers_take_turns_and_a_pause_is_no_mistake() -> None:
    reference = load("reference")
    objects = [_charts("reference")[kind][0] for kind in ("raycluster", "rayservice")]
    assert gpu_rules.problems(objects, reference) == []
    paused = parse(REFERENCE.replace("count: 3", "count: 0"))
    assert gpu_rules.problems(objects, paused) == []


def test_charts_that_break_a_rule_are_not_written(reference: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Problem("spec.x", "1", "it is wrong", "mend it")
    monkeypatch.setattr(gpu_rules, "problems", lambda objects, env: [refused])
    with pytest.raises(Refused, match=r"spec\.x = 1: it is wrong; mend it"):
        writer.write(reference, tmp_path)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
