"""FSx: https://docs.aws.amazon.com/fsx/latest/APIReference/"""

from __future__ import annotations

import time
from typing import Any

from local.cloud.attributes import drawn
from local.cloud.faults import Injected
from local.cloud.store import Cloud, Resource, arn, tags
from local.cloud.wire import Answer, Operation, ServiceError

FILE_SYSTEM = "AWS::FSx::FileSystem"
ASSOCIATION = "AWS::FSx::DataRepositoryAssociation"
# No type of CloudFormation's, but kept, listed and counted as a resource like the others.
BACKUP = "AWS::FSx::Backup"
# A backup is CREATING this long; on AWS it takes minutes to hours.
BACKUP_SECONDS = 0.5


def _tag_list(properties: dict[str, Any]) -> list[dict[str, str]]:
    return [{"Key": k, "Value": v} for k, v in tags(properties).items()]


def describe_file_systems(cloud: Cloud, given: dict[str, Any]) -> Answer:
    wanted = given.get("FileSystemIds")
    found = {r.id: r for r in cloud.store.all(FILE_SYSTEM)}
    for identifier in wanted or []:
        if identifier not in found:
            raise ServiceError("FileSystemNotFound", f"File system '{identifier}' does not exist.")
    return {"FileSystems": [_file_system(r) for r in found.values() if not wanted or r.id in wanted]}


def _file_system(r: Resource) -> Answer:
    p, lustre = r.properties, r.properties.get("LustreConfiguration", {})
    shown = ("DeploymentType", "PerUnitStorageThroughput", "DataCompressionType", "MetadataConfiguration")
    return {
        "FileSystemId": r.id,
        "OwnerId": r.account,
        "CreationTime": r.created,
        "FileSystemType": p["FileSystemType"],
        "FileSystemTypeVersion": p.get("FileSystemTypeVersion", "2.10"),
        "Lifecycle": "AVAILABLE",
        "StorageCapacity": int(p.get("StorageCapacity", 0)),
        "StorageType": p.get("StorageType", "SSD"),
        "SubnetIds": p.get("SubnetIds", []),
        "NetworkInterfaceIds": r.owned.get("interfaces", []),
        "DNSName": r.attributes["DNSName"],
        "ResourceARN": r.attributes["ResourceARN"],
        "LustreConfiguration": {
            "MountName": r.attributes["LustreMountName"],
            **{name: _number(lustre[name]) for name in shown if name in lustre},
        },
        "Tags": _tag_list(p),
    }


def _number(value: Any) -> Any:
    """A template may write numbers as text; the API answers numbers."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def describe_associations(cloud: Cloud, given: dict[str, Any]) -> Answer:
    wanted = given.get("AssociationIds")
    answer = []
    for r in cloud.store.all(ASSOCIATION):
        if wanted and r.id not in wanted:
            continue
        p = r.properties
        shown = ("FileSystemId", "FileSystemPath", "DataRepositoryPath", "BatchImportMetaDataOnCreate", "ImportedFileChunkSize", "S3")
        answer.append(
            {
                "AssociationId": r.id,
                "ResourceARN": r.attributes["ResourceARN"],
                "Lifecycle": "AVAILABLE",
                "CreationTime": r.created,
                **{name: _number(p[name]) for name in shown if name in p},
            }
        )
    return {"Associations": answer}


def create_backup(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """Begin a backup of a file system, or tell of the one that the same ClientRequestToken has begun.

    Only persistent file systems that are not linked to a data repository have backups:
    https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateBackup.html
    """
    token, identifier = given.get("ClientRequestToken"), str(given.get("FileSystemId"))
    begun = next((r for r in cloud.store.all(BACKUP) if token and r.properties["ClientRequestToken"] == token), None)
    if begun is not None:
        return {"Backup": _backup(begun)}
    system = cloud.store.get(FILE_SYSTEM, identifier)
    if system is None:
        raise ServiceError("FileSystemNotFound", f"File system '{identifier}' does not exist.")
    if not str(system.properties.get("LustreConfiguration", {}).get("DeploymentType", "SCRATCH_1")).startswith("PERSISTENT"):
        raise ServiceError("UnsupportedOperation", "Backups are not supported for scratch file systems.")
    if any(cloud.store.where(ASSOCIATION, FileSystemId=identifier)):
        raise ServiceError("UnsupportedOperation", "Backups are not supported for file systems that are linked to a data repository.")
    name = f"backup-{drawn('hex', 17)}"
    # A backup outlives its file system, so it keeps what it has to tell about it.
    properties = {"FileSystem": _file_system(system), "Tags": given.get("Tags", []), "ClientRequestToken": token}
    made = Resource(BACKUP, name, "", "", properties, {"ResourceARN": arn("fsx", f"backup/{name}")})
    try:
        cloud.faults.act("create", identifier, BACKUP)
    except Injected as failure:
        made.attributes["Failure"] = str(failure)
    cloud.store.add(made)
    return {"Backup": _backup(made)}


def _backup(r: Resource) -> Answer:
    failure = r.attributes.get("Failure")
    ready = time.time() >= r.created + BACKUP_SECONDS
    return {
        "BackupId": r.id,
        "Lifecycle": "CREATING" if not ready else "FAILED" if failure else "AVAILABLE",
        **({"FailureDetails": {"Message": failure}} if failure and ready else {}),
        "Type": "USER_INITIATED",
        "ProgressPercent": 100 if ready else 0,
        "CreationTime": r.created,
        "OwnerId": r.account,
        "ResourceARN": r.attributes["ResourceARN"],
        "ResourceType": "FILE_SYSTEM",
        "Tags": _tag_list(r.properties),
        "FileSystem": r.properties["FileSystem"],
    }


def _known_backup(cloud: Cloud, identifier: str) -> Resource:
    found = cloud.store.get(BACKUP, identifier)
    if found is None:
        raise ServiceError("BackupNotFound", f"Backup '{identifier}' does not exist.")
    return found


def describe_backups(cloud: Cloud, given: dict[str, Any]) -> Answer:
    found = [_known_backup(cloud, name) for name in given["BackupIds"]] if given.get("BackupIds") else cloud.store.all(BACKUP)
    for wanted in given.get("Filters", []):
        if wanted.get("Name") == "file-system-id":
            found = [r for r in found if r.properties["FileSystem"]["FileSystemId"] in wanted.get("Values", [])]
    return {"Backups": [_backup(r) for r in found]}


def delete_backup(cloud: Cloud, given: dict[str, Any]) -> Answer:
    found = _known_backup(cloud, str(given.get("BackupId")))
    if _backup(found)["Lifecycle"] == "CREATING":
        raise ServiceError("BackupInProgress", f"Backup '{found.id}' is being created.")
    cloud.store.remove(BACKUP, found.id)
    return {"BackupId": found.id, "Lifecycle": "DELETED"}


OPERATIONS: dict[str, Operation] = {
    "DescribeFileSystems": describe_file_systems,
    "DescribeDataRepositoryAssociations": describe_associations,
    "CreateBackup": create_backup,
    "DescribeBackups": describe_backups,
    "DeleteBackup": delete_backup,
}
