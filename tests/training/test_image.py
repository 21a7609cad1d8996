"""Building the training image, against stand-ins for CodeBuild, ECR and Docker."""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from config import names
from config.environment import Environment
from config.load import load
from config.names import Parameter
from config.problems import Failed, Refused, Unreachable
from training import image

DIGEST, BASE = "sha256:" + "a" * 64, "sha256:" + "b" * 64


class _Missing(ClientError):
    def __init__(self) -> None:
        super().__init__({"Error": {"Code": "ImageNotFoundException", "Message": "not there"}}, "DescribeImages")


class _NoRepository(ClientError):
    def __init__(self) -> None:
        super().__init__({"Error": {"Code": "RepositoryNotFoundException", "Message": "not there"}}, "DescribeImages")


class _Exceptions:
    ImageNotFoundException = _Missing
    RepositoryNotFoundException = _NoRepository


@dataclass
class FakeAws:
    """A boto3 session whose clients are itself. `ends` are the statuses that a build has, one for each look."""

    ends: list[str] = field(default_factory=lambda: ["IN_PROGRESS", "IN_PROGRESS", "SUCCEEDED"])
    images: list[dict[str, Any]] = field(default_factory=list)
    pushes: bool = True
    repository: bool = True
    builds: list[dict[str, Any]] = field(default_factory=list)
    started: list[dict[str, Any]] = field(default_factory=list)
    exceptions: type[_Exceptions] = _Exceptions

    def client(self, service: str, config: object = None) -> FakeAws:
        return self

    def get_caller_identity(self) -> dict[str, str]:
        return {"Account": "111122223333"}

    def get_paginator(self, _: str) -> FakeAws:
        return self

    def paginate(self, *, Path: str, Recursive: bool) -> list[dict[str, Any]]:
        return [{"Parameters": [{"Name": f"{Path}{Parameter.IMAGE_PROJECT.value}", "Value": "the-project"}]}]

    def describe_images(self, *, repositoryName: str, imageIds: list[dict[str, str]]) -> dict[str, Any]:
        if not self.repository:
            raise _NoRepository
        (wanted,) = imageIds
        found = [i for i in self.images if wanted.get("imageTag") in i["imageTags"] or wanted.get("imageDigest") == i["imageDigest"]]
        if not found:
            raise _Missing
        return {"imageDetails": found}

    def get_authorization_token(self) -> dict[str, Any]:
        return {"authorizationData": [{"authorizationToken": base64.b64encode(b"AWS:the-password").decode()}]}

    def start_build(self, **given: Any) -> dict[str, Any]:
        self.started.append(given)
        self.builds.insert(0, {"id": f"the-project:{len(self.started)}", "buildStatus": "IN_PROGRESS", "currentPhase": "QUEUED"})
        return {"build": dict(self.builds[0])}

    def list_builds_for_project(self, *, projectName: str, sortOrder: str) -> dict[str, Any]:
        assert projectName == "the-project"
        return {"ids": [build["id"] for build in self.builds]}

    def batch_get_builds(self, *, ids: list[str]) -> dict[str, Any]:
        found = [build for build in self.builds if build["id"] in ids]
        for build in found:
            if len(ids) == 1 and build["buildStatus"] == "IN_PROGRESS" and self.started:
                build["buildStatus"] = self.ends.pop(0)
                build["currentPhase"] = "BUILD"
                if build["buildStatus"] == "SUCCEEDED" and self.pushes:
                    self.push("2026.11")
                    build["exportedEnvironmentVariables"] = [{"name": "BASE_DIGEST", "value": BASE}]
        return {"builds": [dict(build) for build in found]}

    def push(self, tag: str) -> None:
        moment = datetime(2026, 11, 29, tzinfo=UTC)
        self.images.append({"imageDigest": DIGEST, "imageTags": [tag], "imagePushedAt": moment, "imageSizeInBytes": 7 << 30})


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return load("reference")


def build(env: Environment, aws: FakeAws, builder: image.Builder = "codebuild") -> tuple[image.Outcome, list[str]]:
    said: list[str] = []
    waits: list[float] = []
    done = image.build(env, aws, image.plan(env, builder=builder), note=said.append, sleep=waits.append, clock=lambda: sum(waits))
    return done, said


def test_a_build_is_started_with_everything_that_names_the_image_and_waited_for(env: Environment) -> None:
    aws = FakeAws()
    done, said = build(env, aws)
    assert (done.built, done.image.digest, done.base_digest) == (True, DIGEST, BASE)
    assert done.image.pushed_at == "2026-11-29T00:00:00+00:00"
    (started,) = aws.started
    given = {entry["name"]: entry["value"] for entry in started["environmentVariablesOverride"]}
    training = env.version_set.training
    assert given["TAG"] == env.image.tag
    assert (given["SKYRL_REF"], given["RAY_VERSION"], given["BASE"]) == (training.skyrl_commit, training.ray, training.base)
    assert any("running it again attaches" in line for line in said)


