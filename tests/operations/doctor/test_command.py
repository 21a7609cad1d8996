"""The command against the local cloud, and with no account at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import run
from local import lifecycle
from tests.local.cloud.conftest import Account, ref, resource

HYPERPOD_RL = Path(sys.executable).parent / "hyperpod-rl"


def _lines(output: str) -> dict[str, tuple[str, str]]:
    """Check -> its worst level, and all that it says."""
    found: dict[str, tuple[str, str]] = {}
    order = ("ok", "warning", "failed")
    for line in json.loads(output)["checks"]:
        level, said = found.get(line["check"], ("ok", ""))
        found[line["check"]] = (max(level, line["level"], key=order.index), f"{said} {line['why']}; {line['fix']}")
    return found


@pytest.fixture
def cloud(daemon: lifecycle.Status, monkeypatch: pytest.MonkeyPatch) -> lifecycle.Status:
    for name, value in lifecycle.environment().items():
        monkeypatch.setenv(name, value)
    return daemon


@pytest.mark.cloud
def test_against_the_local_cloud_it_says_what_is_missing(cloud: lifecycle.Status) -> None:
    done = subprocess.run([str(HYPERPOD_RL), "doctor", "--json"], env=os.environ, capture_output=True, text=True, timeout=60)
    lines = _lines(done.stdout)
    assert done.returncode == 1, done.stderr
    assert lines.pop("bootstrap") == (
        "failed",
        " account 000000000000 is not bootstrapped in us-west-2: there is no parameter /cdk-bootstrap/hnb659fds/version;"
        " cdk bootstrap aws://000000000000/us-west-2",
    )
    assert {name for name, (level, _) in lines.items() if level == "failed"} == set()
    assert {name for name, (level, _) in lines.items() if level == "warning"} == {"image", "service-linked-roles"}
    assert not [text for _, text in lines.values() if "not looked at" in text]


@pytest.mark.cloud
def test_an_environment_that_asks_for_too_much_is_told_so_by_the_local_cloud(
    cloud: lifecycle.Status, account: Account, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    from config.load import ENVIRONMENTS

    data = yaml.safe_load((ENVIRONMENTS / "local.yaml").read_text())
    data["instance_groups"][2] |= {"count": 150, "training_plan_arn": "arn:aws:sagemaker:us-west-2:000000000000:training-plan/sold-out"}
    data["network"]["availability_zone_ids"] = ["usw2-az9", "usw2-az1"]
    data["observability"]["grafana"] = "identity-center"
    data["remote_access"] = {"domain": {"name": "ray.example.com", "hosted_zone_id": "Z0123456789ABCDEFGHIJ"}}
    data["image"] = {"digest": "sha256:" + "a" * 64}
    (tmp_path / "big.yaml").write_text(yaml.safe_dump(data))
    account.deploy("full", {f"Vpc{n}": resource("AWS::EC2::VPC", CidrBlock=f"10.{n}.0.0/16") for n in range(5)}
                   | {"Nodes": resource("AWS::EC2::Subnet", VpcId=ref("Vpc1"), CidrBlock="10.1.0.0/16", AvailabilityZoneId="usw2-az2",
                                        Tags=[{"Key": "Name", "Value": "hyperpod-rl-local-HyperPodSubnet"}])}
                   | {f"Address{n}": resource("AWS::EC2::EIP", Domain="vpc") for n in range(5)}
                   | {"Images": resource("AWS::ECR::Repository", RepositoryName="ray/skyrl-visgym-local")})  # fmt: skip
    assert run(["--env", str(tmp_path / "big.yaml"), "doctor", "--json"]) == 1
    lines = _lines(capsys.readouterr().out)
    assert "`ml.g7e.12xlarge for cluster usage` is 100, and environment local asks for 150" in lines["quota-instances"][1]
    assert "instances per HyperPod cluster is 100, and environment local asks for 152" in lines["quota-cluster"][1]
    assert "VPCs per Region is 5, and environment local asks for 1 beside" in lines["quota-network"][1]
    assert "Elastic IP addresses is 5, and environment local asks for 1 beside 5 in use" in lines["quota-network"][1]
    assert "ml.g7e.12xlarge is not offered in usw2-az9, but in usw2-az1" in lines["offerings"][1]
    assert "group workers: there is no training plan sold-out" in lines["capacity"][1]
    assert "lies in usw2-az2, and the environment names usw2-az9; take it back" in lines["subnet"][1]
    assert "no instance is seen in any region" in lines["identity-center"][1]
    assert "there is no hosted zone Z0123456789ABCDEFGHIJ in account 000000000000" in lines["domain"][1]
    assert "which image.digest pins, is not in ray/skyrl-visgym-local" in lines["image"][1]
    assert "not looked at" not in " ".join(said for _, said in lines.values())


@pytest.mark.cloud
def test_credentials_of_another_account_are_named(
    cloud: lifecycle.Status, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "222222222222")
    assert run(["--env", "local", "doctor", "--json"]) == 1
    level, said = _lines(capsys.readouterr().out)["credentials"]
    assert level == "failed"
    assert "environment local is in account 000000000000, and the credentials belong to 222222222222" in said


def test_without_credentials_it_checks_what_it_can_and_ends_with_three(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert run(["--env", "reference", "doctor", "--json"]) == 3
    lines = _lines(capsys.readouterr().out)
    assert lines["credentials"][0] == "failed"
    assert "Unable to locate credentials; log in first (aws sso login), or set AWS_PROFILE" in lines["credentials"][1]
    assert {name for name, (level, _) in lines.items() if level == "ok"} == {"tools", "nodes"}
    assert all("not looked at" in said for name, (_, said) in lines.items() if name not in ("credentials", "tools", "nodes"))


def test_without_the_local_cloud_its_environment_says_how_to_start_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert run(["--env", "local", "doctor"]) == 3
    assert "run `hyperpod-rl local up`" in capsys.readouterr().out
