"""The last backup of a file system, taken when its stack is deleted. For CDK's provider framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3


def on_event(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Begin a backup on delete; the request id makes a repeated call begin no second one. Nothing there needs no backup."""
    properties = event["ResourceProperties"]
    file_system = properties["FileSystemId"]
    if event["RequestType"] != "Delete":
        return {"PhysicalResourceId": f"final-backup/{file_system}"}
    client = boto3.client("fsx")
    try:
        answer = client.create_backup(
            FileSystemId=file_system,
            ClientRequestToken=event["RequestId"][:63],
            Tags=[{"Key": "Name", "Value": f"{properties['Name']}-final"}],
        )
    except client.exceptions.FileSystemNotFound:
        return {"PhysicalResourceId": event["PhysicalResourceId"]}
    return {"PhysicalResourceId": event["PhysicalResourceId"], "BackupId": answer["Backup"]["BackupId"]}


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