def test_a_pinned_base_is_what_the_build_starts_from(env: Environment) -> None:
    pinned = env.model_copy(update={"image": env.image.model_copy(update={"base_digest": BASE})})
    assert image.plan(pinned, builder="codebuild").arguments["BASE"] == f"{env.version_set.training.base}@{BASE}"


def test_a_tag_that_is_there_is_not_built_again(env: Environment) -> None:
    aws = FakeAws()
    aws.push("2026.11")
    done, _ = build(env, aws)
    assert not done.built
    assert aws.started == []


def test_a_build_that_runs_is_attached_to(env: Environment) -> None:
    aws = FakeAws(ends=["IN_PROGRESS", "SUCCEEDED"])
    aws.start_build()
    done, said = build(env, aws)
    assert done.built
    assert len(aws.started) == 1
    assert any("attached to the-project:1" in line for line in said)


def test_a_build_that_fails_says_where_and_why(env: Environment) -> None:
    aws = FakeAws(ends=["FAILED"])
    with pytest.raises(Failed, match="ended as FAILED"):
        build(env, aws)
    reasons = {"phases": [{"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": "exit status 1"}]}]}
    assert image._reason(reasons) == "exit status 1"


def test_a_build_that_pushed_nothing_is_no_success(env: Environment) -> None:
    with pytest.raises(Failed, match="ECR has no image"):
        build(env, FakeAws(pushes=False))


def test_a_build_that_never_ends_is_given_up(env: Environment) -> None:
    with pytest.raises(Failed, match="has not ended after 4 hours"):
        build(env, FakeAws(ends=["IN_PROGRESS"] * 2000))


def test_without_a_repository_the_step_before_is_named(env: Environment) -> None:
    with pytest.raises(Unreachable, match="cdk deploy Data -c env=reference"):
        build(env, FakeAws(repository=False))


def test_the_local_cloud_builds_without_docker() -> None:
    local = load("local")
    assert image.plan(local).builder == "codebuild"
    with pytest.raises(Refused, match="no registry"):
        image.plan(local, builder="docker")


SCRIPT = """#!/bin/sh
echo "$@" >> "$LOG"
[ "$1" = login ] && cat >> "$LOG" && echo >> "$LOG"
[ "$1" = inspect ] && echo base@{base}
[ "$1" = push ] && touch "$LOG.pushed"
exit ${{FAIL:-0}}
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that writes down how it was called."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(SCRIPT.format(base=BASE))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_docker_builds_from_the_bases_digest_and_takes_the_password_on_standard_input(env: Environment, docker: Path) -> None:
    assert image.plan(env).builder == "docker"
    aws = FakeAws()
    looked = aws.describe_images

    def after_the_push(**given: Any) -> dict[str, Any]:
        if Path(f"{docker}.pushed").exists() and not aws.images:
            aws.push("2026.11")
        return looked(**given)

    aws.describe_images = after_the_push  # type: ignore[method-assign]
    done, _ = build(env, aws, "docker")
    assert (done.built, done.base_digest) == (True, BASE)
    calls = docker.read_text().splitlines()
    (built,) = [line for line in calls if line.startswith("build ")]
    assert f"--build-arg=BASE=base@{BASE}" in built
    assert f"--tag {names.image_uri(env)}" in built
    (login,) = [line for line in calls if line.startswith("login ")]
    assert "the-password" not in login
    assert "the-password" in calls
    assert aws.started == []


def test_a_step_of_docker_that_fails_is_named(env: Environment, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(Failed, match="`docker pull` failed"):
        build(env, FakeAws(), "docker")


def test_what_ecr_lacks_is_one_sentence_with_the_command_that_mends_it(env: Environment) -> None:
    aws = FakeAws()
    problem = image.missing(env, aws, environment_name="mine.yaml")
    assert str(problem) == (
        f"image.tag = 2026.11: ECR has no image of this tag in the repository {names.image_repository(env)};"
        " run `hyperpod-rl --env mine.yaml image build` first."
    )
    aws.push("2026.11")
    assert image.missing(env, aws) is None
    pinned = env.model_copy(update={"image": env.image.model_copy(update={"digest": "sha256:" + "0" * 64})})
    problem = image.missing(pinned, aws)
    assert problem is not None
    assert problem.field == "image.digest"
    assert image.missing(load("local"), None) is None
