"""The functions' own code, against stand-ins for what they call."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from collections.abc import Mapping
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from stacks.handlers import custom_resource, drain, empty_bucket, kubernetes_api, mirror, nodes_ready

EVENT = {
    "RequestType": "Create",
    "ResponseURL": "https://answers.invalid/1",
    "StackId": "stack",
    "RequestId": "request",
    "LogicalResourceId": "Thing",
    "ResourceProperties": {},
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What CloudFormation is told."""
    told: list[dict[str, Any]] = []

    def urlopen(request: urllib.request.Request, **_: object) -> io.BytesIO:
        assert isinstance(request.data, bytes)
        told.append(json.loads(request.data))
        return io.BytesIO()

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return told


def test_a_failure_is_answered_with_its_reason(answers: list[dict[str, Any]]) -> None:
    def work(_: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        raise RuntimeError("the build ended as FAILED")

    custom_resource.answering(work)({**EVENT, "PhysicalResourceId": "known"}, None)
    assert answers == [
        {
            "Status": "FAILED",
            "PhysicalResourceId": "known",
            "Reason": "the build ended as FAILED",
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "Thing",
        }
    ]


def test_a_long_reason_stays_below_what_cloudformation_takes(answers: list[dict[str, Any]]) -> None:
    def work(_: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        raise RuntimeError("x" * 10_000)

    custom_resource.answering(work)(EVENT, None)
    assert len(json.dumps(answers[0])) < 4096


def test_success_carries_the_attributes(answers: list[dict[str, Any]]) -> None:
    custom_resource.answering(lambda _: ("made", {"Uri": "s3://b/p"}))(EVENT, None)
    assert (answers[0]["Status"], answers[0]["PhysicalResourceId"], answers[0]["Data"]) == ("SUCCESS", "made", {"Uri": "s3://b/p"})


def group(name: str, count: int, gpus: int = 0) -> dict[str, str]:
    return {"Name": name, "Count": str(count), "Gpus": str(gpus)}


@pytest.mark.parametrize(
    ("instances", "ready", "said"),
    [
        ({"workers": {"Running": 2}}, {"workers": [2, 2]}, []),
        ({"workers": {"Running": 1}}, {"workers": [2, 2]}, ["group workers has 1 of 2 instances running"]),
        (
            {"workers": {"Pending": 1, "DeepHealthCheckInProgress": 1}},
            {},
            ["group workers has 0 of 2 instances running (1 DeepHealthCheckInProgress, 1 Pending)"],
        ),
        ({"workers": {"Running": 2}}, {"workers": [2]}, ["group workers has 1 of 2 nodes Ready in Kubernetes"]),
        (
            {"workers": {"Running": 2}},
            {"workers": [2, 0]},
            ["group workers has nodes with 0 allocatable GPUs instead of 2: the device plugin does not run there yet"],
        ),
        ({}, {}, ["group workers has 0 of 2 instances running"]),
    ],
)
def test_missing_nodes_are_named(instances: dict[str, dict[str, int]], ready: dict[str, list[int]], said: list[str]) -> None:
    assert nodes_ready.missing_nodes([group("workers", 2, 2)], instances=instances, ready=ready) == said


def test_a_group_of_none_is_ready() -> None:
    assert nodes_ready.missing_nodes([group("serving", 0, 2)], instances={}, ready={}) == []


def test_the_wait_ends_with_the_events_and_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_ready, "instance_states", lambda _: {"workers": {"Pending": 1}})
    monkeypatch.setattr(nodes_ready, "ready_nodes", lambda _: {})
    monkeypatch.setattr(nodes_ready, "last_events", lambda _: ["workers insufficient capacity in usw2-az2"])
    properties = {"ClusterName": "c", "EksClusterName": "c", "TimeoutMinutes": "55", "Groups": [group("workers", 3, 2)]}
    event = {"RequestType": "Create", "ResourceProperties": properties}
    monkeypatch.setattr(nodes_ready.time, "time", lambda: 10_000.0)
    assert nodes_ready.is_complete({**event, "Began": str(10_000 - 54 * 60)}, None) == {"IsComplete": False}
    with pytest.raises(RuntimeError, match=r"insufficient capacity in usw2-az2.*deploy this stack again") as error:
        nodes_ready.is_complete({**event, "Began": str(10_000 - 55 * 60)}, None)
    assert "group workers has 0 of 3 instances running (1 Pending)" in str(error.value)


@pytest.mark.usefixtures("_credentials")
def test_instances_are_counted_by_state_over_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(group: str, status: str) -> dict[str, Any]:
        state = {"Status": status}
        return {"InstanceGroupName": group, "InstanceId": "i-1", "InstanceType": "ml.m5.xlarge", "LaunchTime": 0, "InstanceStatus": state}

    client = boto3.client("sagemaker")
    with Stubber(client) as stub:
        monkeypatch.setattr(nodes_ready.boto3, "client", lambda _: client)
        first = [node("workers", "Running"), node("workers", "DeepHealthCheckInProgress")]
        stub.add_response("list_cluster_nodes", {"ClusterNodeSummaries": first, "NextToken": "more"})
        stub.add_response(
            "list_cluster_nodes", {"ClusterNodeSummaries": [node("workers", "Running"), node("head", "Pending")], "NextToken": ""}
        )
        assert nodes_ready.instance_states("mine") == {"workers": {"Running": 2, "DeepHealthCheckInProgress": 1}, "head": {"Pending": 1}}


def test_deleting_the_wait_waits_for_nothing() -> None:
    assert nodes_ready.is_complete({"RequestType": "Delete", "ResourceProperties": {}}, None) == {"IsComplete": True}


class Server:
    """An API server with objects at paths; deleting one takes it away, unless it is stuck."""

    def __init__(self, objects: dict[str, list[dict[str, Any]]], stuck: str = "") -> None:
        self.objects, self.stuck, self.deleted = objects, stuck, list[str]()

    def get(self, path: str) -> Mapping[str, Any] | None:
        plural = path.partition("?")[0].rsplit("/", 1)[-1]
        return {"items": self.objects[plural]} if plural in self.objects else None

    def delete(self, path: str, *, first_its_pods: bool = False) -> None:
        self.deleted.append(path + " with its pods" * first_its_pods)
        _, namespace, plural, name = path.rsplit("/", 3)
        if name != self.stuck:
            self.objects[plural] = [item for item in self.objects[plural] if item["metadata"] != {"namespace": namespace, "name": name}]


def thing(name: str, namespace: str = "training", **spec: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain.time, "sleep", lambda _: None)


@pytest.mark.usefixtures("_no_waiting")
def test_the_drain_takes_what_makes_before_what_is_made_and_load_balancers_last() -> None:
    server = Server(
        {
            "deployments": [thing("supervise-maze-1")],
            "jobs": [thing("gate-1")],
            "rayservices": [thing("maze-vlm", "serving")],
            "rayclusters": [thing("maze-vlm-raycluster", "serving"), thing("skyrl-visgym")],
            "services": [thing("kubernetes", "default", type="ClusterIP"), thing("front", "serving", type="LoadBalancer")],
            "ingresses": [thing("door", "serving")],
        }
    )
    drain.drain(server, patience_seconds=60)  # type: ignore[arg-type]
    assert server.deleted == [
        "/apis/apps/v1/namespaces/training/deployments/supervise-maze-1 with its pods",
        "/apis/batch/v1/namespaces/training/jobs/gate-1 with its pods",
        "/apis/ray.io/v1/namespaces/serving/rayservices/maze-vlm",
        "/apis/ray.io/v1/namespaces/serving/rayclusters/maze-vlm-raycluster",
        "/apis/ray.io/v1/namespaces/training/rayclusters/skyrl-visgym",
        "/api/v1/namespaces/serving/services/front",
        "/apis/networking.k8s.io/v1/namespaces/serving/ingresses/door",
    ]
    assert server.objects["services"] == [thing("kubernetes", "default", type="ClusterIP")]


def test_a_cluster_without_ray_has_nothing_to_drain() -> None:
    server = Server({"services": []})
    drain.drain(server, patience_seconds=0)  # type: ignore[arg-type]
    assert server.deleted == []


@pytest.mark.usefixtures("_no_waiting")
def test_what_cannot_be_drained_is_named() -> None:
    server = Server({"rayclusters": [thing("skyrl-visgym")]}, stuck="skyrl-visgym")
    with pytest.raises(RuntimeError, match=r"rayclusters/skyrl-visgym.*finalizers"):
        drain.drain(server, patience_seconds=0)  # type: ignore[arg-type]


JOBS = "/api/v1/namespaces/training/services/skyrl-visgym-head-svc:8265/proxy/api/jobs/"


class Busy(Server):
    """An API server through which a RayCluster's dashboard answers."""

    def __init__(self, jobs: list[dict[str, Any]] | Exception, annotations: dict[str, str] | None = None) -> None:
        cluster = thing("skyrl-visgym")
        cluster["metadata"]["annotations"] = annotations
        cluster["status"] = {"head": {"serviceName": "skyrl-visgym-head-svc"}}
        super().__init__({"rayclusters": [cluster]})
        self.jobs = jobs

    def get(self, path: str) -> Any:
        if path == JOBS:
            if isinstance(self.jobs, Exception):
                raise self.jobs
            return self.jobs
        return super().get(path)


def job(name: str | None, status: str) -> dict[str, Any]:
    return {"submission_id": name, "status": status}


def test_the_drain_refuses_while_a_job_runs_and_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Busy([job("maze-a2", "RUNNING"), job("maze-a1", "FAILED"), job("other-a1", "PENDING"), job(None, "RUNNING")])
    monkeypatch.setattr(drain, "api", lambda _: server)
    with pytest.raises(RuntimeError) as error:
        drain.work({"RequestType": "Delete", "ResourceProperties": {"ClusterName": "c"}})
    assert server.deleted == []
    assert str(error.value) == (
        "nothing was deleted: RayCluster training/skyrl-visgym runs maze-a2, other-a1. "
        "Stop the run (hyperpod-rl stop RUN), or say that its work since the last checkpoint may be lost "
        "(kubectl annotate raycluster NAME -n NAMESPACE hyperpod-rl/may-lose-jobs=true), then destroy again"
    )


@pytest.mark.parametrize(
    "server",
    [
        Busy([job("maze-a1", "SUCCEEDED"), job("maze-a2", "STOPPED")]),
        Busy([]),
        Busy([job("maze-a1", "RUNNING")], {"hyperpod-rl/may-lose-jobs": "true"}),
        Busy(RuntimeError("GET …: 503 no endpoints available")),
        Busy(ValueError("no JSON")),
        Busy(kubernetes_api.Gone("the endpoint does not answer: timed out")),
    ],
    ids=("ended", "none", "may be lost", "head down", "no dashboard", "a network policy in the way"),
)
@pytest.mark.usefixtures("_no_waiting")
def test_the_drain_goes_on_where_nothing_runs_or_what_runs_may_be_lost(monkeypatch: pytest.MonkeyPatch, server: Busy) -> None:
    def delete(path: str, *, first_its_pods: bool) -> None:
        server.deleted.append(path)
        server.objects["rayclusters"] = []

    monkeypatch.setattr(server, "delete", delete)
    monkeypatch.setattr(drain, "api", lambda _: server)
    drain.work({"RequestType": "Delete", "ResourceProperties": {"ClusterName": "c"}})
    assert server.deleted == ["/apis/ray.io/v1/namespaces/training/rayclusters/skyrl-visgym"]


def test_a_cluster_that_is_gone_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise kubernetes_api.Gone(name)

    monkeypatch.setattr(drain, "api", gone)
    assert drain.work({"RequestType": "Delete", "ResourceProperties": {"ClusterName": "c"}}) == ("drain/c", {})


@pytest.mark.parametrize(("seconds", "drained"), [(60, True), (3600, False)])
def test_an_api_server_that_is_silent_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch, seconds: float, drained: bool) -> None:
    """Else the controllers would go before what they made, and a load balancer's interfaces keep the VPC."""
    now = [0.0]
    server = Server({"services": [thing("front", "serving", type="LoadBalancer")]})

    def found(_: str) -> Server:
        if now[0] < seconds:
            raise kubernetes_api.Silent("the endpoint does not answer: timed out")
        return server

    monkeypatch.setattr(drain, "api", found)
    monkeypatch.setattr(drain.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(drain.time, "sleep", lambda waited: now.__setitem__(0, now[0] + waited))
    drain.work({"RequestType": "Delete", "ResourceProperties": {"ClusterName": "c"}})
    assert bool(server.deleted) is drained
    assert now[0] <= max(seconds, drain.SILENCE_SECONDS) + 10


def test_the_drain_does_nothing_on_create_and_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "api", lambda _: pytest.fail("the API server was asked"))
    for request in ("Create", "Update"):
        assert drain.work({"RequestType": request, "ResourceProperties": {"ClusterName": "c"}}) == ("drain/c", {})


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-west-2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


