"""The last backup of a file system, taken when its stack is deleted. For CDK's provider framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3


def on_event(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Begin a backup on delete; the request id makes a repeated call begin no second one."""
    properties = event["ResourceProperties"]
    file_system = properties["FileSystemId"]
    if event["RequestType"] != "Delete":
        return {"PhysicalResourceId": f"final-backup/{file_system}"}
    answer = boto3.client("fsx").create_backup(
        FileSystemId=file_system,
        ClientRequestToken=event["RequestId"][:63],
        Tags=[{"Key": "Name", "Value": f"{properties['Name']}-final"}],
    )
    return {"PhysicalResourceId": event["PhysicalResourceId"], "BackupId": answer["Backup"]["BackupId"]}


def is_complete(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Whether the backup is there. Raises RuntimeError if it failed: the file system then stays."""
    if event["RequestType"] != "Delete":
        return {"IsComplete": True}
    backup = boto3.client("fsx").describe_backups(BackupIds=[event["BackupId"]])["Backups"][0]
    if backup["Lifecycle"] in ("FAILED", "DELETED"):
        detail = backup.get("FailureDetails", {}).get("Message", "no detail given")
        raise RuntimeError(
            f"backup {event['BackupId']} is {backup['Lifecycle']} ({detail}); the file system was kept, delete the stack again"
        )
    return {"IsComplete": backup["Lifecycle"] == "AVAILABLE"}
