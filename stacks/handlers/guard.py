"""Refuses a change that would replace what has no physical name to keep it: an FSx file system with everything on it, the network.

CloudFormation refuses to replace a resource that has a name of its own, such as the EKS and the HyperPod cluster; FSx and subnets take no
name. This custom resource carries the properties that cannot change in place, comes before what it guards, and fails when one of them
does. Its physical id is a digest of them, so that the rollback, which brings them back, passes.

One change passes: a backup that the environment names and did not before. Somebody who writes `restore_from_backup` asks for another file
system. The physical id then also keeps what was before and when, since the rollback of a restore that fails looks as if somebody took
the backup out of the file again, which later would leave an empty file system.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import boto3
from botocore.exceptions import ClientError

from .custom_resource import LOG, answering

# No update of a stack takes longer, and neither does its rollback: a file system comes from its backup in minutes to hours.
ROLLBACK_SECONDS = 12 * 3600
# Kept from some version of this project on: a stack that was deployed before it has none of them, so the file system itself is asked.
LATER = frozenset({"file_system_type_version", "storage_type", "deployment_type", "per_unit_storage_throughput"})
# A right that the same deploy has just given takes IAM some seconds.
DENIED_TRIES, DENIED_SECONDS = 12, 5


def digest(kept: Mapping[str, Any]) -> str:
    """Physical id for these properties."""
    return f"guard/{hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]}"


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Raises RuntimeError naming what may not change."""
    properties = event["ResourceProperties"]
    kept, physical = properties["Kept"], str(event.get("PhysicalResourceId") or digest(properties["Kept"]))
    if event["RequestType"] != "Update" or physical.startswith(digest(kept)):
        # Of a delete too, since there the physical id is that of what is deleted.
        return physical, {}
    before = event.get("OldResourceProperties", {}).get("Kept", {})
    if unknown := [name for name in LATER if kept.get(name) is not None and before.get(name) is None]:
        before = {**before, **_deployed(event["StackId"], unknown)}
    changed = sorted(
        name
        for name in {*kept, *before}
        if kept.get(name) != before.get(name) and not (name in LATER and None in (kept.get(name), before.get(name)))
    )
    if not changed and before:
        return digest(kept), {}
    if changed == ["backup_id"] and kept.get("backup_id"):
        return f"{digest(kept)}/{digest(before)}/{time.time():.0f}", {}
    if _rolls_back(physical, digest(kept)):
        return digest(kept), {}
    raise RuntimeError(
        f"changing {', '.join(changed) or 'this'} would replace the {properties['What']}, and what is in it would not move along; "
        f"nothing was changed. {properties['Fix']}"
    )


def _deployed(stack: str, names: Collection[str]) -> dict[str, str]:
    """What the stack's file system has of these properties; nothing where there is none that could be lost."""
    listed = _patiently(lambda: boto3.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"])
    found = [str(item["PhysicalResourceId"]) for item in listed
             if item["ResourceType"] == "AWS::FSx::FileSystem" and item.get("PhysicalResourceId")]  # fmt: skip
    if not found:
        return {}
    client = boto3.client("fsx")
    try:
        (system,) = _patiently(lambda: client.describe_file_systems(FileSystemIds=found)["FileSystems"])
    except client.exceptions.FileSystemNotFound:
        return {}
    lustre = system.get("LustreConfiguration", {})
    has = {
        "file_system_type_version": system.get("FileSystemTypeVersion"),
        "storage_type": system.get("StorageType"),
        "deployment_type": lustre.get("DeploymentType"),
        "per_unit_storage_throughput": lustre.get("PerUnitStorageThroughput"),
    }
    return {name: str(has[name]) for name in names if has[name] is not None}


def _patiently(ask: Callable[[], Any]) -> Any:
    """The answer of a call that IAM may still refuse for some seconds."""
    for left in reversed(range(DENIED_TRIES)):
        try:
            return ask()
        except ClientError as error:
            if "AccessDenied" not in error.response["Error"]["Code"] or not left:
                raise
            LOG.info("not allowed yet: %s", error)
            time.sleep(DENIED_SECONDS)
    raise AssertionError("the last try answers or raises")


def _rolls_back(physical: str, wanted: str) -> bool:
    """Whether what is wanted is what was there before a restore that began just now."""
    _, _, rest = physical.removeprefix("guard/").partition("/")
    before, _, began = rest.rpartition("/")
    return before == wanted and time.time() - float(began) < ROLLBACK_SECONDS


handler = answering(work)
