"""FSx for Lustre: https://docs.aws.amazon.com/fsx/latest/LustreGuide/"""

from __future__ import annotations

from collections.abc import Iterator

from local.cloud.rules.asking import Asked, absent, is_missing, refuses

FSX = "AWS::FSx::FileSystem"
THROUGHPUT = {
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
}


def _lustre(asked: Asked) -> bool:
    return bool(asked.get("FileSystemType") == "LUSTRE")


@refuses(FSX)
def lustre_capacity_comes_in_steps(asked: Asked) -> Iterator[str]:
    if not _lustre(asked) or "StorageCapacity" not in asked.properties:
        return
    capacity, deployment = int(asked.get("StorageCapacity")), asked.get("LustreConfiguration/DeploymentType", "SCRATCH_1")
    if asked.get("StorageType", "SSD") == "HDD":
        step = 6000 if int(asked.get("LustreConfiguration/PerUnitStorageThroughput", 12)) == 12 else 1800
        if capacity % step:
            yield f"Invalid storage capacity provided: {capacity}. HDD file systems take multiples of {step} GiB."
        return
    step = 3600 if deployment == "SCRATCH_1" else 2400
    if capacity != 1200 and capacity % step:
        yield f"Invalid storage capacity provided: {capacity}. {deployment} file systems take 1200 GiB or a multiple of {step} GiB."


@refuses(FSX)
def lustre_throughput_fits_the_deployment(asked: Asked) -> Iterator[str]:
    if not _lustre(asked):
        return
    deployment, storage = asked.get("LustreConfiguration/DeploymentType", "SCRATCH_1"), asked.get("StorageType", "SSD")
    given = asked.get("LustreConfiguration/PerUnitStorageThroughput")
    allowed = THROUGHPUT.get((deployment, storage))
    if storage == "INTELLIGENT_TIERING":
        return
    if deployment.startswith("SCRATCH"):
        if given is not None:
            yield f"PerUnitStorageThroughput is not supported for the deployment type {deployment}."
    elif allowed is None:
        yield f"The storage type {storage} is not supported for the deployment type {deployment}."
    elif given is None:
        yield f"PerUnitStorageThroughput is required for the deployment type {deployment}."
    elif int(given) not in allowed:
        yield f"Invalid per unit storage throughput {given}. Valid values for {deployment} {storage} are {', '.join(map(str, allowed))}."


@refuses(FSX)
def lustre_version_fits_the_deployment(asked: Asked) -> Iterator[str]:
    version, deployment = str(asked.get("FileSystemTypeVersion", "")), asked.get("LustreConfiguration/DeploymentType", "SCRATCH_1")
    if _lustre(asked) and version and version not in ("2.10", "2.12", "2.15"):
        yield f"Invalid Lustre version {version}. Valid values are 2.10, 2.12, 2.15."
    elif _lustre(asked) and deployment == "PERSISTENT_2" and version in ("", "2.10"):
        named = version or "2.10 (the default)"
        yield f"FileSystemTypeVersion {named} is not supported for the deployment type PERSISTENT_2; use 2.12 or 2.15."


@refuses(FSX)
def lustre_metadata_and_links_fit_the_deployment(asked: Asked) -> Iterator[str]:
    lustre, deployment = asked.get("LustreConfiguration", {}), asked.get("LustreConfiguration/DeploymentType", "SCRATCH_1")
    if _lustre(asked) and deployment != "PERSISTENT_2" and "MetadataConfiguration" in lustre:
        yield f"MetadataConfiguration is not supported for the deployment type {deployment}."
    if _lustre(asked) and deployment == "PERSISTENT_2" and {"ImportPath", "ExportPath"} & set(lustre):
        yield "ImportPath and ExportPath are not supported for PERSISTENT_2; use a data repository association."


@refuses(FSX, "create")
def lustre_lives_in_one_subnet(asked: Asked) -> Iterator[str]:
    subnets = asked.get("SubnetIds", [])
    if _lustre(asked) and len(subnets) != 1:
        yield f"Exactly one subnet ID must be specified for a Lustre file system, but {len(subnets)} were given."
    yield from absent(asked.cloud, subnets, asked.get("SecurityGroupIds", []))


@refuses(FSX, "create", code="NotFound")
def restored_backup_exists(asked: Asked) -> Iterator[str]:
    backup = asked.get("BackupId")
    if backup and asked.cloud.store.get("AWS::FSx::Backup", str(backup)) is None:
        yield f"Backup '{backup}' does not exist."


@refuses(FSX, "update")
def lustre_does_not_shrink(asked: Asked) -> Iterator[str]:
    before, after = asked.old.get("StorageCapacity"), asked.get("StorageCapacity")
    if _lustre(asked) and before and after and int(after) < int(before):
        yield f"Invalid storage capacity provided: {after}. You can only increase the storage capacity, which is {before} GiB."


DRA = "AWS::FSx::DataRepositoryAssociation"


@refuses(DRA, "create", code="NotFound")
def association_needs_its_file_system(asked: Asked) -> Iterator[str]:
    system = asked.cloud.store.get(FSX, str(asked.get("FileSystemId")))
    if system is None:
        yield f"File system '{asked.get('FileSystemId')}' does not exist."
    elif (system.properties.get("LustreConfiguration") or {}).get("DeploymentType", "SCRATCH_1") == "SCRATCH_1":
        yield "Data repository associations are not supported for the deployment type SCRATCH_1."


@refuses(DRA, "create")
def association_paths_do_not_overlap(asked: Asked) -> Iterator[str]:
    path = str(asked.get("FileSystemPath", "/")).rstrip("/") + "/"
    for other in asked.cloud.store.where(DRA, FileSystemId=asked.get("FileSystemId")):
        theirs = str(other.properties.get("FileSystemPath", "/")).rstrip("/") + "/"
        if path.startswith(theirs) or theirs.startswith(path):
            yield f"The file system path {path} overlaps that of {other.id} ({theirs})."


@refuses(DRA, "create", code="NotFound")
def association_needs_its_bucket(asked: Asked) -> Iterator[str]:
    bucket = str(asked.get("DataRepositoryPath", "")).removeprefix("s3://").partition("/")[0]
    try:
        asked.cloud.client("s3").head_bucket(Bucket=bucket)
    except Exception as error:
        if not is_missing(error):
            raise
        yield f"The bucket {bucket} does not exist or Amazon FSx cannot access it."
