"""Whatever is left over is found: one thing of each kind is planted and must be listed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from local import lifecycle, state
from local.cloud import bootstrap
from tests.local.cloud.conftest import Account, eks, group, hyperpod, lustre, manifest, ref, resource

pytestmark = pytest.mark.cloud

Plant = Callable[[Account], Callable[[], Any]]


def _stack(account: Account) -> Callable[[], Any]:
    account.deploy("left", {"Address": resource("AWS::EC2::EIP", Domain="vpc")})
    return lambda: account.destroy("left")


def _bucket(account: Account) -> Callable[[], Any]:
    s3 = account.client("s3")
    s3.create_bucket(Bucket="left", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_object(Bucket="left", Key="k", Body=b"x")

    def remove() -> None:
        s3.delete_object(Bucket="left", Key="k")
        s3.delete_bucket(Bucket="left")

    return remove


def _role(account: Account) -> Callable[[], Any]:
    account.client("iam").create_role(RoleName="left", AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}')
    return lambda: account.client("iam").delete_role(RoleName="left")


def _key(account: Account) -> Callable[[], Any]:
    kms = account.client("kms")
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    return lambda: kms.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)


def _instance(account: Account) -> Callable[[], Any]:
    ec2 = account.client("ec2")
    made = ec2.run_instances(ImageId="ami-0abcdef1234567890", InstanceType="m5.large", MinCount=1, MaxCount=1)
    instance = made["Instances"][0]["InstanceId"]

    def remove() -> None:
        ec2.terminate_instances(InstanceIds=[instance])
        for volume in ec2.describe_volumes()["Volumes"]:  # the disk outlives it here
            ec2.detach_volume(VolumeId=volume["VolumeId"])
            ec2.delete_volume(VolumeId=volume["VolumeId"])

    return remove


def _call(
    service: str, make: str, undo: str, arguments: dict[str, Any], undo_with: dict[str, Any] | Callable[[Any], dict[str, Any]]
) -> Plant:
    def plant(account: Account) -> Callable[[], Any]:
        client = account.client(service)
        made = getattr(client, make)(**arguments)
        given = undo_with(made) if callable(undo_with) else undo_with
        return lambda: getattr(client, undo)(**given)

    return plant


PLANTS: dict[str, tuple[Plant, ...]] = {
    "CloudFormation stack": (_stack,),
    "Elastic IP address": (_call("ec2", "allocate_address", "release_address", {}, lambda m: {"AllocationId": m["AllocationId"]}),),
    "S3 bucket": (_bucket,),
    "S3 object": (_bucket,),
    "IAM role": (_role,),
    "KMS key": (_key,),
    "Log group": (_call("logs", "create_log_group", "delete_log_group", {"logGroupName": "/left"}, {"logGroupName": "/left"}),),
    "SSM parameter": (
        _call("ssm", "put_parameter", "delete_parameter", {"Name": "/left", "Value": "v", "Type": "String"}, {"Name": "/left"}),
    ),
    "ECR repository": (_call("ecr", "create_repository", "delete_repository", {"repositoryName": "left"}, {"repositoryName": "left"}),),
    "Secret": (
        _call(
            "secretsmanager",
            "create_secret",
            "delete_secret",
            {"Name": "left", "SecretString": "s"},
            {"SecretId": "left", "ForceDeleteWithoutRecovery": True},
        ),
    ),
    "VPC": (_call("ec2", "create_vpc", "delete_vpc", {"CidrBlock": "10.8.0.0/16"}, lambda m: {"VpcId": m["Vpc"]["VpcId"]}),),
    "SNS topic": (_call("sns", "create_topic", "delete_topic", {"Name": "left"}, lambda m: {"TopicArn": m["TopicArn"]}),),
    "CloudWatch dashboard": (
        _call(
            "cloudwatch",
            "put_dashboard",
            "delete_dashboards",
            {"DashboardName": "left", "DashboardBody": '{"widgets":[]}'},
            {"DashboardNames": ["left"]},
        ),
    ),
    "IAM OIDC provider": (
        _call(
            "iam",
            "create_open_id_connect_provider",
            "delete_open_id_connect_provider",
            {"Url": "https://oidc.example.com/left", "ClientIDList": ["sts.amazonaws.com"], "ThumbprintList": ["0" * 40]},
            lambda m: {"OpenIDConnectProviderArn": m["OpenIDConnectProviderArn"]},
        ),
    ),
    "EC2 volume": (
        _call(
            "ec2", "create_volume", "delete_volume", {"AvailabilityZone": "us-west-2a", "Size": 1}, lambda m: {"VolumeId": m["VolumeId"]}
        ),
    ),
    "EC2 instance": (_instance,),
}


@pytest.mark.parametrize("kind", PLANTS)
def test_what_is_left_is_found(kind: str, account: Account) -> None:
    before = lifecycle.inventory()
    remove = PLANTS[kind][0](account)
    planted = set(lifecycle.inventory()[kind]) - set(before.get(kind, []))
    assert len(planted) == 1
    assert f"{kind}: {planted.pop()}" in lifecycle.compare(lifecycle.snapshot())
    remove()
    assert lifecycle.inventory() == before


def test_a_backup_that_is_left_is_found(account: Account) -> None:
    before = lifecycle.inventory()
    made = account.deploy("fsx", lustre(), {"Id": ref("FileSystem")})
    fsx = account.client("fsx")
    backup = fsx.create_backup(FileSystemId=made["Id"])["Backup"]["BackupId"]
    account.destroy("fsx")
    assert f"FSx backup: {backup}" in lifecycle.compare(lifecycle.snapshot())
    limit = time.monotonic() + 120
    while fsx.describe_backups(BackupIds=[backup])["Backups"][0]["Lifecycle"] == "CREATING" and time.monotonic() < limit:
        time.sleep(0.05)
    fsx.delete_backup(BackupId=backup)
    assert lifecycle.inventory() == before


def test_a_kubernetes_object_that_is_left_is_found(account: Account) -> None:
    account.deploy("cluster", eks())
    before = lifecycle.inventory()
    account.deploy("objects", {"Left": manifest("tests", {"kind": "ConfigMap", "metadata": {"name": "left", "namespace": "default"}})})
    assert "Kubernetes object: tests ConfigMap default/left" in lifecycle.compare(lifecycle.snapshot())
    account.destroy("objects")
    assert lifecycle.inventory() == before


def test_what_another_account_has_is_found_too(account: Account, other_account: Account) -> None:
    before = lifecycle.inventory()
    logs = other_account.client("logs")
    logs.create_log_group(logGroupName="/elsewhere")
    assert "Log group: /elsewhere (account 111122223333)" in lifecycle.compare(lifecycle.snapshot())
    logs.delete_log_group(logGroupName="/elsewhere")
    assert lifecycle.inventory() == before


def test_a_whole_environment_is_listed_and_gone_after_its_removal(account: Account) -> None:
    before = lifecycle.inventory()
    account.deploy("all", {**hyperpod(group("head")), **{k: v for k, v in lustre().items() if k == "FileSystem"}})
    found = set(lifecycle.inventory())
    expected = {"VPC", "Subnet", "Security group", "Network interface", "EKS cluster", "HyperPod cluster", "FSx file system", "IAM role"}
    assert expected <= found
    assert "Kubernetes object" in found
    assert account.destroy("all") == "DELETE_COMPLETE"
    assert lifecycle.inventory() == before


def test_the_toolkit_stack_of_cdk_goes_with_what_it_retains(account: Account) -> None:
    before = lifecycle.inventory()
    lifecycle.remove_bootstrap()  # nothing there: no error
    versioned = {"BucketName": "staging", "VersioningConfiguration": {"Status": "Enabled"}}
    bucket = {**resource("AWS::S3::Bucket", **versioned), "DeletionPolicy": "Retain"}
    account.deploy("CDKToolkit", {"Bucket": bucket, "Images": resource("AWS::ECR::Repository", RepositoryName="images")})
    for body in (b"1", b"2"):
        account.client("s3").put_object(Bucket="staging", Key="asset", Body=body)
    account.client("s3").delete_object(Bucket="staging", Key="asset")
    lifecycle.remove_bootstrap()
    account.stacks.remove("CDKToolkit")
    assert lifecycle.inventory() == before


@pytest.mark.parametrize("endpoint", [None, "", "https://cloudformation.us-west-2.amazonaws.com"])
def test_the_bootstrap_of_an_account_is_never_undone(
    endpoint: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    if endpoint is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert bootstrap.main() == 2
    assert "this is for the local cloud alone" in capsys.readouterr().err


def test_ctrl_c_while_the_bootstrap_is_undone_prints_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the call, and never answers
        silent.settimeout(30)
        environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        command = [sys.executable, "-m", "local.cloud.bootstrap"]
        process = subprocess.Popen(command, cwd=state.ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=120)[1] == ""
        assert process.returncode == -signal.SIGINT
