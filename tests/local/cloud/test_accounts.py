"""Each account sees its own things only, and a cluster lets in whom its access entries name."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from local import lifecycle
from tests.local.cloud.conftest import Account, eks, get, group, hyperpod, lustre, ref, resource, role
from tests.local.cloud.test_rules import _until_running

pytestmark = pytest.mark.cloud
VIEW = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSAdminViewPolicy"


def test_a_stack_of_another_account_lies_in_that_account(account: Account, other_account: Account) -> None:
    rule = {"GroupId": get("Group", "GroupId"), "IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "CidrIp": "10.9.0.0/16"}
    outputs = {"Role": get("NodeRole", "Arn"), "HyperPod": get("HyperPod", "ClusterArn"), "Group": get("Group", "GroupId")}
    # The same names in both accounts, but for the EKS cluster's: it is part of a path on this machine.
    account.deploy("same", lustre())
    resources = {**hyperpod(group("head")), "FileSystem": lustre()["FileSystem"], "In": resource("AWS::EC2::SecurityGroupIngress", **rule)}
    made = other_account.deploy("same", resources, outputs)
    assert made["Role"].split(":")[4] == made["HyperPod"].split(":")[4] == "111122223333"
    _until_running(other_account, 1)
    assert account.client("sagemaker").list_clusters()["ClusterSummaries"] == []
    ours, theirs = (a.client("fsx").describe_file_systems()["FileSystems"][0] for a in (account, other_account))
    assert (ours["OwnerId"], theirs["OwnerId"]) == ("000000000000", "111122223333")
    assert ours["FileSystemId"] != theirs["FileSystemId"]
    found = other_account.client("ec2").describe_security_groups(GroupIds=[made["Group"]])["SecurityGroups"][0]
    assert [p["FromPort"] for p in found["IpPermissions"]] == [988]
    with pytest.raises(account.client("ec2").exceptions.ClientError, match="NotFound"):
        account.client("ec2").describe_security_groups(GroupIds=[made["Group"]])
    assert other_account.destroy("same") == "DELETE_COMPLETE"
    assert other_account.client("ec2").describe_network_interfaces()["NetworkInterfaces"] == []


def _enters(daemon: lifecycle.Status, credentials: dict[str, str]) -> bool:
    """Whether `kubectl get namespaces` would be answered with these credentials."""
    token = _token(credentials)
    bundle = str(lifecycle.environment()["SSL_CERT_FILE"])
    assert daemon.ports is not None
    url = f"https://127.0.0.1:{daemon.ports.kubernetes}/clusters/tests/api/v1/namespaces"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=120, context=ssl.create_default_context(cafile=bundle)) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code == 403:
            return False
        raise


def _token(credentials: dict[str, str]) -> str:
    """As `aws eks get-token` makes it."""
    command = [str(Path(sys.executable).parent / "aws"), "eks", "get-token", "--cluster-name", "tests", "--region", "us-west-2"]
    environment = {**os.environ, **credentials, "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return str(json.loads(done.stdout)["status"]["token"])


def _key(key: str, secret: str = "local", session: str = "") -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": session}


def _session(account: Account, arn: str) -> dict[str, str]:
    found: dict[str, Any] = account.client("sts").assume_role(RoleArn=arn, RoleSessionName="someone")["Credentials"]
    return _key(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])


def test_a_cluster_lets_in_its_account_and_the_roles_with_an_access_entry(daemon: lifecycle.Status, account: Account) -> None:
    allowed = {**role("pods.eks.amazonaws.com")}
    entry = resource(
        "AWS::EKS::AccessEntry",
        ClusterName=ref("Eks"),
        PrincipalArn=get("Seen", "Arn"),
        AccessPolicies=[{"PolicyArn": VIEW, "AccessScope": {"Type": "cluster"}}],
    )
    resources = {**eks(), "Seen": allowed, "Unseen": role("pods.eks.amazonaws.com"), "Entry": entry}
    made = account.deploy("access", resources, {name: get(name, "Arn") for name in ("Seen", "Unseen")})
    assert _enters(daemon, _key("000000000000"))
    assert _enters(daemon, _session(account, made["Seen"]))
    assert not _enters(daemon, _session(account, made["Unseen"]))
    assert not _enters(daemon, _key("111122223333")), "another account's own key"
    assert not _enters(daemon, _key("AKIAIOSFODNN7EXAMPLE")), "nobody's key"
