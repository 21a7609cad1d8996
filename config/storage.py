"""What keeps data: the file system, buckets, images, and what happens to them when an environment goes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.model import AbsolutePath, Part, text

BackupId = Annotated[str, text(r"^backup-[0-9a-f]{8,17}$", rule="this is the id of an FSx backup", example="backup-0123456789abcdef0")]

Repository = Annotated[
    str,
    text(
        r"^[a-z0-9]+([._/-][a-z0-9]+)*$",
        rule="ECR takes a-z, 0-9 and single . _ / - between them",
        example="ray/skyrl-visgym",
        max_length=200,
    ),
]
Tag = Annotated[
    str,
    text(r"^[\w][\w.-]{0,127}$", rule="an image tag has 1 to 128 letters, digits, `.`, `_` and `-`", example="2026.11"),
]
Digest = Annotated[
    str,
    text(r"^sha256:[0-9a-f]{64}$", rule="this is the digest of an image", example="sha256: and 64 hexadecimal digits"),
]


class FileSystem(Part):
    """FSx for Lustre, PERSISTENT_2 on SSD. Capacity in GiB, throughput in MB/s for each TiB."""

    mount_path: AbsolutePath = "/shared"
    capacity_gib: Annotated[int, Field(ge=1200)] = 1200
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 250
    compression: Literal["LZ4", "NONE"] = "LZ4"
    backup_retention_days: Annotated[int, Field(ge=0, le=90)] = 0
    export_to_s3: bool = False
    restore_from_backup: BackupId | None = None


class Storage(Part):
    """Data of the environment and its removal: `destroy` keeps nothing, `backup` a final FSx backup, `retain` everything."""

    file_system: FileSystem = FileSystem()
    removal: Literal["destroy", "backup", "retain"] = "retain"
    encryption: Literal["aws", "kms"] = "aws"
    artifact_expiry_days: Annotated[int, Field(ge=1)] | None = None


class Image(Part):
    """The training image. A digest pins it; a tag alone is for the first build only."""

    repository: Repository = "ray/skyrl-visgym"
    tag: Tag = "2026.11"
    digest: Digest | None = None
    # Digest of the base image that a build starts from; without one the build takes what the base's moving tag names, and records it.
    base_digest: Digest | None = None
    size_gib: Annotated[int, Field(ge=1, le=500)] = 25
