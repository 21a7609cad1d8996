"""The last backup of a file system, taken when its stack is deleted. For CDK's provider framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3

# https://docs.aws.amazon.com/fsx/latest/APIReference/API_Backup.html
UNDER_WAY = ("PENDING", "CREATING", "TRANSFERRING")


def on_event(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Begin a backup on delete; the request id makes a repeated call begin no second one. Nothing there needs no backup.

    A delete that is tried again after an hour goes on waiting for the backup that still runs: FSx makes one at a time. When the stack's
    very first creation is rolled back nothing is on the file system, and a backup of it would only be left over.
    """
    properties = event["ResourceProperties"]
    file_system = properties["FileSystemId"]
    if event["RequestType"] != "Delete":
        return {"PhysicalResourceId": f"final-backup/{file_system}"}
    same = {"PhysicalResourceId": event["PhysicalResourceId"]}
    if _never_there(event["StackId"]):
        return same
    client, name = boto3.client("fsx"), f"{properties['Name']}-final"
    if running := _under_way(client, file_system, name):
        return {**same, "BackupId": running}
    try:
        answer = client.create_backup(
            FileSystemId=file_system,
            ClientRequestToken=event["RequestId"][:63],
            Tags=[{"Key": "Name", "Value": name}],
        )
    except client.exceptions.FileSystemNotFound:
        return same
    return {**same, "BackupId": answer["Backup"]["BackupId"]}


def _never_there(stack: str) -> bool:
    """Whether the delete belongs to the rollback of the stack's creation."""
    found = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return bool(found and found[0]["StackStatus"] == "ROLLBACK_IN_PROGRESS")


def _under_way(client: Any, file_system: str, name: str) -> str | None:
    """The id of a last backup of this file system that an earlier delete began."""
    pages = client.get_paginator("describe_backups").paginate(Filters=[{"Name": "file-system-id", "Values": [file_system]}])
    for backup in (item for page in pages for item in page["Backups"]):
        if backup["Lifecycle"] in UNDER_WAY and {"Key": "Name", "Value": name} in backup.get("Tags", ()):
            return str(backup["BackupId"])
    return None


def is_complete(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Whether the backup is there. Raises RuntimeError if it failed: the file system then stays."""
    if event["RequestType"] != "Delete" or "BackupId" not in event:
        return {"IsComplete": True}
    backup = boto3.client("fsx").describe_backups(BackupIds=[event["BackupId"]])["Backups"][0]
    if backup["Lifecycle"] in ("FAILED", "DELETED"):
        detail = backup.get("FailureDetails", {}).get("Message", "no detail given")
        raise RuntimeError(
            f"backup {event['BackupId']} is {backup['Lifecycle']} ({detail}); the file system was kept, delete the stack again"
        )
    return {"IsComplete": backup["Lifecycle"] == "AVAILABLE"}
