"""Gives a Managed Grafana workspace its data sources, dashboards and alert rules, and takes them away on delete.

Everything has a uid of ours, so that a second run replaces and never duplicates. It is done with a token that lives for minutes and is
never stored; its service account is deleted at the end, since a workspace pays for each one that was active.
https://docs.aws.amazon.com/grafana/latest/userguide/Using-Grafana-APIs.html
"""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3

from .custom_resource import LOG, answering
from .grafana_uids import ALERTS, CLOUDWATCH_UID, FOLDER_TITLE, FOLDER_UID, PROMETHEUS_UID

ACCOUNT = "hyperpod-rl-provisioner"
TOKEN_SECONDS = 600
WORKSPACE_ROLE = "ec2_iam_role"


class Refused(RuntimeError):
    """Grafana said no: its status and its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Grafana:
    """The HTTP API of one workspace."""

    base: str
    token: str

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One call; the answer as JSON. Raises Refused, and RuntimeError when the workspace does not answer."""
        request = urllib.request.Request(  # noqa: S310 - https, by the workspace's own description
            self.base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                "Accept": "application/json",
                "X-Disable-Provenance": "true",  # rules stay editable in Grafana
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                text = answer.read()
                return json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            raise Refused(error.code, f"{method} {path}: {error.code} {error.read(1000).decode(errors='replace')}") from None
        except OSError as error:
            raise RuntimeError(f"Grafana at {self.base} does not answer: {error}") from None

    def replace(self, path: str, uid: str, body: Mapping[str, Any]) -> None:
        """Make the thing with this uid what `body` says, whether or not there is one."""
        try:
            self.call("PUT", f"{path}/{uid}", body)
        except Refused as refused:
            if refused.status != 404:
                raise
            self.call("POST", path.removesuffix("/uid"), body)

    def remove(self, path: str) -> None:
        """Delete what is at the path; nothing there is no error."""
        try:
            self.call("DELETE", path)
        except Refused as refused:
            if refused.status != 404:
                raise


@contextmanager
def session(workspace: str) -> Iterator[Grafana | None]:
    """The workspace's API with a fresh token, or None if the workspace is gone. Token and account are deleted, whatever happens."""
    client = boto3.client("grafana")
    try:
        endpoint = client.describe_workspace(workspaceId=workspace)["workspace"]["endpoint"]
    except client.exceptions.ResourceNotFoundException:
        yield None
        return
    listed = client.list_workspace_service_accounts(workspaceId=workspace)["serviceAccounts"]
    for left in [account for account in listed if account["name"] == ACCOUNT]:  # by a run that was killed
        client.delete_workspace_service_account(workspaceId=workspace, serviceAccountId=left["id"])
    account = client.create_workspace_service_account(workspaceId=workspace, grafanaRole="ADMIN", name=ACCOUNT)["id"]
    try:
        made = client.create_workspace_service_account_token(
            workspaceId=workspace, serviceAccountId=account, name=ACCOUNT, secondsToLive=TOKEN_SECONDS
        )
        # A host name; one with a scheme is taken as it is.
        yield Grafana(endpoint if "://" in endpoint else f"https://{endpoint}", made["serviceAccountToken"]["key"])
    finally:
        client.delete_workspace_service_account(workspaceId=workspace, serviceAccountId=account)


def sources(prometheus: str, region: str) -> list[dict[str, Any]]:
    """The data sources, with the workspace's own role as their credentials.

    Grafana shows that choice as "Workspace IAM Role"; its value is `ec2_iam_role`, as in AWS's own provisioning of HyperPod's dashboards:
    https://github.com/aws/sagemaker-hyperpod-cluster-setup, resources/grafana-lambda-function.
    """
    signed = {"sigV4Auth": True, "sigV4AuthType": WORKSPACE_ROLE, "sigV4Region": region}
    return [
        {"uid": PROMETHEUS_UID, "name": "hyperpod-rl Prometheus", "type": "prometheus", "access": "proxy", "url": prometheus,
         "jsonData": {"httpMethod": "POST", **signed}},
        {"uid": CLOUDWATCH_UID, "name": "hyperpod-rl CloudWatch", "type": "cloudwatch", "access": "proxy",
         "jsonData": {"authType": WORKSPACE_ROLE, "defaultRegion": region}},
    ]  # fmt: skip


def documents(bucket: str, key: str) -> dict[str, Any]:
    """The files of the asset by name."""
    body = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")}


def provide(grafana: Grafana, files: Mapping[str, Any], *, prometheus: str, region: str) -> None:
    """Everything as it should be: what is there is replaced, and dashboards and rules of ours that are no longer wanted go."""
    for source in sources(prometheus, region):
        grafana.replace("/api/datasources/uid", source["uid"], source)
    try:
        grafana.call("GET", f"/api/folders/{FOLDER_UID}")
    except Refused as refused:
        if refused.status != 404:
            raise
        grafana.call("POST", "/api/folders", {"uid": FOLDER_UID, "title": FOLDER_TITLE})
    boards = {document["uid"]: document for name, document in files.items() if name != ALERTS}
    rules = {rule["uid"]: rule for rule in files.get(ALERTS, [])}
    for document in boards.values():
        grafana.call("POST", "/api/dashboards/db", {"dashboard": document, "folderUid": FOLDER_UID, "overwrite": True})
    for uid in _boards(grafana) - boards.keys():
        grafana.remove(f"/api/dashboards/uid/{uid}")
    for uid, rule in rules.items():
        grafana.replace("/api/v1/provisioning/alert-rules", uid, rule)
    for uid in _rules(grafana) - rules.keys():
        grafana.remove(f"/api/v1/provisioning/alert-rules/{uid}")


def withdraw(grafana: Grafana) -> None:
    """Everything of ours goes; what others put into the workspace stays."""
    for uid in _rules(grafana):
        grafana.remove(f"/api/v1/provisioning/alert-rules/{uid}")
    for uid in _boards(grafana):
        grafana.remove(f"/api/dashboards/uid/{uid}")
    grafana.remove(f"/api/folders/{FOLDER_UID}")
    for uid in (PROMETHEUS_UID, CLOUDWATCH_UID):
        grafana.remove(f"/api/datasources/uid/{uid}")


def _boards(grafana: Grafana) -> set[str]:
    found = grafana.call("GET", f"/api/search?type=dash-db&folderUIDs={FOLDER_UID}&limit=5000")
    # An older Grafana does not know folderUIDs and answers with all dashboards.
    return {item["uid"] for item in found if item.get("folderUid") == FOLDER_UID}


def _rules(grafana: Grafana) -> set[str]:
    found = grafana.call("GET", "/api/v1/provisioning/alert-rules")
    return {rule["uid"] for rule in found if rule.get("folderUID") == FOLDER_UID}


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Provide on create and update, withdraw on delete. A workspace that is gone holds nothing, which is fine on delete only."""
    wanted = event["ResourceProperties"]
    workspace = wanted["WorkspaceId"]
    with session(workspace) as grafana:
        if event["RequestType"] == "Delete":
            if grafana is None:
                LOG.info("workspace %s is gone, and its dashboards with it", workspace)
            else:
                withdraw(grafana)
        elif grafana is None:
            raise RuntimeError(f"there is no Grafana workspace {workspace}")
        else:
            files = documents(wanted["Bucket"], wanted["Key"])
            provide(grafana, files, prometheus=wanted["PrometheusEndpoint"], region=wanted["Region"])
    return f"grafana/{workspace}", {}


handler = answering(work)
