"""`serve up | down | status` over a kubectl that answers from memory and a bucket in memory."""

from __future__ import annotations

import base64
import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import run
from config import ingress, names
from config.environment import Environment
from config.load import load
from config.problems import Failed, Refused, Unreachable
from k8s import rayservice, serve_config
from serving import aliases, deploy
from serving.store import Store
from tests.serving.api_server import ApiServer
from tests.serving.bucket import MemoryS3, memory_store
from tests.training.fakes import FakeKubectl
from tests.training.scripted import Time
from training import cluster as clusters
from training import kubeconfig
from training.kubernetes import Kubectl
from training.manifests import changes

GROUP = "sagemaker.amazonaws.com/instance-group-name"


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("HYPERPOD_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    env = load("reference")
    path = kubeconfig.path(env)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"extensions": kubeconfig._made_for()}))
    monkeypatch.setattr(kubeconfig, "refresh", lambda env: path)
    return env


@pytest.fixture
def server() -> ApiServer:
    """Three worker nodes with two GPUs each, nothing on them."""
    made = ApiServer()
    for number in range(3):
        ready = [{"type": "Ready", "status": "True"}]
        made.put("Node", f"n{number}", status={"conditions": ready, "allocatable": {"nvidia.com/gpu": "2"}})
    return made


def written(env: Environment, root: Path, **changes: Any) -> Path:
    """dist/ as `python -m k8s` would write it."""
    spec = {"serveConfigV2": serve_config.text(serve_config.serve_config(env)), "rayClusterConfig": rayservice.cluster_spec(env), **changes}
    value = {"apiVersion": "ray.io/v1", "kind": "RayService", "spec": spec}
    folder = root / "dist" / env.name / "rayservice"
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"name": env.serving.name, "namespace": env.serving.namespace}
    (folder / "00-rayservice.yaml").write_text(yaml.safe_dump({**value, "metadata": metadata}))
    return root


