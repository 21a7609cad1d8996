"""Data and what holds it: volumes, snapshots, file systems, backups, buckets, images, keys, CDK's assets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from config import names, prices
from config.load import ROOT
from config.names import Stack
from operations.aws import Aws, Unanswered
from operations.leaks.leak import Leak, Ours, monthly, physical_ids, tags_of

KEPT = "storage.removal keeps it on purpose: remove it only if you do not want the data back"


def _kept(ours: Ours) -> str:
    return "" if ours.environment.storage.removal == "destroy" else KEPT


def volumes(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Volumes of persistent volume claims: the EBS CSI driver makes them, and nobody deletes them when it is gone first."""
    for item in aws.pages("ec2", "describe_volumes", "Volumes"):
        if (made_by := ours.tagged(tags_of(item.get("Tags")))) and item.get("State") not in ("deleting", "deleted"):
            yield Leak(
                "EBS volume", item["VolumeId"], made_by, monthly(item["Size"], 0.08),
                (ours.command("ec2", "delete-volume", "--volume-id", item["VolumeId"]),),
                alive_with=Stack.PLATFORM, ids=physical_ids(item["VolumeId"]),
            )  # fmt: skip


def snapshots(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Snapshots of such volumes."""
    for item in aws.pages("ec2", "describe_snapshots", "Snapshots", OwnerIds=["self"]):
        if made_by := ours.tagged(tags_of(item.get("Tags"))):
            yield Leak(
                "EBS snapshot", item["SnapshotId"], made_by, "at most " + monthly(item.get("VolumeSize", 0), 0.05),
                (ours.command("ec2", "delete-snapshot", "--snapshot-id", item["SnapshotId"]),), alive_with=Stack.PLATFORM,
            )  # fmt: skip


def file_systems(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """FSx file systems: the stack's own, and those that the CSI driver made for a claim of somebody's."""
    for item in aws.pages("fsx", "describe_file_systems", "FileSystems"):
        tags = tags_of(item.get("Tags"))
        made_by = ours.tagged(tags)
        if made_by is None and tags.get("Name") == names.file_system(ours.environment) and not ours.foreign(tags):
            made_by = f"named {tags['Name']}, as the stack {names.stack(ours.environment, Stack.DATA)} names its file system"
        if made_by is None or item.get("Lifecycle") == "DELETING":
            continue
        throughput = int(item.get("LustreConfiguration", {}).get("PerUnitStorageThroughput", 250))
        price = prices.FILE_SYSTEM_GIB.get(throughput, prices.FILE_SYSTEM_GIB[250])
        identifier = item["FileSystemId"]
        yield Leak(
            "FSx file system", identifier, made_by, monthly(item.get("StorageCapacity", 0), price.usd_per_hour * prices.HOURS_PER_MONTH),
            (ours.command("fsx", "delete-file-system", "--file-system-id", identifier),), name=tags.get("Name", ""),
            kept=KEPT if ours.environment.storage.removal == "retain" else "", ids=physical_ids(identifier),
        )  # fmt: skip


def backups(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """The final backup, which is kept on purpose, and others with the environment's tags. Automatic ones go with their file system."""
    final = f"{names.file_system(ours.environment)}-final"
    for item in aws.pages("fsx", "describe_backups", "Backups"):
        tags = tags_of(item.get("Tags"))
        is_final = tags.get("Name") == final and not ours.foreign(tags)
        made_by = "the last backup, taken when the stack Data was deleted" if is_final else ours.tagged(tags)
        if made_by is None or item.get("Type") == "AUTOMATIC":
            continue
        size = item.get("FileSystem", {}).get("StorageCapacity", 0)
        yield Leak(
            "FSx backup", item["BackupId"], made_by, "at most " + monthly(size, 0.05),
            (ours.command("fsx", "delete-backup", "--backup-id", item["BackupId"]),), name=tags.get("Name", ""), kept=_kept(ours),
        )  # fmt: skip


def buckets(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """The two buckets, by their names; every version of every object has to go before a bucket does."""
    env = ours.environment
    # Of the account alone: a bucket of that name elsewhere is somebody else's.
    there = {bucket["Name"] for bucket in aws.pages("s3", "list_buckets", "Buckets")}
    for bucket, kept in ((names.artifact_bucket(env), _kept(ours)), (names.lifecycle_bucket(env), "")):
        if bucket not in there:
            continue
        yield Leak(
            "S3 bucket", bucket, "made by stack Data or HyperPod", "about 0.023 USD for each GB and month (unverified)",
            (_emptying(ours, bucket), ours.command("s3api", "delete-bucket", "--bucket", bucket)), kept=kept, ids=physical_ids(bucket),
        )  # fmt: skip


def _emptying(ours: Ours, bucket: str) -> str:
    """A loop over at most 500 versions at a time, until the list is empty (`None`)."""
    listing = ours.command("s3api", "list-object-versions", "--bucket", bucket, "--max-items", "500", "--output", "json", "--query",
                           "[Versions,DeleteMarkers][][].{Key:Key,VersionId:VersionId}")  # fmt: skip
    delete = ours.command("s3api", "delete-objects", "--bucket", bucket, "--delete")
    return (
        f'while objects=$({listing}) && [ "$objects" != null ] && [ "$objects" != "[]" ]; '
        f'do {delete} "{{\\"Quiet\\":true,\\"Objects\\":$objects}}" || break; done'
    )


def repositories(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """ECR repositories with their images: the training image's, and the mirrors of charts and images."""
    own, mirrors = names.image_repository(ours.environment), f"{ours.base}/"
    for item in aws.pages("ecr", "describe_repositories", "repositories"):
        name = str(item["repositoryName"])
        if name != own and not name.startswith(mirrors):
            continue
        tags = tags_of(aws.call("ecr", "list_tags_for_resource", resourceArn=item["repositoryArn"]).get("tags"))
        if ours.foreign(tags):
            continue
        yield Leak(
            "ECR repository", name, ours.tagged(tags) or f"named as environment {ours.environment.name} names it",
            "about 0.10 USD for each GB and month (unverified); a training image is about 20 GB",
            (ours.command("ecr", "delete-repository", "--force", "--repository-name", name),),
            kept=_kept(ours) if name == own else "", ids=physical_ids(name, item["repositoryArn"]),
        )  # fmt: skip


def keys(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Customer keys that carry the environment's tag. One that waits for its deletion costs nothing."""
    shut, seen = None, False
    for listed in aws.pages("kms", "list_keys", "Keys"):
        key = listed["KeyId"]
        try:
            described = aws.call("kms", "describe_key", KeyId=key)["KeyMetadata"]
            if described["KeyManager"] != "CUSTOMER" or described["KeyState"] in ("PendingDeletion", "PendingReplicaDeletion"):
                continue
            tags = tags_of(aws.pages("kms", "list_resource_tags", "Tags", KeyId=key))
            seen = True
        except Unanswered as error:
            if error.denied:  # a key whose policy shuts us out is not ours
                shut = error
                continue
            raise
        if made_by := ours.tagged(tags):
            yield Leak(
                "KMS key", key, made_by, "1 USD a month (unverified)",
                (ours.command("kms", "schedule-key-deletion", "--key-id", key, "--pending-window-in-days", "7"),),
                kept=f"{KEPT}; without it, what it encrypted cannot be read" if _kept(ours) else "",
                ids=physical_ids(key, described.get("Arn")),
            )  # fmt: skip
    if shut is not None and not seen:  # a caller who may look at no key at all has not looked
        raise shut


def efs(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Home folders of a Studio domain: SageMaker keeps them when the domain goes."""
    mine = {domain["DomainId"] for domain in aws.pages("sagemaker", "list_domains", "Domains") if domain.get("DomainName") == ours.base}
    for item in aws.pages("efs", "describe_file_systems", "FileSystems"):
        tags = tags_of(item.get("Tags"))
        domain = tags.get("ManagedByAmazonSageMakerResource", "").rpartition("/")[2]
        targets = list(aws.pages("efs", "describe_mount_targets", "MountTargets", FileSystemId=item["FileSystemId"])) if domain else []
        made_by = ours.tagged(tags)
        if made_by is None and domain and not ours.foreign(tags) and (domain in mine or {t.get("VpcId") for t in targets} & ours.vpcs):
            made_by = f"made by SageMaker Studio for domain {domain}"
        if made_by is None:
            continue
        identifier, size = item["FileSystemId"], item.get("SizeInBytes", {}).get("Value", 0) / (1 << 30)
        before = [ours.command("efs", "delete-mount-target", "--mount-target-id", target["MountTargetId"]) for target in targets]
        yield Leak(
            "EFS file system", identifier, made_by, monthly(size, 0.30),
            (*before, *(["sleep 60"] if before else []), ours.command("efs", "delete-file-system", "--file-system-id", identifier)),
            alive_with=Stack.STUDIO, ids=physical_ids(identifier),
        )  # fmt: skip


def assets(aws: Aws, ours: Ours) -> Iterator[Leak]:
    """Templates and code that CDK left in the account's toolkit bucket, where every app of the account puts its own.

    What belongs to this environment is known from its cloud assemblies below `cdk.out` only. A template names the environment, so it is
    its alone; code is shared by content, so it is listed only when no stack but the toolkit's is left in the region.
    """
    env = ours.environment
    bucket = f"cdk-hnb659fds-assets-{env.account}-{env.region}"
    templates, code = _of_assemblies(ours)
    shared = any(
        stack["StackStatus"] != "DELETE_COMPLETE" and stack["StackName"] != "CDKToolkit"
        for stack in (aws.pages("cloudformation", "list_stacks", "StackSummaries") if code else ())
    )
    for key in sorted(templates if shared else templates | code):
        try:
            size = aws.call("s3", "head_object", Bucket=bucket, Key=key)["ContentLength"]
        except Unanswered as error:
            if error.code in ("404", "NoSuchBucket", "NoSuchKey"):
                continue
            raise
        yield Leak(
            "CDK asset", f"s3://{bucket}/{key}", f"put there by cdk deploy of environment {env.name}", monthly(size / (1 << 30), 0.023),
            (ours.command("s3api", "delete-object", "--bucket", bucket, "--key", key),), alive_with=Stack.NETWORK,
            kept="CDK keeps it for a next deploy",
        )  # fmt: skip


def _of_assemblies(ours: Ours, root: Path = ROOT) -> tuple[set[str], set[str]]:
    """Object keys of this environment's templates, and of the code that its stacks name."""
    templates: set[str] = set()
    code: set[str] = set()
    for manifest in sorted([*(root / "cdk.out").glob("manifest.json"), *(root / "cdk.out").glob("*/manifest.json")]):
        try:
            artifacts = json.loads(manifest.read_text(encoding="utf-8")).get("artifacts", {})
            stacks = {name for name, found in artifacts.items() if found.get("properties", {}).get("stackName") in ours.stacks}
            for name in stacks:
                file = json.loads((manifest.parent / f"{name}.assets.json").read_text(encoding="utf-8"))
                for asset in file.get("files", {}).values():
                    its = templates if asset["source"]["path"] == f"{name}.template.json" else code
                    its.update(place["objectKey"] for place in asset["destinations"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            continue  # an assembly that is half written, or of another tool
    return templates, code
