"""What `status` says without a run, from an account and a cluster that are made up here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from cli.main import run
from config.environment import Environment
from config.names import Stack
from config.problems import Unreachable
from operations.aws import Aws
from operations.status import Overview, Part, overview
from tests.operations.conftest import Variant
from tests.operations.stubs import Answer, Says, Stubs
from training.kubernetes import Kubectl, Rejected

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
LAUNCHED = datetime(2026, 11, 29, 10, tzinfo=UTC)


def _node(name: str, group: str, *, ready: bool = True, health: str = "Schedulable") -> dict[str, Any]:
    labels = {"sagemaker.amazonaws.com/instance-group-name": group, "sagemaker.amazonaws.com/node-health-status": health}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def _event(
    about: str, reason: str, message: str, *, when: str = "10", kind: str = "Warning", namespace: str = "training"
) -> dict[str, Any]:
    return {"kind": "Event", "metadata": {}, "type": kind, "reason": reason, "message": message,
            "lastTimestamp": f"2026-11-29T{when}:00:00Z",
            "involvedObject": {"name": about, "namespace": namespace}}  # fmt: skip


RAY = {
    "kind": "RayCluster", "metadata": {"name": "skyrl-visgym", "namespace": "training", "generation": 1},
    "spec": {"workerGroupSpecs": [{"replicas": 3}]},
    "status": {"state": "ready", "readyWorkerReplicas": 3, "desiredWorkerReplicas": 3, "desiredGPU": "6", "observedGeneration": 1,
               "conditions": [{"type": "HeadPodReady", "status": "True"}]},
}  # fmt: skip
NODES = [_node("n0", "system"), _node("n1", "system"), _node("n2", "head"), *(_node(f"n{n}", "workers") for n in (3, 4, 5))]


@dataclass(frozen=True)
class Cluster(Kubectl):
    """A cluster that answers from lists; an exception in the place of one is raised."""

    nodes: Sequence[Any] | Exception = field(default_factory=lambda: NODES)
    ray: Sequence[Any] | Exception = field(default_factory=lambda: [RAY])
    asked: list[str] = field(default_factory=list)

    def run(self, *arguments: str, timeout: float = 0) -> str:
        self.asked.append(arguments[1])
        found = self.nodes if arguments[1] == "nodes,events" else self.ray
        if isinstance(found, Exception):
            raise found
        if "--all-namespaces" in arguments:
            return json.dumps({"items": found})
        if arguments[1] in ("pods", "events"):
            return json.dumps({"items": []})
        named = [item for item in self.ray if item["metadata"]["name"] == arguments[2]]  # type: ignore[union-attr]
        if not named:
            raise Rejected(f'Error from server (NotFound): "{arguments[2]}" not found')
        return json.dumps(named[0])


def _groups(*, workers: int = 3) -> dict[str, Any]:
    counts = {"system": ("ml.m5.4xlarge", 2, 2), "head": ("ml.r5d.16xlarge", 1, 1), "workers": ("ml.g7e.12xlarge", 3, workers)}
    return {"ClusterStatus": "InService", "InstanceGroups": [
        {"InstanceGroupName": name, "InstanceType": kind, "TargetCount": target, "CurrentCount": current}
        for name, (kind, target, current) in counts.items()
    ]}  # fmt: skip


RUNNING = {"Status": "Running"}


def _instances(*, workers: int = 3) -> dict[str, Any]:
    groups = [("system", "ml.m5.4xlarge")] * 2 + [("head", "ml.r5d.16xlarge")] + [("workers", "ml.g7e.12xlarge")] * workers
    return {"ClusterNodeSummaries": [
        {"InstanceGroupName": group, "InstanceType": kind, "InstanceId": f"i-{n}", "LaunchTime": LAUNCHED, "InstanceStatus": RUNNING}
        for n, (group, kind) in enumerate(groups)
    ]}  # fmt: skip


def _account(stacks: Mapping[str, str]) -> dict[str, Answer | Says]:
    return {
        "cloudformation:list_stacks": {"StackSummaries": [
            {"StackName": name, "StackStatus": status, "CreationTime": LAUNCHED} for name, status in stacks.items()]},
        "sagemaker:describe_cluster": _groups(), "sagemaker:list_cluster_nodes": _instances(),
        "sagemaker:list_cluster_events": {"Events": []},
        "eks:list_addons": {"addons": ["coredns"]},
        "eks:describe_addon": {"addon": {"addonName": "coredns", "addonVersion": "v1", "status": "ACTIVE"}},
        "fsx:describe_file_systems": {"FileSystems": [{"FileSystemId": "fs-0123456789abcdef0",
                                                       "Lifecycle": "AVAILABLE", "StorageCapacity": 4800,
                                                       "Tags": [{"Key": "Name", "Value": "hyperpod-rl-mine"}]}]},
        "cloudwatch:get_metric_statistics": {"Datapoints": [
            {"Timestamp": LAUNCHED, "Sum": 0.0}, {"Timestamp": NOW, "Sum": 1200.0 * 2**30}]},
    }  # fmt: skip


DEPLOYED = {f"hyperpod-rl-mine-{which.value}": "CREATE_COMPLETE" for which in Stack if which != Stack.STUDIO}


@pytest.fixture
def env(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.delenv("HYPERPOD_RL_SHARED", raising=False)
    return variant()


def _look(env: Environment, cluster: Kubectl | None = None, *, stacks: Mapping[str, str] = DEPLOYED, **changed: Answer | Says) -> Overview:
    answers = {**_account(stacks), **{name.replace("__", ":"): answer for name, answer in changed.items()}}
    return overview(env, aws=Aws(env, Stubs(answers).session()), kubectl=cluster or Cluster(env), runs=lambda: Part(["no runs"], []),
                    now=NOW.timestamp)  # fmt: skip


def test_a_whole_environment_in_ten_lines(env: Environment) -> None:
    cluster = Cluster(env)
    assert _look(env, cluster).lines() == [
        "stacks        8: all complete",
        "HyperPod      hyperpod-rl-mine is InService",
        "  system      ml.m5.4xlarge: 2 of 2 instances, 2 Ready",
        "  head        ml.r5d.16xlarge: 1 of 1 instances, 1 Ready",
        "  workers     ml.g7e.12xlarge: 3 of 3 instances, 3 Ready",
        "spent         about 77.35 USD on the 6 nodes since the first joined (2026-11-29 10:00 UTC), "
        "38.68 USD an hour by the price table of 2026-11-29",
        "add-ons       1: all active",
        "RayCluster training/skyrl-visgym is ready: head ready, 3 of 3 workers ready, 6 GPUs",
        "file system   fs-0123456789abcdef0 is available, 4800 GiB, 75 % used (CloudWatch)",
        "no runs",
    ]
    assert sorted(cluster.asked) == ["nodes,events", "rayclusters.ray.io", "rayclusters.ray.io,rayservices.ray.io"]


def test_nodes_that_do_not_come_are_shown_with_the_last_events_of_their_group(env: Environment) -> None:
    instance = {"ClusterArn": "a", "ClusterName": "c", "ResourceType": "Instance"}
    events = {"Events": [
        {**instance, "EventId": str(n), "EventTime": NOW.replace(hour=n),
         "InstanceGroupName": group, "Description": f"Insufficient capacity {n}"}
        for n, group in ((4, "workers"), (1, "workers"), (3, "workers"), (2, "workers"), (5, "head"))
    ]}  # fmt: skip
    changed = {"sagemaker__describe_cluster": _groups(workers=1), "sagemaker__list_cluster_nodes": _instances(workers=1)}
    seen = _look(env, Cluster(env, nodes=NODES[:4]), sagemaker__list_cluster_events=events, **changed)
    lines = seen.lines()
    at = lines.index("  workers     ml.g7e.12xlarge: 1 of 3 instances, 1 Ready")
    assert lines[at + 1 : at + 4] == [f"  2026-11-29 0{n}:00:00 Insufficient capacity {n}" for n in (2, 3, 4)]
    assert not [line for line in lines if "capacity 5" in line], "a whole group needs no events"
    assert seen.document()["node_groups"]["groups"][2]["target"] == 3


def test_nodes_that_are_ill_are_named(env: Environment) -> None:
    nodes = [*NODES[:3], _node("n3", "workers", health="UnschedulablePendingReplacement"), _node("n4", "workers", ready=False), NODES[5]]
    (line,) = (line for line in _look(env, Cluster(env, nodes=nodes)).lines() if line.startswith("  workers"))
    assert (
        line == "  workers     ml.g7e.12xlarge: 3 of 3 instances, 2 Ready, unhealthy: n3 (UnschedulablePendingReplacement), n4 (NotReady)"
    )


def test_add_ons_that_are_not_well_say_why(env: Environment) -> None:
    sick = {"addonName": "coredns", "addonVersion": "v1", "status": "DEGRADED",
            "health": {"issues": [{"code": "InsufficientNumberOfReplicas", "message": "no node"}]}}  # fmt: skip
    assert [line for line in _look(env, eks__describe_addon={"addon": sick}).lines() if "coredns" in line or "add-ons" in line] == [
        "add-ons       1: 1 not well", "  coredns v1 is DEGRADED; InsufficientNumberOfReplicas: no node"
    ]  # fmt: skip


def test_warnings_about_ray_are_shown_once_each_and_those_of_others_not(env: Environment) -> None:
    service = {"kind": "RayService", "metadata": {"name": "maze-vlm", "namespace": "serving"}, "status": {"serviceStatus": "Running"}}
    events = [
        _event("skyrl-visgym-workers-1", "FailedMount", "MountVolume failed: is the MGS running?", when="11"),
        _event("skyrl-visgym-workers-1", "FailedMount", "MountVolume failed: is the MGS running?", when="12"),
        _event("skyrl-visgym-head-1", "FailedScheduling", "0/6 nodes: Insufficient nvidia.com/gpu", when="09"),
        _event("skyrl-visgym-head-1", "Pulled", "fine", kind="Normal"),
        _event("other-1", "FailedMount", "theirs"),
        _event("maze-vlm-x", "Failed", "ErrImagePull", namespace="serving"),
    ]
    lines = _look(env, Cluster(env, nodes=[*NODES, *events], ray=[RAY, service])).lines()
    at = lines.index("RayCluster training/skyrl-visgym is ready, and warned:")
    assert lines[at + 1 : at + 5] == [
        "  skyrl-visgym-head-1: FailedScheduling, 0/6 nodes: Insufficient nvidia.com/gpu",
        "  skyrl-visgym-workers-1: FailedMount, MountVolume failed: is the MGS running?",
        "RayService serving/maze-vlm is Running, and warned:", "  maze-vlm-x: Failed, ErrImagePull",
    ]  # fmt: skip
    assert not [line for line in lines if "theirs" in line or "fine" in line]


def test_before_the_first_deploy_it_says_so_and_asks_nothing_else(env: Environment) -> None:
    stubs = Stubs({"cloudformation:list_stacks": {"StackSummaries": [
        {"StackName": "hyperpod-rl-other-Data", "StackStatus": "CREATE_COMPLETE", "CreationTime": LAUNCHED}]}})  # fmt: skip
    seen = overview(env, aws=Aws(env, stubs.session()), kubectl=Cluster(env), runs=lambda: Part())
    assert seen.lines() == ["environment mine is not deployed in us-west-2; cdk deploy --all -c env=mine"]
    assert [name for name, _ in stubs.asked] == ["cloudformation:list_stacks"]


def test_half_a_deploy_shows_what_is_there(env: Environment) -> None:
    stacks = {"hyperpod-rl-mine-Network": "CREATE_COMPLETE", "hyperpod-rl-mine-Data": "ROLLBACK_COMPLETE"}
    own = {"StackId": "arn", "EventId": "e", "StackName": "hyperpod-rl-mine-Data", "Timestamp": NOW, "PhysicalResourceId": "id"}
    events = [  # the newest first
        {"LogicalResourceId": "Data", "ResourceStatus": "ROLLBACK_COMPLETE", "PhysicalResourceId": "arn"},
        {
            "LogicalResourceId": "Data",
            "ResourceStatus": "ROLLBACK_IN_PROGRESS",
            "ResourceStatusReason": "it failed",
            "PhysicalResourceId": "arn",
        },
        {"LogicalResourceId": "Images", "ResourceStatus": "CREATE_FAILED", "ResourceStatusReason": "Resource creation cancelled"},
        {"LogicalResourceId": "FileSystem", "ResourceStatus": "CREATE_FAILED", "ResourceStatusReason": "No capacity\n in the zone"},
        {"LogicalResourceId": "Data", "ResourceStatus": "CREATE_IN_PROGRESS", "PhysicalResourceId": "arn"},
        {"LogicalResourceId": "Old", "ResourceStatus": "DELETE_FAILED", "ResourceStatusReason": "of the operation before"},
    ]
    said = {"StackEvents": [{**own, **event} for event in events]}
    missing = "  not there: Telemetry, Cluster, HyperPod, NodesReady, Platform, Observability; cdk deploy --all -c env=mine"
    nothing, first = "file system   none is named hyperpod-rl-mine", "stacks        2: Data ROLLBACK_COMPLETE"
    for answer, why in (
        (said, "FileSystem CREATE_FAILED: No capacity in the zone"),
        (Says("AccessDenied"), "why is not known: "),
    ):
        seen = _look(env, stacks=stacks, fsx__describe_file_systems={"FileSystems": []}, cloudformation__describe_stack_events=answer)
        one, two, three, four = seen.lines()
        assert (one, two, four) == (first, missing, nothing)
        assert three.startswith(f"  Data: {why}")


def test_a_stack_that_was_destroyed_alone_is_missed(env: Environment) -> None:
    stacks = {name: status for name, status in DEPLOYED.items() if not name.endswith("Platform")}
    assert _look(env, stacks=stacks).lines()[:2] == [
        "stacks        7: all complete", "  not there: Platform; cdk deploy --all -c env=mine"
    ]  # fmt: skip
    unwatched = env.model_copy(update={"observability": env.observability.model_copy(update={"enabled": False})})
    least = {name: DEPLOYED[name] for name in DEPLOYED if not name.endswith(("Telemetry", "Observability"))}
    assert _look(unwatched, stacks=least).lines()[:1] == ["stacks        6: all complete"]
    assert not any("not there" in line for line in _look(unwatched, stacks=least).lines())


def test_what_does_not_answer_says_so_and_the_rest_is_shown(env: Environment) -> None:
    cluster = Cluster(env, nodes=Unreachable("the API server cannot be reached"), ray=Unreachable("the API server cannot be reached"))
    seen = _look(env, cluster, eks__list_addons=Says("AccessDeniedException", "not authorized"))
    lines = seen.lines()
    assert "HyperPod      hyperpod-rl-mine is InService; Kubernetes does not say which are Ready: the API server cannot be reached" in lines
    assert "addons: not known, eks:list_addons: AccessDeniedException, not authorized" in lines
    assert "cluster: not known, the API server cannot be reached" in lines
    assert "file system   fs-0123456789abcdef0 is available, 4800 GiB, 75 % used (CloudWatch)" in lines
    assert set(seen.document()["not_known"]) == {"addons", "cluster", "ray"}


def test_of_two_file_systems_of_one_name_the_newer_one_is_in_use(env: Environment) -> None:
    tags = [{"Key": "Name", "Value": "hyperpod-rl-mine"}]
    both = [{"FileSystemId": f"fs-{age}", "StorageCapacity": 1200, "Lifecycle": "AVAILABLE", "Tags": tags, "CreationTime": day}
            for age, day in (("0123456789abcdef0", 1_700_000_000), ("0123456789abcdef1", 1_800_000_000))]  # fmt: skip
    seen = _look(env, fsx__describe_file_systems={"FileSystems": both}).parts["file_system"]
    assert seen.data["id"] == "fs-0123456789abcdef1"
    assert "an older one of this name is there, too, and costs: fs-0123456789abcdef0" in seen.lines[1]


def test_a_file_system_without_metrics_is_not_called_empty(env: Environment) -> None:
    (line,) = (line for line in _look(env, cloudwatch__get_metric_statistics={"Datapoints": []}).lines() if line.startswith("file system"))
    assert (
        line
        == "file system   fs-0123456789abcdef0 is available, 4800 GiB, use is not known: FSx has written no metric in the last 15 minutes"
    )


def test_an_instance_type_without_a_price_is_named(env: Environment) -> None:
    nodes = _instances()
    nodes["ClusterNodeSummaries"][0]["InstanceType"] = "ml.p5.48xlarge"
    assert any(
        "without ml.p5.48xlarge, whose price is not known" in line for line in _look(env, sagemaker__list_cluster_nodes=nodes).lines()
    )


def test_without_an_answer_of_aws_it_ends_as_unreachable(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    import boto3
    from botocore.config import Config

    session = boto3.Session(region_name="us-west-2", aws_access_key_id="A", aws_secret_access_key="B")
    aws = Aws(env, session)
    aws._clients["cloudformation/us-west-2"] = session.client(
        "cloudformation", endpoint_url="http://127.0.0.1:9", config=Config(retries={"total_max_attempts": 1})
    )
    with pytest.raises(Unreachable, match=r"AWS cannot be asked: EndpointConnectionError.*check the network and AWS_ENDPOINT_URL"):
        overview(env, aws=aws, kubectl=Cluster(env), runs=lambda: Part())


def test_one_call_that_is_denied_takes_no_more_than_its_own_words_away(env: Environment) -> None:
    no = Says("AccessDeniedException", "not authorized")
    seen = _look(env, sagemaker__list_cluster_events=no, eks__describe_addon=no, cloudwatch__get_metric_statistics=no)
    lines = seen.lines()
    assert "  workers     ml.g7e.12xlarge: 3 of 3 instances, 3 Ready" in lines
    assert "  events are not known: sagemaker:list_cluster_events: AccessDeniedException, not authorized" in lines
    assert "  coredns is not known; unanswered: eks:describe_addon: AccessDeniedException, not authorized" in lines
    assert (
        "file system   fs-0123456789abcdef0 is available, 4800 GiB, use is not known: "
        "cloudwatch:get_metric_statistics: AccessDeniedException, not authorized" in lines
    )


@pytest.mark.parametrize("code", ["ExpiredToken", "UnrecognizedClientException", "RequestTimeTooSkewed"])
def test_credentials_that_no_service_takes_end_it_with_one_sentence(env: Environment, code: str) -> None:
    with pytest.raises(Unreachable, match=r"^AWS cannot be asked: gone; "):
        _look(env, cloudformation__list_stacks=Says(code, "gone"))


def test_the_command_ends_with_3_where_a_part_is_not_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"stacks": Part(["stacks        8: all complete"], {"Data": "CREATE_COMPLETE"})}
    monkeypatch.setattr("cli.overview.look", lambda *_: Overview(found))
    assert run(["status"]) == 0
    found["ray"] = Part(unknown="the API server cannot be reached")
    assert run(["status"]) == 3
    assert capsys.readouterr().out.endswith("stacks        8: all complete\nray: not known, the API server cannot be reached\n")


def test_credentials_of_another_account_are_refused(
    env: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of the environment is deployed there: that answer would be wrong."""
    other = {"Account": "999999999999", "Arn": "arn:aws:iam::999999999999:user/me", "UserId": "u"}
    monkeypatch.setattr("operations.aws._session", lambda _: Stubs({"sts:get_caller_identity": other}).session())
    monkeypatch.setattr("config.load.load", lambda *_: env)
    for words in (["status"], ["leaks", "--before-destroy"], ["leaks"]):
        assert run(words) == 2
        assert "but your credentials belong to 999999999999" in capsys.readouterr().err
