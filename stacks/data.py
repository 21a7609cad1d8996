"""Data: what outlives a cluster. The artifact bucket, the file system, the image repository and the project that builds the image."""

from __future__ import annotations

import json
from typing import Any

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import custom_resources as cr
from constructs import Construct

from config import names
from stacks.allow import Allow
from stacks.builds import ImageBuild
from stacks.functions import function, resource
from stacks.guard import guard
from stacks.roles import bucket_arn
from stacks.stack import EnvironmentStack, Settings, Shared


class Data(EnvironmentStack):
    """S3, FSx for Lustre, ECR, CodeBuild."""

    def __init__(self, scope: Construct, settings: Settings) -> None:
        super().__init__(scope, settings, names.Stack.DATA, description="File system, buckets and images")
        removal = settings.storage.removal
        # Kept when the stack goes, but not when its very first creation fails: a half-made file system holds nothing.
        self._keep = RemovalPolicy.DESTROY if removal == "destroy" else RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
        key = self._key()
        bucket = self._bucket(key)
        file_system = self._file_system(key, bucket)
        if removal == "backup":
            self._final_backup(file_system)
        repository = self._repository(key)
        build = ImageBuild(self, repository=repository)
        self.publish(names.Parameter.ARTIFACT_BUCKET, bucket.bucket_name)
        self.publish(names.Parameter.FILE_SYSTEM_ID, file_system.ref)
        self.publish(names.Parameter.FILE_SYSTEM_DNS, file_system.attr_dns_name)
        self.publish(names.Parameter.FILE_SYSTEM_MOUNT, file_system.attr_lustre_mount_name)
        self.publish(names.Parameter.IMAGE_REPOSITORY, repository.attr_repository_uri)
        self.publish(names.Parameter.IMAGE_PROJECT, build.project.ref)

    def _key(self) -> kms.Key | None:
        if self.settings.storage.encryption == "aws":
            return None
        key = kms.Key(self, "Key", description=f"Data of {self.stack_name}", enable_key_rotation=True, removal_policy=self._keep)
        if self.settings.storage.file_system.export_to_s3:
            self._exported_under(key)
        self.publish(Shared.STORAGE_KEY, key.key_arn)
        return key

    def _exported_under(self, key: kms.Key) -> None:
        """FSx writes to the bucket as a service-linked role of its own, which no policy of ours reaches: the key itself must let it.

        The role's name holds the file system's id, which does not exist before its key does, so it is known by its session's name.
        https://docs.aws.amazon.com/fsx/latest/LustreGuide/s3-server-side-encryption-support.html
        """
        bucket = bucket_arn(self, names.artifact_bucket(self.settings))
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="ExportOfTheFileSystem",
                principals=[iam.AnyPrincipal()],
                actions=[
                    "kms:Decrypt",
                    "kms:DescribeKey",
                    "kms:Encrypt",
                    "kms:GenerateDataKey",
                    "kms:GenerateDataKeyWithoutPlaintext",
                    "kms:ReEncryptFrom",
                    "kms:ReEncryptTo",
                ],
                resources=["*"],
                conditions={
                    "StringEquals": {"kms:CallerAccount": self.account, "kms:ViaService": f"s3.{self.region}.amazonaws.com"},
                    # With a bucket key the context is the bucket, else the object.
                    "StringLike": {"aws:userid": "*:FSx", "kms:EncryptionContext:aws:s3:arn": [bucket, f"{bucket}/*"]},
                },
            )
        )

    def _bucket(self, key: kms.Key | None) -> s3.Bucket:
        rules = [
            s3.LifecycleRule(
                id="leftovers",
                abort_incomplete_multipart_upload_after=Duration.days(7),
                noncurrent_version_expiration=Duration.days(90),
                expired_object_delete_marker=True,
            )
        ]
        if days := self.settings.storage.artifact_expiry_days:
            # Runs only: a release under lora-adapters/ is what an endpoint serves.
            rules.append(s3.LifecycleRule(id="runs", prefix=names.RUNS_PREFIX, expiration=Duration.days(days)))
        bucket = s3.Bucket(
            self,
            "Artifacts",
            bucket_name=names.artifact_bucket(self.settings),
            versioned=True,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            lifecycle_rules=rules,
            removal_policy=self._keep,
        )
        if self._keep == RemovalPolicy.DESTROY:
            self._emptied(bucket)
        return bucket

    def _emptied(self, bucket: s3.Bucket) -> None:
        """Every version of every object goes before the bucket does: S3 refuses to delete a bucket that holds one."""
        arn = bucket_arn(self, bucket.bucket_name)
        emptier = function(
            self,
            "EmptyBucket",
            handler="empty_bucket.handler",
            description="Empties the artifact bucket before it is deleted",
            minutes=15,
            allow=[
                Allow(["s3:ListBucketVersions", "s3:ListBucketMultipartUploads"], [arn]),
                Allow(
                    ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"],
                    [f"{arn}/*"],
                    why="every object of this bucket",
                ),
            ],
        )
        emptied = resource(
            self,
            "EmptiedArtifacts",
            kind="EmptiedBucket",
            token=emptier.function_arn,
            properties={"Bucket": bucket.bucket_name},
            timeout_minutes=16,
        )
        emptied.node.add_dependency(bucket)

    def _file_system(self, key: kms.Key | None, bucket: s3.Bucket) -> fsx.CfnFileSystem:
        wanted = self.settings.storage.file_system
        # What cannot change in place; the guard refuses to let it change, since FSx has no name that CloudFormation would keep.
        moving: dict[str, Any] = {
            "subnet_ids": [self.read(Shared.HYPERPOD_SUBNET)],
            "security_group_ids": [self.read(Shared.FILE_SYSTEM_GROUP)],
            "kms_key_id": key.key_arn if key else None,
            "backup_id": wanted.restore_from_backup,
        }
        # The service changes the throughput in place, CloudFormation's guide says that the stack replaces it (inferred: it may).
        fixed = {
            "file_system_type_version": self.settings.version_set.platform.lustre,
            "storage_type": "SSD",
            "deployment_type": "PERSISTENT_2",
            "per_unit_storage_throughput": str(wanted.throughput_mbps_per_tib),
        }
        file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            # PERSISTENT_2 refuses Lustre 2.10, the API's default.
            file_system_type_version=fixed["file_system_type_version"],
            storage_type=fixed["storage_type"],
            storage_capacity=wanted.capacity_gib,
            **moving,
            lustre_configuration={
                "deploymentType": fixed["deployment_type"],
                "perUnitStorageThroughput": wanted.throughput_mbps_per_tib,
                "dataCompressionType": wanted.compression,
                "automaticBackupRetentionDays": wanted.backup_retention_days,
                "copyTagsToBackups": True,
                "metadataConfiguration": {"mode": "AUTOMATIC"},
            },
            tags=[{"key": "Name", "value": names.file_system(self.settings)}],
        )
        file_system.node.add_dependency(self._guard({**moving, **fixed}))
        # `backup` keeps a backup and lets the file system go.
        file_system.apply_removal_policy(self._keep if self.settings.storage.removal == "retain" else RemovalPolicy.DESTROY)
        if wanted.export_to_s3:
            association = fsx.CfnDataRepositoryAssociation(
                self,
                "RunsExport",
                file_system_id=file_system.ref,
                file_system_path="/runs",
                data_repository_path=f"s3://{bucket.bucket_name}/{names.EXPORT_PREFIX}runs",
                s3={"autoExportPolicy": {"events": ["NEW", "CHANGED", "DELETED"]}},
            )
            association.node.add_dependency(bucket)
        return file_system

    def _guard(self, kept: dict[str, Any]) -> Construct:
        return guard(
            self,
            what="file system",
            fix="Take it back, or deploy an environment of another name and copy the data",
            kept=kept,
            # What an older version of this project did not keep, the guard asks of the file system itself.
            allow=[
                Allow(
                    ["cloudformation:DescribeStackResources"],
                    [f"arn:{self.partition}:cloudformation:{self.region}:{self.account}:stack/{self.stack_name}/*"],
                    why="a stack's ARN ends in an id that CloudFormation chooses",
                ),
                Allow(
                    ["fsx:DescribeFileSystems"],
                    [f"arn:{self.partition}:fsx:{self.region}:{self.account}:file-system/*"],
                    why="the guard comes before the file system, which has no id before it is made",
                ),
            ],
        )

    def _final_backup(self, file_system: fsx.CfnFileSystem) -> None:
        """A backup on delete, waited for: CloudFormation has no snapshot policy for FSx."""
        arn = f"arn:{self.partition}:fsx:{self.region}:{self.account}"
        allow = [
            Allow(
                ["fsx:CreateBackup"],
                [f"{arn}:file-system/{file_system.ref}", f"{arn}:backup/*"],
                why="a backup has no id before it is made",
            ),
            Allow(["fsx:TagResource"], [f"{arn}:backup/*"], why="a backup has no id before it is made"),
            Allow(["fsx:DescribeBackups"], ["*"], why="FSx knows no resource for this action"),
            Allow(
                ["cloudformation:DescribeStacks"],
                [f"arn:{self.partition}:cloudformation:{self.region}:{self.account}:stack/{self.stack_name}/*"],
                why="a stack's ARN ends in an id that CloudFormation chooses",
            ),
        ]
        begin = function(
            self, "BeginBackup", handler="final_backup.on_event", description="Begins the last backup of the file system", allow=allow
        )
        ended = function(
            self, "BackupEnded", handler="final_backup.is_complete", description="Looks whether the last backup is there", allow=allow
        )
        provider = cr.Provider(
            self,
            "FinalBackupProvider",
            on_event_handler=begin,
            is_complete_handler=ended,
            query_interval=Duration.seconds(30),
            total_timeout=Duration.minutes(58),
            log_group=begin.log_group,
        )
        resource(
            self,
            "FinalBackup",
            kind="FinalBackup",
            token=provider.service_token,
            timeout_minutes=59,
            properties={"FileSystemId": file_system.ref, "Name": names.file_system(self.settings)},
        )

    def _repository(self, key: kms.Key | None) -> ecr.CfnRepository:
        repository = ecr.CfnRepository(
            self,
            "Images",
            repository_name=names.image_repository(self.settings),
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scanOnPush": True},
            encryption_configuration={"encryptionType": "KMS", "kmsKey": key.key_arn} if key else {"encryptionType": "AES256"},
            # Ten images of about 20 GB; a digest that an environment pins should be among them.
            lifecycle_policy={"lifecyclePolicyText": KEEP_TEN_IMAGES},
            empty_on_delete=self._keep == RemovalPolicy.DESTROY,
        )
        repository.apply_removal_policy(self._keep)
        return repository


KEEP_TEN_IMAGES = json.dumps(
    {
        "rules": [
            {
                "rulePriority": 1,
                "description": "layers that no tag names",
                "selection": {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days", "countNumber": 14},
                "action": {"type": "expire"},
            },
            {
                "rulePriority": 2,
                "description": "the ten newest images",
                "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 10},
                "action": {"type": "expire"},
            },
        ]
    }
)
