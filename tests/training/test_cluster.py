"""`cluster up | down | status` over a kubectl that answers from a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.digest import folder_digest
from config.environment import Environment
from config.load import load
from config.problems import Failed, Refused, Unreachable
from tests.training.fakes import FakeKubectl
from training import base_model, cluster, kubeconfig
from training import manifests as files
from training.kubernetes import Kubectl, Rejected
from training.manifests import Manifests
from training.waiting import UNSEEN_SECONDS, Clock

NOT_FOUND = (1, 'Error from server (NotFound): rayclusters.ray.io "skyrl-visgym" not found')


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("HYPERPOD_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    env = load("reference")
    path = kubeconfig.path(env)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"extensions": kubeconfig._made_for()}))
    # An unreachable API server makes the launcher ask EKS once more: here EKS says the same as before.
    monkeypatch.setattr(kubeconfig, "refresh", lambda env: path)
    return env


def ray_cluster(*, ready: int = 3, head: bool = True, generation: int = 1, seen: int = 1, deleting: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "skyrl-visgym", "namespace": "training", "generation": generation}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-29T00:00:00Z"
    conditions = [{"type": "HeadPodReady", "status": "True" if head else "False"}]
    status = {
        "state": "ready" if head and ready == 3 else "", "readyWorkerReplicas": ready, "desiredWorkerReplicas": 3, "desiredGPU": "6",
        "observedGeneration": seen, "conditions": conditions,
    }  # fmt: skip
    return {"kind": "RayCluster", "metadata": metadata, "spec": {"workerGroupSpecs": [{"replicas": 3}]}, "status": status}


def pod(name: str, *, ready: bool = False, waiting: str = "", message: str = "", unscheduled: str = "") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    if unscheduled:
        conditions.append({"type": "PodScheduled", "status": "False", "message": unscheduled})
    statuses = [{"state": {"waiting": {"reason": waiting, "message": message}}}] if waiting else []
    return {"metadata": {"name": name}, "status": {"phase": "Pending", "conditions": conditions, "containerStatuses": statuses}}


def answers(
    clusters: Sequence[dict[str, Any] | None], pods: Sequence[dict[str, Any]] = (), events: Sequence[dict[str, Any]] = ()
) -> Callable[[Sequence[str]], str | tuple[int, str]]:
    """A server whose RayCluster goes through these states, one a look, and then stays."""
    left = list(clusters)

    def answer(words: Sequence[str]) -> str | tuple[int, str]:
        if words[:2] == ["get", cluster.KIND]:
            now = left.pop(0) if len(left) > 1 else left[0]
            return json.dumps(now) if now is not None else NOT_FOUND
        if words[:2] == ["get", "pods"]:
            return json.dumps({"items": list(pods)})
        if words[:2] == ["get", "events"]:
            return json.dumps({"items": list(events)})
        return ""

    return answer


def model_job(*, active: int = 0, failed: int = 0, condition: str = "", message: str = "") -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True", "message": message}] if condition else []
    return {"metadata": {"name": "fetch-1"}, "status": {"active": active, "failed": failed, "conditions": conditions}}


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock = Clock(now=lambda: self.seconds, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def found(tmp_path: Path) -> Manifests:
    return Manifests(folder=tmp_path, files=[], digest="sha256:0")


def test_up_waits_until_head_and_workers_are_ready(env: Environment, tmp_path: Path) -> None:
    states = [ray_cluster(ready=0, head=False, seen=0), ray_cluster(ready=1), ray_cluster(ready=3)]
    pods = [
        pod("w-1", waiting="ImagePullBackOff", message="no such image"),
        pod("w-2", unscheduled="0/4 nodes have a GPU"),
        pod("w-3", ready=True),
    ]
    execute, notes = FakeKubectl(answers(states, pods)), list[str]()
    state = cluster.up(Kubectl(env, execute), found(tmp_path), timeout_seconds=60, note=notes.append, clock=Time().clock)
    assert state.ready
    assert state.gpus == 6
    assert execute.asked[0] == [
        "apply",
        "--server-side",
        "--field-manager=hyperpod-rl",
        "--force-conflicts=false",
        "--recursive",
        "-f",
        str(tmp_path),
    ]
    assert any(
        "1 of 3 workers ready" in note and "ImagePullBackOff, no such image" in note and "0/4 nodes have a GPU" in note for note in notes
    )


ONE_CONFLICT = """error: Apply failed with 1 conflict: conflict with "kubectl-edit" using ray.io/v1: .spec.rayVersion
Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts"""
TWO_CONFLICTS = """error: Apply failed with 2 conflicts: conflicts with "argocd" using ray.io/v1:
- .spec.rayVersion
- .spec.workerGroupSpecs
Please review the fields above--they currently have other managers. Here"""


@pytest.mark.parametrize(
    ("said", "owner"),
    [
        (ONE_CONFLICT, "`kubectl-edit` owns .spec.rayVersion"),
        (TWO_CONFLICTS, "`argocd` owns .spec.rayVersion, .spec.worker"),
        ('Apply failed with 1 conflict on skyrl-visgym: conflict with "someone": .spec.rayVersion', "`someone` owns .spec.rayVersion"),
    ],
)
def test_a_field_of_another_manager_is_one_sentence(said: str, owner: str, env: Environment, tmp_path: Path) -> None:
    def answer(words: Sequence[str]) -> str | tuple[int, str]:
        return (1, said) if words[0] == "apply" else answers([None])(words)

    with pytest.raises(Refused) as refused:
        cluster.up(Kubectl(env, FakeKubectl(answer)), found(tmp_path), timeout_seconds=60, clock=Time().clock)
    (problem,) = refused.value.problems
    assert owner in str(problem)
    assert "--force-conflicts --field-manager=hyperpod-rl" in str(problem)
    assert "Please review" not in str(problem)


def test_the_status_from_before_an_edit_does_not_count_as_its_result(env: Environment, tmp_path: Path) -> None:
    states = [ray_cluster(generation=2, seen=1), ray_cluster(generation=2, seen=2, ready=1), ray_cluster(generation=2, seen=2)]
    execute = FakeKubectl(answers(states, [pod("w-1", waiting="ContainerCreating")]))
    cluster.up(Kubectl(env, execute), found(tmp_path), timeout_seconds=600, clock=Time().clock)
    assert sum(words[:2] == ["get", cluster.KIND] for words in execute.asked) == 3


def test_an_edit_that_kuberay_never_acknowledges_is_not_waited_for_without_end(env: Environment, tmp_path: Path) -> None:
    time = Time()
    execute = FakeKubectl(answers([ray_cluster(generation=2, seen=1)]))
    state = cluster.up(Kubectl(env, execute), found(tmp_path), timeout_seconds=2700, clock=time.clock)
    assert state.ready
    assert UNSEEN_SECONDS <= time.clock.now() < 2 * UNSEEN_SECONDS


def test_up_gives_up_and_says_what_is_missing(env: Environment, tmp_path: Path) -> None:
    events = [
        {"type": "Warning", "reason": "FailedMount", "message": "no FSx", "involvedObject": {"name": "w-1"}, "lastTimestamp": "2"},
        {"type": "Normal", "reason": "Pulled", "message": "image", "involvedObject": {"name": "w-1"}, "lastTimestamp": "3"},
        {"type": "Warning", "reason": "Other", "message": "not ours", "involvedObject": {"name": "x"}, "lastTimestamp": "4"},
    ]
    execute = FakeKubectl(answers([ray_cluster(ready=2)], [pod("w-1", waiting="ContainerCreating")], events))
    with pytest.raises(Unreachable) as gave_up:
        cluster.up(Kubectl(env, execute), found(tmp_path), timeout_seconds=60, clock=Time().clock)
    assert "2 of 3 workers ready" in str(gave_up.value)
    assert "FailedMount, no FSx" in str(gave_up.value)
    assert "not ours" not in str(gave_up.value)


@pytest.mark.parametrize(("ends_more", "hopeless"), [(True, True), (False, False)])
def test_a_container_that_ends_again_and_again_is_not_waited_for(ends_more: bool, hopeless: bool, env: Environment, tmp_path: Path) -> None:
    looks = 0

    def answer(words: Sequence[str]) -> str | tuple[int, str]:
        nonlocal looks
        if words[:2] == ["get", "pods"]:
            looks += ends_more
            crashing = pod("w-1", waiting="CrashLoopBackOff", message="ModuleNotFoundError: no module ray")
            crashing["status"]["containerStatuses"][0]["restartCount"] = 40 + looks // 3
            return json.dumps({"items": [crashing]})
        return answers([ray_cluster(ready=2)])(words)

    time = Time()
    with pytest.raises(Failed if hopeless else Unreachable) as gave_up:
        cluster.up(Kubectl(env, FakeKubectl(answer)), found(tmp_path), timeout_seconds=3600, clock=time.clock)
    assert "ModuleNotFoundError: no module ray" in str(gave_up.value)
    assert ("it was started 6 times and ended each time" in str(gave_up.value)) is hopeless
    assert (time.clock.now() < 120) is hopeless, "ends from before this wait do not count"


def test_a_missing_platform_is_named(env: Environment, tmp_path: Path) -> None:
    execute = FakeKubectl(lambda _: (1, 'Error from server (NotFound): namespaces "training" not found'))
    with pytest.raises(Rejected, match=r"cdk deploy --all -c env=reference"):
        cluster.up(Kubectl(env, execute), found(tmp_path), timeout_seconds=1, clock=Time().clock)


def test_down_waits_for_the_pods_too(env: Environment) -> None:
    left = [pod("head")]
    states = answers([ray_cluster(), ray_cluster(deleting=True), None])

    def answer(words: Sequence[str]) -> str | tuple[int, str]:
        if words[:2] == ["get", "pods"]:
            return json.dumps({"items": [left.pop()] if left else []})
        return states(words)

    execute, notes = FakeKubectl(answer), list[str]()
    state = cluster.down(Kubectl(env, execute), timeout_seconds=60, note=notes.append, clock=Time().clock)
    assert not state.exists
    assert any("pod head is still there" in note for note in notes)
    assert execute.asked[0][:2] == ["delete", cluster.KIND]


def test_down_is_content_without_cluster_and_without_kuberay(env: Environment) -> None:
    no_kind = (1, 'error: the server doesn\'t have a resource type "rayclusters"')

    def answer(words: Sequence[str]) -> str | tuple[int, str]:
        return no_kind if cluster.KIND in words else json.dumps({"items": []})

    assert not cluster.down(Kubectl(env, FakeKubectl(answer)), timeout_seconds=1, clock=Time().clock).exists


@pytest.mark.parametrize(
    "said",
    [
        "Unable to connect to the server: dial tcp: lookup x: no such host",
        "The connection to the server 127.0.0.1:1 was refused: connection refused",
        "error: You must be logged in to the server (Unauthorized)",
        "Unable to connect to the server: getting credentials: exec: exit status 255",
    ],
)
def test_an_api_server_that_is_not_reached(env: Environment, said: str) -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        cluster.state(Kubectl(env, FakeKubectl(lambda _: (1, said))))


def written(root: Path, env: Environment, **changes: Any) -> Path:
    folder = root / "dist" / env.name / "raycluster"
    folder.mkdir(parents=True)
    from config import names

    resources = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 2}}
    head = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}

    def template(name: str, resources: object) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": name, "image": names.image_uri(env), "resources": resources}]}}

    spec: dict[str, Any] = {
        "rayVersion": "2.57.0",
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"}, "template": template("ray-head", head)},
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                "replicas": 3,
                "minReplicas": 3,
                "maxReplicas": 3,
                "rayStartParams": {},
                "template": template("ray-worker", resources),
            }
        ],
    }
    spec["workerGroupSpecs"][0] |= changes.pop("group", {})
    metadata = {"name": "skyrl-visgym", "namespace": "training"} | changes.pop("metadata", {})
    obj = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}
    (folder / "00-raycluster-skyrl-visgym.yaml").write_text(yaml.safe_dump(obj))
    return folder


def test_manifests_are_taken_as_they_lie_there(env: Environment, tmp_path: Path) -> None:
    folder = written(tmp_path, env)
    manifests = cluster.manifests(env, "reference", root=tmp_path)
    assert manifests.folder == folder
    assert manifests.digest == folder_digest(folder)


def test_missing_manifests_name_the_step(env: Environment, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="python -m k8s --env reference"):
        cluster.manifests(env, "reference", root=tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"group": {"replicas": 2, "minReplicas": 2, "maxReplicas": 2}}, "they ask for 2 workers, the environment has 3"),
     ({"metadata": {"namespace": "other"}}, "these files hold other/skyrl-visgym")],
)  # fmt: skip
def test_manifests_of_another_environment_are_refused(changes: dict[str, Any], said: str, env: Environment, tmp_path: Path) -> None:
    written(tmp_path, env, **changes)
    with pytest.raises(Refused, match=said):
        cluster.manifests(env, "reference", root=tmp_path)


def test_broken_manifests_are_refused(env: Environment, tmp_path: Path) -> None:
    (written(tmp_path, env) / "01-broken.yaml").write_text("a: [")
    with pytest.raises(Refused, match="not valid YAML"):
        cluster.manifests(env, "reference", root=tmp_path)


def test_rules_of_kuberay_hold_before_anything_is_applied(env: Environment, tmp_path: Path) -> None:
    written(tmp_path, env, group={"minReplicas": 5})
    with pytest.raises(Refused):
        cluster.manifests(env, "reference", root=tmp_path)


def test_what_applying_would_change(env: Environment, tmp_path: Path) -> None:
    written(tmp_path, env)
    manifests = cluster.manifests(env, "reference", root=tmp_path)
    live = yaml.safe_load(manifests.files[0].read_text())
    live["spec"]["headGroupSpec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"  # what the API server adds is no change

    def changes(obj: dict[str, Any] | None) -> list[str]:
        return list(files.changes(Kubectl(env, FakeKubectl(answers([obj]))), manifests))

    assert changes(live) == []
    assert changes(None) == []
    live["spec"]["workerGroupSpecs"][0]["replicas"] = 2
    live["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] = "old"
    assert changes(live) == ["spec.headGroupSpec.template.spec.containers[0].image", "spec.workerGroupSpecs[0].replicas"]


def test_what_kubectl_says_is_told_in_one_sentence(env: Environment) -> None:
    log = 'E1129 16:53:11.102511   17230 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list"\n'
    said = (
        log + log + "Warning: v1 is old\nThe connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?\n"
    )
    with pytest.raises(Unreachable) as failed:
        cluster.state(Kubectl(env, FakeKubectl(lambda _: (1, said))))
    assert str(failed.value).endswith(
        "cannot be reached: The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?"
    )


def with_model(
    jobs: Sequence[dict[str, Any] | None], tmp_path: Path, env: Environment
) -> tuple[FakeKubectl, Manifests, base_model.Manifests]:
    """A ready RayCluster, and a download that goes through these states."""
    left, rest = list(jobs), answers([ray_cluster()])

    def answer(words: Sequence[str]) -> str | tuple[int, str]:
        if words[:2] == ["get", base_model.KIND]:
            now = left.pop(0) if len(left) > 1 else left[0]
            return json.dumps(now) if now is not None else (1, 'Error from server (NotFound): jobs.batch "fetch-1" not found')
        return rest(words)

    return FakeKubectl(answer), found(tmp_path), base_model.Manifests(tmp_path / "model", [], ["fetch-1"], "sha256:1")


def test_up_waits_for_the_base_model_too(env: Environment, tmp_path: Path) -> None:
    running = model_job(active=1, failed=2)
    execute, manifests, model = with_model([None, running, running, model_job(condition="Complete")], tmp_path, env)
    notes: list[str] = []
    assert cluster.up(Kubectl(env, execute), manifests, model=model, timeout_seconds=60, note=notes.append, clock=Time().clock).ready
    assert any("Job fetch-1 is running, 2 tries failed" in note for note in notes)
    assert [words[-1] for words in execute.asked if words[0] == "apply"] == [str(tmp_path), str(tmp_path / "model")]


def test_a_download_that_failed_ends_the_wait(env: Environment, tmp_path: Path) -> None:
    failed = model_job(condition="Failed", message="no such repository")
    execute, manifests, model = with_model([None, failed], tmp_path, env)
    with pytest.raises(Failed, match=r"no such repository; its log: kubectl --namespace training logs job/fetch-1"):
        cluster.up(Kubectl(env, execute), manifests, model=model, timeout_seconds=60, clock=Time().clock)


def test_a_failed_download_is_tried_again_by_the_next_up(env: Environment, tmp_path: Path) -> None:
    failed = model_job(condition="Failed", message="no network")
    execute, manifests, model = with_model([failed, failed, None, model_job(condition="Complete")], tmp_path, env)
    assert cluster.up(Kubectl(env, execute), manifests, model=model, timeout_seconds=60, clock=Time().clock).ready
    assert [words[:3] for words in execute.asked if words[0] == "delete"] == [["delete", base_model.KIND, "fetch-1"]]


def test_the_models_manifests(env: Environment, tmp_path: Path) -> None:
    assert base_model.manifests(env, root=tmp_path) is None
    folder = tmp_path / "dist/reference/model"
    folder.mkdir(parents=True)
    (folder / "00-configmap.yaml").write_text("kind: ConfigMap\nmetadata: {name: fetch-1}\n")
    (folder / "01-job.yaml").write_text("kind: Job\nmetadata: {name: fetch-1}\n")
    manifests = base_model.manifests(env, root=tmp_path)
    assert manifests is not None
    assert manifests.jobs == ["fetch-1"]
    assert manifests.digest == folder_digest(folder)
