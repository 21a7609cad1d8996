"""`hyperpod-rl image` against the local cloud: its CodeBuild pushes an image without layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run
from config import names
from config.load import ENVIRONMENTS, load
from tests.local.cloud.conftest import Account, Template, get, ref, resource, role

pytestmark = pytest.mark.cloud


@pytest.fixture
def environment(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of one's own, beside a repository and a project as the stack Data makes them."""
    for name, value in {"AWS_ENDPOINT_URL": account.endpoint, "AWS_ACCESS_KEY_ID": account.key, "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "mine.yaml"
    path.write_text((ENVIRONMENTS / "local.yaml").read_text())
    account.deploy("data", _data(path))
    return path


def _data(path: Path) -> Template:
    env = load(str(path))
    uri = names.image_uri(env).rpartition(":")[0]
    return {
        "Images": resource("AWS::ECR::Repository", RepositoryName=names.image_repository(env), EmptyOnDelete=True),
        "Role": role("codebuild.amazonaws.com"),
        "Project": resource(
            "AWS::CodeBuild::Project",
            Name="build-the-image",
            ServiceRole=get("Role", "Arn"),
            Source={"Type": "NO_SOURCE", "BuildSpec": "version: 0.2"},
            Artifacts={"Type": "NO_ARTIFACTS"},
            Environment={
                "Type": "LINUX_CONTAINER",
                "ComputeType": "BUILD_GENERAL1_SMALL",
                "Image": "aws/codebuild/amazonlinux-x86_64-standard:5.0",
                "EnvironmentVariables": [{"Name": "IMAGE", "Value": uri}, {"Name": "TAG", "Value": env.image.tag}],
            },
        ),
        "Parameter": resource(
            "AWS::SSM::Parameter", Name=names.parameter(env, names.Parameter.IMAGE_PROJECT), Type="String", Value=ref("Project")
        ),
    }


def test_build_pins_what_status_then_finds(environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> tuple[int, dict[str, object]]:
        code = run(["--env", str(environment), "--json", *words])
        return code, json.loads(capsys.readouterr().out)

    assert said("image", "status")[1]["state"] == "absent"
    code, dry = said("image", "build", "--dry-run")
    assert (code, dry["builder"]) == (0, "codebuild")
    assert said("image", "status")[1]["state"] == "absent"
    code, built = said("image", "build")
    assert (code, built["built"], built["pinned"]) == (0, True, True)
    assert load(str(environment)).image.digest == built["digest"]
    assert said("image", "status")[1]["state"] == "pinned"
    code, again = said("image", "build")
    assert (code, again["built"], again["digest"]) == (0, False, built["digest"])


def test_a_build_that_fails_pins_nothing(environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from local import lifecycle

    lifecycle.set_faults([{"resource": "AWS::CodeBuild::Project", "action": "update", "fail": "no space left on device"}])
    assert run(["--env", str(environment), "image", "build"]) == 1
    assert "no space left on device" in capsys.readouterr().err
    assert load(str(environment)).image.digest is None
