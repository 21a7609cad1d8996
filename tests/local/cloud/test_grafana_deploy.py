"""The function that fills Grafana as a deploy runs it: a process with its own role's rights, on the running local cloud."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from local import lifecycle
from stacks.dashboards.documents import files
from stacks.handlers import grafana
from tests.local.cloud.conftest import Account, Refused, Template, get, ref, resource

pytestmark = pytest.mark.cloud
BUCKET = "grafana-assets"
HANDLERS = Path(grafana.__file__).parent
RIGHTS = [
    "DescribeWorkspace", "ListWorkspaceServiceAccounts", "CreateWorkspaceServiceAccount", "CreateWorkspaceServiceAccountToken",
    "DeleteWorkspaceServiceAccount",
]  # fmt: skip


def packed(files: dict[str, bytes]) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return body.getvalue()


def template(key: str, rights: list[str]) -> Template:
    trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}]}
    workspace = {"Fn::Sub": "arn:aws:grafana:us-west-2:${AWS::AccountId}:/workspaces/${Workspace}"}
    allowed = [
        {"Effect": "Allow", "Action": [f"grafana:{name}" for name in rights], "Resource": workspace},
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/*"},
    ]
    return {
        "Workspace": resource(
            "AWS::Grafana::Workspace", Name="content", AccountAccessType="CURRENT_ACCOUNT", AuthenticationProviders=["SAML"],
            PermissionType="CUSTOMER_MANAGED",
        ),
        "Role": resource(
            "AWS::IAM::Role", AssumeRolePolicyDocument=trust, Policies=[{"PolicyName": "own", "PolicyDocument": {"Statement": allowed}}]
        ),
        "Function": resource(
            "AWS::Lambda::Function", Runtime="python3.14", Handler="handlers.grafana.handler", Role=get("Role", "Arn"), Timeout=60,
            Code={"S3Bucket": BUCKET, "S3Key": "handlers.zip"},
        ),
        "Content": resource(
            "Custom::GrafanaContent", ServiceToken=get("Function", "Arn"), WorkspaceId=ref("Workspace"), Bucket=BUCKET, Key=key,
            PrometheusEndpoint="https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1", Region="us-west-2",
        ),
    }  # fmt: skip


def test_content_comes_changes_and_goes_with_its_stack(account: Account) -> None:
    s3 = account.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    built = {name: text.encode() for name, text in files().items()}
    fewer = {name: content for name, content in built.items() if "ray-data" not in name}
    uploads = {
        "handlers.zip": packed({f"handlers/{path.name}": path.read_bytes() for path in HANDLERS.glob("*.py")}),
        "all.zip": packed(built),
        "fewer.zip": packed(fewer),
    }
    for key, body in uploads.items():
        s3.put_object(Bucket=BUCKET, Key=key, Body=body)
    try:
        account.deploy("content", template("all.zip", RIGHTS))
        there = lifecycle.inventory()["Grafana object"]
        assert sum(" dashboards " in line for line in there) == len(built) - 1
        assert any(line.endswith("dashboards hyperpod-rl-ray-data") for line in there)
        account.deploy("content", template("fewer.zip", RIGHTS))
        assert not any(line.endswith("dashboards hyperpod-rl-ray-data") for line in lifecycle.inventory()["Grafana object"])
        assert account.destroy("content") == "DELETE_COMPLETE"
        assert lifecycle.inventory().get("Grafana object", []) == []
        with pytest.raises(Refused, match="grafana:CreateWorkspaceServiceAccount"):
            account.deploy("poor", template("all.zip", RIGHTS[:2]))
    finally:
        for key in uploads:
            s3.delete_object(Bucket=BUCKET, Key=key)
        s3.delete_bucket(Bucket=BUCKET)
