"""The last backup of a file system: begun once, waited for, and never made of a file system that held nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from stacks.handlers import final_backup

ID = "backup-0123456789abcdef0"
DELETE = {
    "RequestType": "Delete",
    "RequestId": "request",
    "StackId": "arn:aws:cloudformation:us-west-2:111122223333:stack/hyperpod-rl-mine-Data/1",
    "PhysicalResourceId": "final-backup/fs-0123456789abcdef0",
    "ResourceProperties": {"FileSystemId": "fs-0123456789abcdef0", "Name": "hyperpod-rl-reference"},
}


@pytest.fixture
def fsx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-west-2"}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("fsx")
    monkeypatch.setattr(final_backup, "_never_there", lambda _: False)
    monkeypatch.setattr(final_backup.boto3, "client", lambda _: client)
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


def backup(lifecycle: str, **more: object) -> dict[str, Any]:
    made = {"BackupId": ID, "Type": "USER_INITIATED", "CreationTime": 0, "FileSystem": {}, "Lifecycle": lifecycle}
    return {**made, "Tags": [{"Key": "Name", "Value": "hyperpod-rl-reference-final"}], **more}


def earlier(stub: Stubber, *backups: dict[str, Any]) -> None:
    stub.add_response(
        "describe_backups", {"Backups": list(backups)}, {"Filters": [{"Name": "file-system-id", "Values": ["fs-0123456789abcdef0"]}]}
    )


@pytest.mark.parametrize(("lifecycle", "complete"), [("CREATING", False), ("AVAILABLE", True)])
def test_it_is_waited_for(fsx: Stubber, lifecycle: str, complete: bool) -> None:
    # A nightly backup is none, nor is the last one of an earlier delete, after which somebody went on training.
    earlier(fsx, backup("CREATING", Tags=[{"Key": "Name", "Value": "nightly"}]), backup("AVAILABLE"))
    fsx.add_response("create_backup", {"Backup": backup("CREATING")})
    fsx.add_response("describe_backups", {"Backups": [backup(lifecycle)]}, {"BackupIds": [ID]})
    begun = final_backup.on_event(DELETE, None)
    assert begun["BackupId"] == ID
    assert final_backup.is_complete({**DELETE, **begun}, None) == {"IsComplete": complete}


@pytest.mark.parametrize("lifecycle", ["PENDING", "CREATING", "TRANSFERRING"])
def test_a_delete_that_is_tried_again_waits_for_the_backup_that_still_runs(fsx: Stubber, lifecycle: str) -> None:
    earlier(fsx, backup(lifecycle))
    assert final_backup.on_event({**DELETE, "RequestId": "another"}, None)["BackupId"] == ID


def test_one_that_failed_keeps_the_file_system(fsx: Stubber) -> None:
    fsx.add_response("describe_backups", {"Backups": [backup("FAILED", FailureDetails={"Message": "no space"})]})
    with pytest.raises(RuntimeError, match=r"FAILED \(no space\); the file system was kept"):
        final_backup.is_complete({**DELETE, "BackupId": ID}, None)


def test_a_file_system_that_is_gone_needs_none(fsx: Stubber) -> None:
    earlier(fsx)
    fsx.add_client_error("create_backup", "FileSystemNotFound")
    begun = final_backup.on_event(DELETE, None)
    assert final_backup.is_complete({**DELETE, **begun}, None) == {"IsComplete": True}


@pytest.mark.parametrize(("status", "asked"), [("ROLLBACK_IN_PROGRESS", False), ("DELETE_IN_PROGRESS", True)])
def test_the_rollback_of_a_first_creation_leaves_no_backup_of_nothing(monkeypatch: pytest.MonkeyPatch, status: str, asked: bool) -> None:
    class CloudFormation:
        def describe_stacks(self, **given: str) -> dict[str, Any]:
            assert given == {"StackName": DELETE["StackId"]}
            return {"Stacks": [{"StackStatus": status}]}

    def client(service: str) -> CloudFormation:
        if service != "cloudformation":
            raise LookupError(service)
        return CloudFormation()

    monkeypatch.setattr(final_backup.boto3, "client", client)
    begin: Callable[[], dict[str, Any]] = lambda: final_backup.on_event(DELETE, None)  # noqa: E731
    if asked:
        with pytest.raises(LookupError, match="fsx"):
            begin()
    else:
        assert begin() == {"PhysicalResourceId": DELETE["PhysicalResourceId"]}
        assert final_backup.is_complete({**DELETE, **begin()}, None) == {"IsComplete": True}
