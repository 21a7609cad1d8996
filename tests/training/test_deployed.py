"""The look-up of what is deployed, its guards, and the kubeconfig that follows from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from config import names
from config.environment import Environment
from config.load import load
from config.names import Parameter
from config.problems import Refused, Unreachable
from training import deployed, kubeconfig

LOCAL = "http://127.0.0.1:4566"


class FakeAws:
    """A boto3 session with the four calls that are made."""

    def __init__(
        self, *, account: str = "123456789012", parameters: dict[str, str] | None = None, cluster: dict[str, Any] | None = None
    ) -> None:
        self.account, self.parameters, self.cluster = account, parameters or {}, cluster or {}
        self.error: Exception | None = None

    def client(self, service: str, config: object = None) -> FakeAws:
        return self

    def get_caller_identity(self) -> dict[str, str]:
        if self.error:
            raise self.error
        return {"Account": self.account}

    def get_paginator(self, name: str) -> FakeAws:
        assert name == "get_parameters_by_path"
        return self

    def paginate(self, *, Path: str, Recursive: bool) -> list[dict[str, Any]]:
        items = [{"Name": name, "Value": value} for name, value in self.parameters.items() if name.startswith(Path)]
        return [{"Parameters": items[:1]}, {"Parameters": items[1:]}]

    def describe_cluster(self, *, name: str) -> dict[str, Any]:
        if not self.cluster:
            raise ClientError(
                {"Error": {"Code": "ResourceNotFoundException", "Message": f"No cluster found for name: {name}."}}, "DescribeCluster"
            )
        return {"cluster": self.cluster}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Environment:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("HYPERPOD_RL_CACHE", str(tmp_path / "cache"))
    return load("reference", account="123456789012")


def parameters(env: Environment) -> dict[str, str]:
    return {names.parameter(env, Parameter.EKS_CLUSTER): "hyperpod-rl-reference", names.parameter(env, Parameter.ARTIFACT_BUCKET): "bucket",
            "/hyperpod-rl/reference/of-a-later-version": "x"}  # fmt: skip


def test_finds_what_is_there_and_names_the_step_for_what_is_not(env: Environment) -> None:
    known = deployed.lookup(env, FakeAws(parameters=parameters(env)))
    assert known[Parameter.EKS_CLUSTER] == "hyperpod-rl-reference"
    assert known[Parameter.ARTIFACT_BUCKET] == "bucket"
    with pytest.raises(Unreachable, match=r"/hyperpod-rl/reference/grafana-endpoint .*cdk deploy --all -c env=reference"):
        known[Parameter.GRAFANA_ENDPOINT]


def test_credentials_of_another_account(env: Environment) -> None:
    with pytest.raises(Refused, match="your credentials belong to 999999999999"):
        deployed.lookup(env, FakeAws(account="999999999999"))


def test_the_documentation_account_is_said() -> None:
    with pytest.raises(Refused, match=r'write account: "123456789012" into the environment file'):
        deployed.lookup(load("reference"), FakeAws())


def test_no_credentials(env: Environment) -> None:
    aws = FakeAws()
    aws.error = NoCredentialsError()
    with pytest.raises(Unreachable, match="aws sso login"):
        deployed.lookup(env, aws)


def test_access_denied_names_the_call(env: Environment) -> None:
    aws = FakeAws()
    aws.error = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetCallerIdentity")
    with pytest.raises(Unreachable, match="GetCallerIdentity: AccessDenied, no"):
        deployed.lookup(env, aws)


@pytest.mark.parametrize(
    "endpoint", [None, "", "https://eks.us-west-2.amazonaws.com", "http://10.0.0.1:4566", "http://127.0.0.1.example.com", "nonsense"]
)
def test_local_speaks_to_loopback_only(endpoint: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    if endpoint is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(Refused, match="local cloud on this machine only"):
        deployed.session(load("local"))


@pytest.mark.parametrize("endpoint", [LOCAL, "http://localhost:4566", "http://[::1]:4566"])
def test_aws_is_not_looked_for_at_loopback(endpoint: str, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    deployed.check_endpoint(load("local"))
    with pytest.raises(Refused, match="unset AWS_ENDPOINT_URL"):
        deployed.session(env)


@pytest.mark.parametrize("endpoint", ["nonsense", "http://[bad", "ftp://127.0.0.1", "https://"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(Refused, match="begins with http:// or https://"):
        deployed.session(env)


def test_a_profile_or_a_file_that_cannot_be_used_is_said(env: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(Unreachable, match=r"profile \(nobodys\) could not be found; check AWS_PROFILE$"):
        deployed.lookup(env)
    (tmp_path / "config").write_text("[default\nbroken")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_PROFILE")
    with pytest.raises(Unreachable, match=r"Unable to parse config file.*mend that file$"):
        deployed.lookup(env)


@pytest.mark.parametrize(
    ("code", "fix"),
    [("ExpiredToken", "sign in again"), ("InvalidClientTokenId", "its region enabled"), ("Throttling", "run it again in a minute")],
)
def test_a_refusal_says_what_mends_it(env: Environment, code: str, fix: str) -> None:
    aws = FakeAws()
    aws.error = ClientError({"Error": {"Code": code, "Message": "It is so."}}, "GetCallerIdentity")
    with pytest.raises(Unreachable, match=f"GetCallerIdentity: {code}, It is so; .*{fix}"):
        deployed.lookup(env, aws)


CLUSTER = {"status": "ACTIVE", "endpoint": "https://ABC.gr7.us-west-2.eks.amazonaws.com", "certificateAuthority": {"data": "Q0E="}}


def test_the_kubeconfig_holds_no_secret_and_is_ours_alone(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "session", lambda env: FakeAws(parameters=parameters(env), cluster=CLUSTER))
    path = kubeconfig.ensure(env)
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(path.read_text())
    assert content["clusters"][0]["cluster"] == {"server": CLUSTER["endpoint"], "certificate-authority-data": "Q0E="}
    user = content["users"][0]["user"]
    assert set(user) == {"exec"}
    assert user["exec"]["args"][-6:] == ["eks", "get-token", "--cluster-name", "hyperpod-rl-reference", "--output", "json"]
    assert content["current-context"] == content["contexts"][0]["name"]


def test_the_token_is_asked_for_once_and_stays_in_memory(env: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aws = tmp_path / "aws"
    end = (datetime.now(UTC) + timedelta(minutes=14)).isoformat()
    aws.write_text(
        f'#!/bin/sh\necho asked >> "{tmp_path}/asked"\necho \'{{"status": {{"expirationTimestamp": "{end}", "token": "t"}}}}\'\n'
    )
    aws.chmod(0o755)
    monkeypatch.setattr(deployed, "session", lambda env: FakeAws(parameters=parameters(env), cluster=CLUSTER))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    config = kubeconfig.ensure(env)
    login = json.loads(config.read_text())["users"][0]["user"]["exec"]

    def as_kubectl(variables: dict[str, str]) -> str:
        command = [login["command"], *login["args"]]
        return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True).stdout.strip()

    with ThreadPoolExecutor(4) as pool:  # `status` asks for several things at once
        list(pool.map(kubeconfig.credential, [config] * 4))
    for _ in range(3):
        assert json.loads(as_kubectl(kubeconfig.credential(config)))["status"]["token"] == "t"
    assert (tmp_path / "asked").read_text().splitlines() == ["asked"]
    assert json.loads(as_kubectl({}))["status"]["token"] == "t"  # somebody else's kubectl asks AWS itself
    assert "expirationTimestamp" not in config.read_text()


def test_without_a_token_kubectl_is_left_to_say_why(env: Environment, tmp_path: Path) -> None:
    config = tmp_path / "config"
    for text in ("{}", "", '{"users": [{"user": {"exec": {"command": "false", "args": []}}}]}'):
        config.write_text(text)
        assert kubeconfig.credential(config) == {}


def test_a_kubeconfig_that_is_there_asks_nobody(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "session", lambda env: FakeAws(parameters=parameters(env), cluster=CLUSTER))
    kubeconfig.ensure(env)
    monkeypatch.setattr(deployed, "session", lambda env: pytest.fail("AWS was asked"))
    assert kubeconfig.ensure(env).is_file()


def test_another_profile_gets_another_kubeconfig(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "session", lambda env: FakeAws(parameters=parameters(env), cluster=CLUSTER))
    monkeypatch.setenv("AWS_PROFILE", "one")
    kubeconfig.ensure(env)
    monkeypatch.setenv("AWS_PROFILE", "two")
    user = json.loads(kubeconfig.ensure(env).read_text())["users"][0]["user"]
    assert user["exec"]["env"] == [{"name": "AWS_PROFILE", "value": "two"}]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_a_broken_kubeconfig_is_written_anew(text: str, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "session", lambda env: FakeAws(parameters=parameters(env), cluster=CLUSTER))
    kubeconfig.path(env).parent.mkdir(parents=True)
    kubeconfig.path(env).write_text(text)
    assert json.loads(kubeconfig.ensure(env).read_text())["kind"] == "Config"


def test_no_cluster_yet(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "session", lambda env: FakeAws(parameters=parameters(env)))
    with pytest.raises(Unreachable, match="No cluster found"):
        kubeconfig.ensure(env)
    monkeypatch.setattr(
        deployed, "session", lambda env: FakeAws(parameters=parameters(env), cluster={**CLUSTER, "status": "CREATING", "endpoint": None})
    )
    with pytest.raises(Unreachable, match="is CREATING"):
        kubeconfig.ensure(env)
    assert not kubeconfig.path(env).exists()


def test_a_local_environment_takes_no_cluster_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYPERPOD_RL_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", LOCAL)
    env = load("local")
    aws = FakeAws(account=env.account, parameters={names.parameter(env, Parameter.EKS_CLUSTER): "x"}, cluster=CLUSTER)
    monkeypatch.setattr(deployed, "session", lambda env: aws)
    with pytest.raises(Refused, match="on this machine only"):
        kubeconfig.ensure(env)