@pytest.mark.usefixtures("_credentials")
def test_a_token_is_a_signed_url_that_names_the_cluster() -> None:
    text = kubernetes_api.token("hyperpod-rl-reference")
    assert text.startswith("k8s-aws-v1.")
    encoded = text.removeprefix("k8s-aws-v1.")
    url = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    assert url.startswith("https://sts.us-west-2.amazonaws.com/?Action=GetCallerIdentity")
    assert "X-Amz-SignedHeaders=host%3Bx-k8s-aws-id" in url
    assert "X-Amz-Expires=60" in url


@pytest.mark.usefixtures("_credentials")
def test_a_bucket_is_emptied_of_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("s3")
    with Stubber(client) as stub:
        versions = {
            "Versions": [{"Key": "a", "VersionId": "1"}, {"Key": "a", "VersionId": "2"}],
            "DeleteMarkers": [{"Key": "b", "VersionId": "3"}],
        }
        stub.add_response("list_object_versions", versions, {"Bucket": "bucket"})
        doomed = [{"Key": "a", "VersionId": "1"}, {"Key": "a", "VersionId": "2"}, {"Key": "b", "VersionId": "3"}]
        stub.add_response("delete_objects", {}, {"Bucket": "bucket", "Delete": {"Objects": doomed, "Quiet": True}})
        stub.add_response("list_multipart_uploads", {"Uploads": [{"Key": "c", "UploadId": "u"}]}, {"Bucket": "bucket"})
        stub.add_response("abort_multipart_upload", {}, {"Bucket": "bucket", "Key": "c", "UploadId": "u"})
        monkeypatch.setattr(empty_bucket.boto3, "client", lambda _: client)
        assert empty_bucket.empty("bucket") == 3
        stub.assert_no_pending_responses()


