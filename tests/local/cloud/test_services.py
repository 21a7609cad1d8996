"""Service calls answer what the stacks made, in the shapes that AWS's own models give."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from local import lifecycle
from local.cloud.services import pod_identity
from tests.local.cloud.conftest import Account, Refused, get, group, hyperpod, lustre, ref, resource, role
from tests.local.cloud.test_rules import _until_running

pytestmark = pytest.mark.cloud


def _unknown_members(account: Account, service: str, operation: str, answer: dict[str, Any]) -> list[str]:
    """Members of an answer that the service's model does not have."""
    shape = account.client(service).meta.service_model.operation_model(operation).output_shape
    found: list[str] = []

    def walk(value: Any, shape: Any, path: str) -> None:
        if shape.type_name == "structure":
            for name, item in value.items():
                if name in shape.members:
                    walk(item, shape.members[name], f"{path}.{name}")
                elif name != "ResponseMetadata":
                    found.append(f"{path}.{name}")
        elif shape.type_name == "list":
            for item in value:
                walk(item, shape.member, path)

    walk(answer, shape, operation)
    return found


def _raw(account: Account, service: str, target: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body as sent, before an SDK drops what it does not know."""
    scope = f"Credential=000000000000/20260101/us-west-2/{service}/aws4_request"
    headers = {"Authorization": f"AWS4-HMAC-SHA256 {scope}", "X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1"}
    request = urllib.request.Request(account.endpoint, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_hyperpod_nodes_join_and_follow_the_group_sizes(account: Account) -> None:
    account.deploy("cluster", hyperpod(group("head"), group("workers", "ml.g7e.12xlarge", 3)))
    _until_running(account, 4)
    account.deploy("cluster", hyperpod(group("head"), group("workers", "ml.g7e.12xlarge", 1)))
    _until_running(account, 2)
    found = account.client("sagemaker").describe_cluster(ClusterName="tests-hyperpod")
    assert {g["InstanceGroupName"]: (g["CurrentCount"], g["TargetCount"]) for g in found["InstanceGroups"]} == {
        "head": (1, 1),
        "workers": (1, 1),
    }


def test_hyperpod_answers_have_no_member_that_aws_lacks(account: Account) -> None:
    account.deploy("cluster", hyperpod(group("head", "ml.g7e.12xlarge", 2)))
    _until_running(account, 2)
    name = {"ClusterName": "tests-hyperpod"}
    nodes = _raw(account, "sagemaker", "SageMaker.ListClusterNodes", name)
    first = nodes["ClusterNodeSummaries"][0]["InstanceId"]
    for operation, given in (
        ("DescribeCluster", name),
        ("ListClusters", {}),
        ("ListClusterNodes", name),
        ("DescribeClusterNode", {**name, "NodeId": first}),
        ("ListClusterEvents", name),
        ("BatchReplaceClusterNodes", {**name, "NodeIds": [first, "i-none"]}),
        ("BatchDeleteClusterNodes", {**name, "NodeIds": ["i-none"]}),
    ):
        answer = _raw(account, "sagemaker", f"SageMaker.{operation}", given)
        assert _unknown_members(account, "sagemaker", operation, answer) == []
    _until_running(account, 2)


def test_a_deleted_node_shrinks_its_group_and_a_replaced_one_comes_back(account: Account) -> None:
    account.deploy("cluster", hyperpod(group("head", count=2)))
    _until_running(account, 2)
    sagemaker = account.client("sagemaker")
    first, second = (n["InstanceId"] for n in sagemaker.list_cluster_nodes(ClusterName="tests-hyperpod")["ClusterNodeSummaries"])
    sagemaker.batch_replace_cluster_nodes(ClusterName="tests-hyperpod", NodeIds=[first])
    _until_running(account, 2)
    now = {n["InstanceId"] for n in sagemaker.list_cluster_nodes(ClusterName="tests-hyperpod")["ClusterNodeSummaries"]}
    assert second in now
    assert first not in now
    sagemaker.batch_delete_cluster_nodes(ClusterName="tests-hyperpod", NodeIds=[second])
    assert sagemaker.describe_cluster(ClusterName="tests-hyperpod")["InstanceGroups"][0]["TargetCount"] == 1


def test_an_unknown_cluster_is_an_error_of_the_service(account: Account) -> None:
    sagemaker = account.client("sagemaker")
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="Cluster with name nobody not found"):
        sagemaker.describe_cluster(ClusterName="nobody")


def test_fsx_answers(account: Account) -> None:
    made = account.deploy("fsx", lustre(), {"Id": ref("FileSystem"), "Mount": get("FileSystem", "LustreMountName")})
    found = account.client("fsx").describe_file_systems(FileSystemIds=[made["Id"]])["FileSystems"][0]
    assert found["Lifecycle"] == "AVAILABLE"
    assert found["LustreConfiguration"]["MountName"] == made["Mount"]
    assert found["DNSName"] == f"{made['Id']}.fsx.us-west-2.amazonaws.com"
    raw = _raw(account, "fsx", "AWSSimbaAPIService_v20180301.DescribeFileSystems", {})
    assert _unknown_members(account, "fsx", "DescribeFileSystems", raw) == []
    with pytest.raises(account.client("fsx").exceptions.FileSystemNotFound):
        account.client("fsx").describe_file_systems(FileSystemIds=["fs-0123456789abcdef0"])


def test_fsx_backups_outlive_their_file_system(account: Account) -> None:
    fsx = account.client("fsx")
    made = account.deploy("fsx", lustre(Tags=[{"Key": "Name", "Value": "shared"}]), {"Id": ref("FileSystem")})
    asked = {"FileSystemId": made["Id"], "ClientRequestToken": "once", "Tags": [{"Key": "Name", "Value": "last"}]}
    backup = fsx.create_backup(**asked)["Backup"]
    assert backup["Lifecycle"] == "CREATING"
    assert fsx.create_backup(**asked)["Backup"]["BackupId"] == backup["BackupId"], "the same request begins no second backup"
    with pytest.raises(fsx.exceptions.BackupInProgress):
        fsx.delete_backup(BackupId=backup["BackupId"])
    assert account.destroy("fsx") == "DELETE_COMPLETE"
    _until(lambda: fsx.describe_backups(BackupIds=[backup["BackupId"]])["Backups"][0]["Lifecycle"] == "AVAILABLE")
    of_it = [{"Name": "file-system-id", "Values": [made["Id"]]}]
    assert [b["BackupId"] for b in fsx.describe_backups(Filters=of_it)["Backups"]] == [backup["BackupId"]]
    raw = _raw(account, "fsx", "AWSSimbaAPIService_v20180301.DescribeBackups", {})
    assert _unknown_members(account, "fsx", "DescribeBackups", raw) == []
    account.deploy("restored", lustre(BackupId=backup["BackupId"]))
    assert fsx.delete_backup(BackupId=backup["BackupId"])["Lifecycle"] == "DELETED"
    with pytest.raises(fsx.exceptions.BackupNotFound):
        fsx.describe_backups(BackupIds=[backup["BackupId"]])
    with pytest.raises(Refused, match=f"Backup '{backup['BackupId']}' does not exist"):
        account.deploy("again", lustre(BackupId=backup["BackupId"]))


def test_fsx_takes_no_backup_where_the_service_takes_none(account: Account) -> None:
    fsx = account.client("fsx")
    with pytest.raises(fsx.exceptions.FileSystemNotFound):
        fsx.create_backup(FileSystemId="fs-0123456789abcdef0")
    scratch = {"DeploymentType": "SCRATCH_2", "PerUnitStorageThroughput": None}
    made = account.deploy("fsx", lustre(LustreConfiguration=scratch), {"Id": ref("FileSystem")})
    with pytest.raises(fsx.exceptions.UnsupportedOperation, match="scratch"):
        fsx.create_backup(FileSystemId=made["Id"])


def test_an_fsx_backup_can_be_made_to_fail(account: Account) -> None:
    fsx = account.client("fsx")
    made = account.deploy("fsx", lustre(), {"Id": ref("FileSystem")})
    lifecycle.set_faults([{"resource": "AWS::FSx::Backup", "action": "create", "fail": "no room"}])
    backup = fsx.create_backup(FileSystemId=made["Id"])["Backup"]["BackupId"]
    _until(lambda: fsx.describe_backups(BackupIds=[backup])["Backups"][0]["Lifecycle"] == "FAILED")
    assert "no room" in fsx.describe_backups(BackupIds=[backup])["Backups"][0]["FailureDetails"]["Message"]
    fsx.delete_backup(BackupId=backup)


def _until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.05)


def test_grafana_service_accounts_and_tokens(account: Account) -> None:
    workspace = resource(
        "AWS::Grafana::Workspace",
        Name="w",
        AccountAccessType="CURRENT_ACCOUNT",
        AuthenticationProviders=["AWS_SSO"],
        PermissionType="CUSTOMER_MANAGED",
    )
    made = account.deploy("grafana", {"Workspace": workspace}, {"Id": ref("Workspace"), "Url": get("Workspace", "Endpoint")})
    grafana, where = account.client("grafana"), {"workspaceId": made["Id"]}
    assert grafana.describe_workspace(**where)["workspace"]["endpoint"] == made["Url"]
    user = grafana.create_workspace_service_account(**where, name="dashboards", grafanaRole="ADMIN")
    with pytest.raises(grafana.exceptions.ConflictException):
        grafana.create_workspace_service_account(**where, name="dashboards", grafanaRole="ADMIN")
    who = {**where, "serviceAccountId": user["id"]}
    token = grafana.create_workspace_service_account_token(**who, name="t", secondsToLive=60)["serviceAccountToken"]
    assert token["key"].startswith("glsa_")
    grafana.delete_workspace_service_account_token(**who, tokenId=token["id"])
    grafana.delete_workspace_service_account(**who)
    assert grafana.list_workspace_service_accounts(**where)["serviceAccounts"] == []


def test_quotas_offerings_and_prices(account: Account) -> None:
    pages = account.client("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode="sagemaker")
    quotas = {q["QuotaName"]: q for page in pages for q in page["Quotas"]}
    quota = quotas["ml.g7e.12xlarge for cluster usage"]
    assert account.client("service-quotas").get_service_quota(ServiceCode="sagemaker", QuotaCode=quota["QuotaCode"])["Quota"] == quota
    found = account.client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": ["g7e.12xlarge"]}]
    )["InstanceTypeOfferings"]
    assert {"usw2-az1", "usw2-az2"} <= {o["Location"] for o in found}
    assert {o["InstanceType"] for o in found} == {"g7e.12xlarge"}
    pricing = account.client("pricing")
    wanted = [{"Type": "TERM_MATCH", "Field": "instanceName", "Value": "ml.g7e.12xlarge"}]
    product = json.loads(pricing.get_products(ServiceCode="AmazonSageMaker", Filters=wanted)["PriceList"][0])
    assert "10.3576" in json.dumps(product["terms"])
    assert pricing.get_products(ServiceCode="AmazonSageMaker", Filters=[{**wanted[0], "Value": "ml.none"}])["PriceList"] == []


def test_a_pods_sdk_gets_the_credentials_of_its_role(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    association = resource(
        "AWS::EKS::PodIdentityAssociation", ClusterName=ref("Eks"), Namespace="ray", ServiceAccount="trainer", RoleArn=get("Pod", "Arn")
    )
    made = account.deploy(
        "identity", {**hyperpod(), "Pod": role("pods.eks.amazonaws.com"), "Association": association}, {"Role": get("Pod", "Arn")}
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    assert made["Role"].rsplit("/", 1)[-1] in _caller(account.endpoint, monkeypatch, "trainer")
    import botocore.exceptions

    association["Properties"]["RoleArn"] = get("EksRole", "Arn")
    account.deploy("identity", {**hyperpod(), "Pod": role("pods.eks.amazonaws.com"), "Association": association})
    with pytest.raises(botocore.exceptions.CredentialRetrievalError, match="does not have permissions to assume"):
        _caller(account.endpoint, monkeypatch, "trainer")
    with pytest.raises(botocore.exceptions.CredentialRetrievalError, match="No Pod Identity association"):
        _caller(account.endpoint, monkeypatch, "other")


def _caller(endpoint: str, monkeypatch: pytest.MonkeyPatch, service_account: str) -> str:
    """Who a pod of this service account is, by its SDK's own way to credentials."""
    import boto3

    port = int(endpoint.rsplit(":", 1)[1])
    for name, value in pod_identity.environment(port, cluster="tests", namespace="ray", service_account=service_account).items():
        monkeypatch.setenv(name, value)
    return str(boto3.session.Session(region_name="us-west-2").client("sts", endpoint_url=endpoint).get_caller_identity()["Arn"])


def test_an_operation_that_is_not_answered_says_so(account: Account) -> None:
    with pytest.raises(account.client("sagemaker").exceptions.ClientError, match="does not answer sagemaker:ListTrainingJobs"):
        account.client("sagemaker").list_training_jobs()
