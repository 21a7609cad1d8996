"""The record's copy in the artifact bucket: when it is made, where, and that a run never suffers from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config import names
from config.environment import Environment
from config.load import load
from config.problems import Unreachable
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from tests.training.fixtures import shared
from training import artifacts, deployed, follow, jobs, keeping

__all__ = ["shared"]


class Bucket:
    """S3 as boto3 shows it."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, ContentType: str) -> None:
        assert ContentType == "application/json"
        self.objects[(Bucket, Key)] = Body


@pytest.fixture
def mine() -> Environment:
    return load("reference", account="123456789012")


def followed(env: Environment, status: str = "SUCCEEDED") -> list[str]:
    ray, notes = FakeRay(), list[str]()
    attempt = run_folder.attempt(ray, run_folder.log(range(3)), env=env, status=status)
    link = connection(ray, env)
    keeper = keeping.Keeper(link, "maze-1", note=notes.append)
    list(keeping.kept(follow.follow(link, attempt), keeper))
    return notes


def test_the_record_of_a_run_that_ended_is_copied(mine: Environment, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    monkeypatch.setattr(deployed, "client", lambda env, service, aws=None: bucket)
    notes = followed(mine)
    ((name, key), body) = next(iter(bucket.objects.items()))
    assert (name, key) == (names.artifact_bucket(mine), "runs/maze-1/record.json")
    assert json.loads(body) == json.loads((shared / "record.json").read_text())
    assert notes == [f"record copied to s3://{name}/{key}"]


def test_a_copy_that_fails_is_said_and_nothing_else(mine: Environment, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise Unreachable("S3 refused PutObject: AccessDenied")

    monkeypatch.setattr(deployed, "client", refused)
    notes = followed(mine)
    assert notes == ["the record of run maze-1 was not copied to the artifact bucket: S3 refused PutObject: AccessDenied"]
    assert json.loads((shared / "record.json").read_text())["status"] == "SUCCEEDED"


def test_where_there_is_no_bucket_nothing_is_tried(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(deployed, "client", lambda *_, **__: pytest.fail("nobody is asked"))
    assert not artifacts.there(load("local"))
    assert followed(load("reference")) == []
    assert jobs.TERMINAL
