"""FSx: https://docs.aws.amazon.com/fsx/latest/APIReference/API_DescribeFileSystems.html"""

from __future__ import annotations

from typing import Any

from local.cloud import ACCOUNT
from local.cloud.services import Answer, Operation, ServiceError
from local.cloud.store import Cloud, tags

FILE_SYSTEM = "AWS::FSx::FileSystem"
ASSOCIATION = "AWS::FSx::DataRepositoryAssociation"


def _tag_list(properties: dict[str, Any]) -> list[dict[str, str]]:
    return [{"Key": k, "Value": v} for k, v in tags(properties).items()]


def describe_file_systems(cloud: Cloud, given: dict[str, Any]) -> Answer:
    wanted = given.get("FileSystemIds")
    found = {r.id: r for r in cloud.store.all(FILE_SYSTEM)}
    for identifier in wanted or []:
        if identifier not in found:
            raise ServiceError("FileSystemNotFound", f"File system '{identifier}' does not exist.")
    answer = []
    for r in found.values():
        if wanted and r.id not in wanted:
            continue
        p, lustre = r.properties, r.properties.get("LustreConfiguration", {})
        shown = ("DeploymentType", "PerUnitStorageThroughput", "DataCompressionType", "MetadataConfiguration")
        answer.append(
            {
                "FileSystemId": r.id,
                "OwnerId": ACCOUNT,
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
        )
    return {"FileSystems": answer}


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


def describe_backups(cloud: Cloud, given: dict[str, Any]) -> Answer:
    return {"Backups": []}


OPERATIONS: dict[str, Operation] = {
    "DescribeFileSystems": describe_file_systems,
    "DescribeDataRepositoryAssociations": describe_associations,
    "DescribeBackups": describe_backups,
}