def service(*, status: str = "RUNNING", ready: bool = True, message: str = "", generation: int = 1) -> dict[str, Any]:
    app = {"status": status, "message": message, "serveDeploymentStatuses": {"LLMServer": {"status": "HEALTHY"}}}
    return {
        "kind": "RayService", "metadata": {"name": "maze-vlm", "generation": generation}, "spec": {},
        "status": {
            "observedGeneration": 1, "numServeEndpoints": int(ready), "activeServiceStatus": {"applicationStatuses": {"llm": app}},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }  # fmt: skip


def up(env: Environment, server: ApiServer, root: Path, store: Store, notes: list[str] | None = None, minutes: float = 1.0) -> deploy.State:
    found = deploy.manifests(env, "reference", root=written(env, root))
    kubectl = Kubectl(env, execute=FakeKubectl(server))
    return deploy.up(kubectl, found, store, timeout_seconds=minutes * 60, note=(notes if notes is not None else []).append, clock=Time())


def test_up_delivers_applies_and_waits(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    traceback = "Traceback (most recent call last):\n  File x\nRuntimeError: HYPERPOD_RL_API_KEYS holds no API key\n"
    server.looks = [service(status="DEPLOYING", ready=False), service(status="DEPLOY_FAILED", ready=False, message=traceback), service()]
    store, notes = memory_store(), []
    state = up(env, server, tmp_path, store, notes)
    assert state.ready
    assert state.sentence() == "RayService serving/maze-vlm is ready: application llm running, 1 pod(s) answer"
    assert store.get(ingress.key()) is not None, "Ray fetches the ingress from the bucket"
    assert server.applied == [str(tmp_path / "dist" / "reference" / "rayservice")]
    assert notes[0].startswith("delivered the ingress: s3://bucket/lora-adapters/code/ingress-")
    assert any(note.endswith("its pods do not exist yet") for note in notes)
    assert any("application llm: RuntimeError: HYPERPOD_RL_API_KEYS holds no API key" in note for note in notes)
    writes = list(store.client.writes)
    server.looks = []
    assert up(env, server, tmp_path, store).ready
    assert [key for _, key in store.client.writes[len(writes) :]] == [ingress.key()], "the second time only asks whether it is there"


def test_up_gives_up_naming_what_is_missing(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    server.put(
        "RayService", "maze-vlm", **{k: v for k, v in service(status="DEPLOYING", ready=False).items() if k not in ("kind", "metadata")}
    )
    pending = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/5 nodes: 2 Insufficient GPU"}]}
    server.after_apply = lambda: server.put("Pod", "maze-vlm-x-head", status=pending)
    with pytest.raises(Unreachable, match=r"not ready within 2 min.*pod maze-vlm-x-head: not scheduled, 0/5 nodes: 2 Insufficient GPU"):
        up(env, server, tmp_path, memory_store(), minutes=2)


def test_a_new_generation_is_waited_for(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    server.looks = [service(generation=2), service(status="DEPLOYING", ready=False), service()]
    assert up(env, server, tmp_path, memory_store()).generation_seen
    assert server.looks == [], "the status from before the edit was not taken for its result"


def test_an_edit_that_kuberay_never_acknowledges_is_not_waited_for_without_end(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    server.looks = [service(generation=2) for _ in range(100)]
    assert up(env, server, tmp_path, memory_store(), minutes=45).ready
    assert server.looks, "well before the time was over"


@pytest.mark.parametrize(
    ("reason", "status", "said"),
    [
        ("InitializingTimeout", "", "KubeRay has given it up (not ready within 60m)"),
        ("ValidationFailed", "", "KubeRay does not accept it (not ready within 60m)"),
        ("Initializing", "DEPLOY_FAILED", "Serve has given up application llm"),
    ],
)
def test_what_kuberay_or_serve_has_given_up_ends_the_wait(
    env: Environment, server: ApiServer, tmp_path: Path, reason: str, status: str, said: str
) -> None:
    """Neither tries again by itself, and the GPUs cost money for the rest of the hour."""
    live = service(ready=False, status=status or "DEPLOYING", message="NoCredentialsError: Unable to locate credentials")
    live["status"]["conditions"][0] |= {"reason": reason, "message": "not ready within 60m"}
    server.after_apply = lambda: server.objects.update({("RayService", env.serving.name): live})
    with pytest.raises(Failed) as gave_up:
        up(env, server, tmp_path, memory_store(), minutes=60)
    assert said in str(gave_up.value)
    assert ("NoCredentialsError" in str(gave_up.value)) is (status == "DEPLOY_FAILED")


def lived(env: Environment, strategy: str) -> dict[str, Any]:
    """A ready RayService with the cluster of today's manifests."""
    spec = {"serveConfigV2": serve_config.text(serve_config.serve_config(env)), "rayClusterConfig": rayservice.cluster_spec(env)}
    return {**service(), "spec": {**spec, "upgradeStrategy": {"type": strategy}}}


@pytest.mark.parametrize(
    ("strategy", "path", "value", "heeded"),
    [
        ("None", "rayVersion", "2.0.0", False),
        ("NewCluster", "rayVersion", "2.0.0", True),
        ("None", "workerGroupSpecs.0.replicas", 9, False),
        ("NewCluster", "workerGroupSpecs.0.replicas", 9, False),
        ("NewCluster", "headGroupSpec.template.spec.tolerations", [{"key": "x", "operator": "Exists"}], False),
    ],
)
def test_a_change_that_kuberay_passes_over_is_refused(
    env: Environment, server: ApiServer, tmp_path: Path, strategy: str, path: str, value: object, heeded: bool
) -> None:
    """Else the command would tell of a ready endpoint while the old one answers, or wait an hour for pods that nobody makes."""
    live = lived(env, strategy)
    *parents, last = path.split(".")
    at: Any = json.loads(json.dumps(live["spec"]["rayClusterConfig"]))
    live["spec"]["rayClusterConfig"] = at
    for parent in parents:
        at = at[int(parent) if parent.isdigit() else parent]
    at[last] = value
    server.objects[("RayService", env.serving.name)] = live
    found = deploy.manifests(env, "reference", root=written(env, tmp_path, upgradeStrategy={"type": strategy}))
    if path.endswith("tolerations"):
        # The environment's head carries none; one that it has and the live one has not is what somebody would add.
        found.ray["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["tolerations"] = [{"key": "y", "operator": "Exists"}]
    kubectl = Kubectl(env, execute=FakeKubectl(server))
    if heeded:
        deploy.check(kubectl, found)
        return
    with pytest.raises(Refused) as refused:
        deploy.check(kubectl, found)
    [problem] = refused.value.problems
    assert last in str(problem)
    assert "serve down" in str(problem)


def test_a_change_of_serves_own_configuration_is_applied_in_place(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    live = lived(env, "None")
    live["spec"]["serveConfigV2"] = "applications: []\n"
    server.objects[("RayService", env.serving.name)] = live
    assert up(env, server, tmp_path, memory_store()).ready


def test_one_that_kuberay_has_given_up_must_go_first(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    live = service(ready=False)
    live["status"]["conditions"][0] |= {"reason": "InitializingTimeout", "message": "not ready within 60m"}
    server.objects[("RayService", env.serving.name)] = live
    with pytest.raises(Refused, match="KubeRay has given it up and looks at no change of it"):
        up(env, server, tmp_path, memory_store())
    assert server.applied == []


def test_shared_gpus_need_the_raycluster_down(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    server.put("RayCluster", "skyrl-visgym", spec={}, status={})
    store = memory_store()
    with pytest.raises(Refused) as refused:
        up(env, server, tmp_path, store)
    assert "run `cluster down` before `serve up`" in str(refused.value)
    assert (server.applied, store.client.writes) == ([], [])
    del server.objects[("RayCluster", "skyrl-visgym")]
    server.put("Pod", "skyrl-visgym-worker", status={})
    with pytest.raises(Refused, match="is going away"):
        up(env, server, tmp_path, store)


def test_everything_that_is_missing_is_said_at_once(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    keyed = env.model_copy(update={"serving": env.serving.model_copy(update={"authentication": "api-key"})})
    server.objects.clear()
    server.put("RayCluster", "skyrl-visgym", spec={}, status={})
    with pytest.raises(Refused) as refused:
        up(keyed, server, tmp_path, memory_store())
    said = [str(problem) for problem in refused.value.problems]
    assert len(said) == 3
    assert "instance group workers = 0 GPUs: the endpoint needs 1 GPU(s), and the group has 0 ready node(s) with 0" in said[1]
    assert "kubectl -n serving create secret generic maze-vlm-api-keys --from-file=keys=FILE" in said[2]
    server.forbidden = {"Secret", "Node"}
    del server.objects[("RayCluster", "skyrl-visgym")]
    server.looks = [service()]
    assert up(keyed, server, tmp_path, memory_store()).ready, "who may not look is not held up"
    server.forbidden = {"Node"}
    server.put("Secret", "maze-vlm-api-keys", data={"keys": "aw=="})
    assert up(keyed, server, tmp_path, memory_store()).ready


@pytest.mark.parametrize(("file", "said"), [(b"key-1\r\n", ""), (b"alice: key-1\n", "line 1 of it holds blanks"), (b"\n", "no API key")])
def test_keys_that_the_endpoint_would_not_start_with_are_refused_before(
    env: Environment, server: ApiServer, tmp_path: Path, file: bytes, said: str
) -> None:
    env = env.model_copy(update={"serving": env.serving.model_copy(update={"authentication": "api-key"})})
    server.put("Secret", names.api_keys_secret(env), data={names.API_KEYS_ENTRY: base64.b64encode(file).decode()})
    found, kubectl = deploy.manifests(env, "reference", root=written(env, tmp_path)), Kubectl(env, execute=FakeKubectl(server))
    if not said:
        deploy.check(kubectl, found)
        return
    with pytest.raises(Refused) as refused:
        deploy.check(kubectl, found)
    assert said in str(refused.value)
    assert "key-1" not in str(refused.value)


def test_nodes_that_are_not_ready_do_not_count(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    for number in range(3):
        server.objects[("Node", f"n{number}")]["status"]["conditions"][0]["status"] = "False"
    with pytest.raises(Refused, match=r"0 ready node"):
        up(env, server, tmp_path, memory_store())


def test_manifests_of_something_else_are_refused(env: Environment, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there are no manifests of the RayService; write them: `python -m k8s --env reference`"):
        deploy.manifests(env, "reference", root=tmp_path)
    old = serve_config.text(serve_config.serve_config(env)).replace(ingress.key(), "lora-adapters/code/ingress-0.zip")
    with pytest.raises(Refused, match="they do not start this version's ingress"):
        deploy.manifests(env, "reference", root=written(env, tmp_path, serveConfigV2=old))
    other = env.model_copy(update={"serving": env.serving.model_copy(update={"name": "other"})})
    written(env, tmp_path)
    with pytest.raises(Refused, match="the environment's RayService is serving/other, these files hold serving/maze-vlm"):
        deploy.manifests(other, "reference", root=tmp_path)


def test_down_waits_for_the_pods_and_is_content_with_nothing(env: Environment, server: ApiServer) -> None:
    server.looks = [None, None, None]
    server.put("Pod", "maze-vlm-x-head", status={})
    kubectl = Kubectl(env, execute=FakeKubectl(server))
    notes: list[str] = []

    class Leaving(Time):
        def _sleep(self, seconds: float) -> None:
            super()._sleep(seconds)
            server.objects.pop(("Pod", "maze-vlm-x-head"), None)

    state = deploy.down(kubectl, timeout_seconds=60, note=notes.append, clock=Leaving())
    assert not state.exists
    assert server.deleted == [("RayService", "maze-vlm"), ("Service", "maze-vlm-internal")]
    assert notes == ["RayService serving/maze-vlm does not exist; pod maze-vlm-x-head is still there"]
    server.put("Pod", "maze-vlm-x-head", status={})
    with pytest.raises(Unreachable, match="not gone"):
        deploy.down(kubectl, timeout_seconds=60, clock=Time())


def test_changes_are_shown_before_they_are_made(env: Environment, server: ApiServer, tmp_path: Path) -> None:
    found = deploy.manifests(env, "reference", root=written(env, tmp_path))
    kubectl = Kubectl(env, execute=FakeKubectl(server))
    assert changes(kubectl, found) == []
    server.put("RayService", "maze-vlm", spec={**found.ray["spec"], "serveConfigV2": "applications: []", "more": 1})
    assert changes(kubectl, found) == ["spec.serveConfigV2"]


def test_delivering_an_archive_that_is_there_changes_nothing() -> None:
    s3 = MemoryS3()
    store = memory_store(s3)
    assert deploy.deliver(store)
    before = dict(s3.objects)
    assert not deploy.deliver(store)
    assert s3.objects == before
    assert ingress.key().startswith(names.CODE_PREFIX)


def test_the_raycluster_waits_for_the_endpoint_that_holds_its_gpus(env: Environment, server: ApiServer) -> None:
    kubectl = Kubectl(env, execute=FakeKubectl(server))
    clusters.check_sharing(kubectl)
    server.put("RayService", "maze-vlm")
    with pytest.raises(Refused, match="`serve down` before `cluster up`"):
        clusters.check_sharing(kubectl)
    production = load("production")
    assert not production.serving.share_workers
    clusters.check_sharing(Kubectl(production, execute=FakeKubectl(server)))


def test_the_command(env: Environment, server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve up --dry-run` changes nothing, `serve up` says where it answers, `serve status` what the aliases name."""
    folder = written(env, Path(os.environ["HYPERPOD_RL_CACHE"]))
    fake, store = FakeKubectl(server), memory_store()
    monkeypatch.setattr(deploy, "manifests", functools.partial(deploy.manifests, root=folder))
    monkeypatch.setattr("training.kubernetes.Kubectl", functools.partial(Kubectl, execute=fake))
    monkeypatch.setattr("serving.store.open_store", lambda env: store)
    monkeypatch.setattr("training.waiting.POLL_SECONDS", 0.0)
    assert run(["serve", "up", "--dry-run"]) == 0
    assert "RayService serving/maze-vlm: would be created" in capsys.readouterr().out
    assert (server.applied, store.client.writes) == ([], [])
    server.put("Service", "maze-vlm-serve-svc", spec={})
    server.looks = [service(status="DEPLOYING", ready=False), service()]
    assert run(["serve", "up", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ready"], said["url"], said["aliases"]) == (True, None, {})
    assert said["cluster_url"] == "http://maze-vlm-serve-svc.serving:8000"
    for file in names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG, names.RELEASE_RECORD:
        store.put(names.release_key("maze-grpo-s20-aaaaaaaa", file), b"{}")
    aliases.move(store, "current", "maze-grpo-s20-aaaaaaaa", reason="t", by="t")
    assert run(["serve", "status"]) == 0
    assert "  visgym-qwen3vl:current: maze-grpo-s20-aaaaaaaa" in capsys.readouterr().out.splitlines()
    store.delete(names.release_key("maze-grpo-s20-aaaaaaaa", names.ADAPTER_WEIGHTS))  # by hand
    assert run(["serve", "status"]) == 0
    assert "current: maze-grpo-s20-aaaaaaaa, which is not whole in the bucket: requests for it answer 404" in capsys.readouterr().out
    server.put("RayCluster", "skyrl-visgym", spec={}, status={})
    assert run(["serve", "up", "--dry-run"]) == 2
    assert "run `cluster down` before `serve up`" in capsys.readouterr().err
    assert run(["serve", "down", "--dry-run"]) == 0
    assert server.deleted == []
    assert "it would be deleted" in capsys.readouterr().out
    assert run(["serve", "down"]) == 0
    assert capsys.readouterr().out == "RayService serving/maze-vlm is gone\n"
