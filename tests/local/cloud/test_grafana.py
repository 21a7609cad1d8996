"""The function that fills Grafana, against the local cloud's Grafana: what is there after it, after it again, and after its end."""

from __future__ import annotations

import io
import json
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from local.cloud.services import grafana_http, observability
from local.cloud.store import Cloud, Resource
from local.cloud.wire import Request, ServiceError
from stacks.dashboards import documents
from stacks.handlers import grafana
from stacks.handlers.grafana_uids import ALERTS, CLOUDWATCH_UID, FOLDER_UID, PROMETHEUS_UID

WORKSPACE = "g-0123456789"


class Client:
    """boto3's client for the operations that the function calls, on a cloud without a socket."""

    class exceptions:
        class ResourceNotFoundException(Exception):
            pass

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    def __getattr__(self, name: str) -> Any:
        operation = observability.GRAFANA["".join(part.title() for part in name.split("_"))]

        def call(**given: Any) -> Any:
            try:
                return operation(self.cloud, given)
            except ServiceError as error:
                if error.code == "ResourceNotFoundException":
                    raise self.exceptions.ResourceNotFoundException(str(error)) from None
                raise

        return call


@pytest.fixture
def files() -> dict[str, Any]:
    return {name: json.loads(text) for name, text in documents.files().items()}


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch, files: dict[str, Any]) -> Iterator[Resource]:
    cloud = Cloud(port=1)
    made = Resource(grafana_http.GRAFANA_TYPE, WORKSPACE, "Grafana", "Telemetry", {}, {"Endpoint": grafana_http.endpoint(cloud, WORKSPACE)})
    cloud.store.add(made)

    def urlopen(request: urllib.request.Request, **_: object) -> io.BytesIO:
        path, _, query = request.full_url.removeprefix("http://127.0.0.1:1").partition("?")
        headers = {name.lower(): value for name, value in request.header_items()}
        body = request.data if isinstance(request.data, bytes) else b""
        answer = grafana_http.answer(cloud, Request(request.get_method(), path, query, headers, body))
        if answer.status >= 400:
            raise urllib.error.HTTPError(request.full_url, answer.status, "", {}, io.BytesIO(answer.body))  # type: ignore[arg-type]
        return io.BytesIO(answer.body)

    class Bucket:
        @staticmethod
        def get_object(Bucket: str, Key: str) -> dict[str, Any]:
            assert (Bucket, Key) == ("assets", "dashboards.zip")
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for name, document in files.items():
                    archive.writestr(name, json.dumps(document))
            return {"Body": io.BytesIO(packed.getvalue())}

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(boto3, "client", lambda service: Client(cloud) if service == "grafana" else Bucket())
    yield made
    assert made.owned.get("service_accounts", {}) == {}, "no account and no token outlives the function"


def run(request: str, workspace: str = WORKSPACE) -> str:
    properties = {
        "WorkspaceId": workspace, "Bucket": "assets", "Key": "dashboards.zip", "Region": "us-west-2",
        "PrometheusEndpoint": "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1",
    }  # fmt: skip
    return grafana.work({"RequestType": request, "ResourceProperties": properties})[0]


def test_everything_is_there_once_after_two_runs(workspace: Resource, files: dict[str, Any]) -> None:
    assert run("Create") == run("Update") == f"grafana/{WORKSPACE}"
    kept = workspace.owned["grafana"]
    assert set(kept["datasources"]) == {PROMETHEUS_UID, CLOUDWATCH_UID}
    assert kept["datasources"][PROMETHEUS_UID]["jsonData"]["sigV4Auth"] is True
    # What "Workspace IAM Role" is called in the API: AWS's own provisioning of HyperPod's dashboards.
    assert kept["datasources"][PROMETHEUS_UID]["jsonData"]["sigV4AuthType"] == "ec2_iam_role"
    assert set(kept["folders"]) == {FOLDER_UID}
    assert set(kept["dashboards"]) == {name.removesuffix(".json") for name in files if name != ALERTS}
    assert set(kept["rules"]) == {rule["uid"] for rule in files[ALERTS]}


def test_a_dashboard_that_is_no_longer_wanted_goes_and_a_changed_one_is_replaced(workspace: Resource, files: dict[str, Any]) -> None:
    run("Create")
    del files["hyperpod-rl-ray-data.json"]
    files["hyperpod-rl-training.json"]["title"] = "Training now"
    files[ALERTS] = files[ALERTS][1:]
    run("Update")
    kept = workspace.owned["grafana"]
    assert "hyperpod-rl-ray-data" not in kept["dashboards"]
    assert kept["dashboards"]["hyperpod-rl-training"]["title"] == "Training now"
    assert len(kept["rules"]) == len(files[ALERTS])


def test_delete_takes_ours_and_leaves_what_others_made(workspace: Resource) -> None:
    run("Create")
    kept = workspace.owned["grafana"]
    kept["folders"]["team"] = {"uid": "team", "title": "Team"}
    kept["dashboards"]["theirs"] = {"title": "Theirs", "folderUid": "team", "dashboard": {}}
    run("Delete")
    assert run("Delete") == f"grafana/{WORKSPACE}", "a second delete is content"
    assert grafana_http.objects(workspace) == [f"{WORKSPACE} folders team", f"{WORKSPACE} dashboards theirs"]


def test_a_workspace_that_is_gone_is_fine_on_delete_only(workspace: Resource) -> None:
    run("Delete", "g-gone")
    with pytest.raises(RuntimeError, match="there is no Grafana workspace g-gone"):
        run("Create", "g-gone")


def test_a_killed_run_leaves_an_account_that_the_next_one_replaces(workspace: Resource) -> None:
    left = {"id": "7", "name": grafana.ACCOUNT, "grafanaRole": "ADMIN", "isDisabled": "false", "tokens": {}}
    workspace.owned["service_accounts"] = {"7": left}
    run("Create")
    assert workspace.owned["grafana"]["dashboards"]


def test_what_grafana_says_reaches_the_reader(workspace: Resource, files: dict[str, Any]) -> None:
    files["hyperpod-rl-training.json"]["panels"][1]["datasource"]["uid"] = "nowhere"
    with pytest.raises(RuntimeError, match="data source nowhere not found"):
        run("Create")


def test_calls_need_a_token_that_has_not_expired(workspace: Resource) -> None:
    account = {"id": "1", "name": "me", "grafanaRole": "VIEWER", "tokens": {"1": {"key": "k", "expires": time.time() + 60}}}
    workspace.owned["service_accounts"] = {"1": account}
    cloud = Cloud(port=1)
    cloud.store.add(workspace)

    def status(method: str, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return grafana_http.answer(cloud, Request(method, f"{grafana_http.PREFIX}{WORKSPACE}/api/folders", "", headers, b"")).status

    assert (status("GET", "k"), status("GET", ""), status("GET", "other"), status("POST", "k")) == (200, 401, 401, 403)
    account["tokens"]["1"]["expires"] = 0.0  # type: ignore[index]
    assert status("GET", "k") == 401
    workspace.owned.clear()