@pytest.mark.usefixtures("_credentials")
def test_an_object_that_stays_fails_the_delete_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("s3")
    with Stubber(client) as stub:
        stub.add_response("list_object_versions", {"Versions": [{"Key": "locked", "VersionId": "1"}]}, {"Bucket": "bucket"})
        stub.add_response("delete_objects", {"Errors": [{"Key": "locked", "Code": "AccessDenied", "Message": "object lock"}]})
        monkeypatch.setattr(empty_bucket.boto3, "client", lambda _: client)
        with pytest.raises(RuntimeError, match=r"s3://bucket/locked.*AccessDenied object lock"):
            empty_bucket.empty("bucket")


@pytest.mark.usefixtures("_credentials")
def test_an_events_own_full_stop_is_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("sagemaker", region_name="us-west-2")
    monkeypatch.setattr(
        client, "list_cluster_events", lambda **_: {"Events": [{"InstanceGroupName": "workers", "Description": "No capacity."}]}
    )
    monkeypatch.setattr(nodes_ready.boto3, "client", lambda _: client)
    assert nodes_ready.last_events("mine") == ["workers No capacity"]


@pytest.mark.usefixtures("_credentials")
def test_a_failed_mirror_says_where_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("codebuild")
    with Stubber(client) as stub:
        stub.add_response("start_build", {"build": {"id": "charts:1"}}, {"projectName": "charts"})
        build = {
            "id": "charts:1",
            "buildStatus": "FAILED",
            "phases": [{"phaseType": "BUILD", "phaseStatus": "FAILED"}],
            "logs": {"deepLink": "https://logs.invalid"},
        }
        stub.add_response("batch_get_builds", {"builds": [build]}, {"ids": ["charts:1"]})
        monkeypatch.setattr(mirror.boto3, "client", lambda _: client)
        with pytest.raises(RuntimeError, match=r"FAILED in BUILD; read https://logs.invalid"):
            mirror.work({"RequestType": "Create", "ResourceProperties": {"Project": "charts"}})


@pytest.mark.usefixtures("_credentials")
def test_the_mirror_of_images_is_waited_for_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("codebuild")
    event = {"RequestType": "Create", "ResourceProperties": {"Project": "images"}}
    with Stubber(client) as stub:
        monkeypatch.setattr(mirror.boto3, "client", lambda _: client)
        stub.add_response("start_build", {"build": {"id": "images:1"}}, {"projectName": "images"})
        begun = mirror.begin(event, None)
        for status in ("IN_PROGRESS", "SUCCEEDED", "STOPPED"):
            stub.add_response("batch_get_builds", {"builds": [{"id": "images:1", "buildStatus": status}]}, {"ids": ["images:1"]})
        assert mirror.ended({**event, **begun}, None) == {"IsComplete": False}
        assert mirror.ended({**event, **begun}, None) == {"IsComplete": True}
        with pytest.raises(RuntimeError, match="images:1 ended as STOPPED"):
            mirror.ended({**event, **begun}, None)
    gone = {**event, "RequestType": "Delete"}
    assert mirror.begin(gone, None) == {"PhysicalResourceId": "mirror/images"}
    assert mirror.ended(gone, None) == {"IsComplete": True}
