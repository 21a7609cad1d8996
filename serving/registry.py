"""A release in SageMaker's Model Registry: one model package a release, with the lineage attached. A choice, beside the bucket.

The bucket stays what the endpoint reads; the registry is for those who look for models there, and for its approvals.
https://docs.aws.amazon.com/sagemaker/latest/dg/model-registry.html
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from config import names
from config.problems import Problem, Refused

if TYPE_CHECKING:
    from config.environment import Environment
    from serving.releases import Release

# What CustomerMetadataProperties takes (botocore's model of CreateModelPackage): 1 to 256 of these characters.
_STRANGE: Final = re.compile(r"[^\w .:/=+\-@]")
LONGEST: Final = 256


def group_name(env: Environment, release: Release) -> str:
    """The model package group of an adapter (at most 63 characters)."""
    return f"{names.PREFIX}-{env.name}-{release.adapter}"[:63].rstrip("-")


def register(env: Environment, release: Release, *, location: str, client: Any = None) -> tuple[str, bool]:
    """Register a release unless it is registered; returns the model package's ARN and whether it is new.

    Approved if the gate passed it, else pending. Raises Refused in environment local, Unreachable where SageMaker refuses or does
    not answer.
    """
    from training import deployed

    if env.local:
        raise Refused(Problem("--register", env.name, "the local cloud has no Model Registry", "leave it out"))
    sagemaker = client or deployed.client(env, "sagemaker")
    group = group_name(env, release)
    with deployed.reaching("SageMaker's Model Registry"):
        if not _group_exists(sagemaker, group):
            _make_group(sagemaker, group, f"LoRA adapters {release.adapter} of environment {env.name}")
        elif (there := _registered(sagemaker, group, release.name)) is not None:
            return there, False
        passed = release.gate is not None and release.gate.passed
        found = sagemaker.create_model_package(
            ModelPackageGroupName=group,
            ModelPackageDescription=release.name,
            # The same for the same release: of two who register it at once, both get the one package.
            ClientToken=hashlib.sha256(f"{group}/{release.name}/{release.content_digest}".encode()).hexdigest()[:36],
            ModelApprovalStatus="Approved" if passed else "PendingManualApproval",
            InferenceSpecification=_inference(env, location),
            MetadataProperties={"CommitId": release.code_commit, "GeneratedBy": f"hyperpod-rl run {release.run_id} step {release.step}"},
            CustomerMetadataProperties=lineage(release, location),
        )
    return str(found["ModelPackageArn"]), True


def lineage(release: Release, location: str) -> dict[str, str]:
    """The release's lineage as short texts; what is empty is left out."""
    gate, base = release.gate, release.base_model
    told = {
        "release": release.name, "location": location, "run": release.run_id, "step": str(release.step), "environment": release.environment,
        "content": release.content_digest, "record": release.record_sha256, "base_model": base.repository or base.path,
        "base_model_revision": base.revision, "image": release.image_digest or release.image, "rank": str(release.rank),
        "gate": "not judged" if gate is None else "passed" if gate.passed else "not passed",
        "solve_rate": "" if gate is None or gate.candidate_rate is None else f"{gate.candidate_rate:.4f}",
        "solve_rate_fresh_mazes": "" if gate is None or gate.fresh_rate is None else f"{gate.fresh_rate:.4f}",
        "override": release.override or "", "published_by": release.published_by, "published_at": release.published_at,
    }  # fmt: skip
    return {name: _STRANGE.sub("_", value)[:LONGEST] for name, value in told.items() if value}


def _inference(env: Environment, location: str) -> dict[str, Any]:
    source = {"S3DataSource": {"S3Uri": location, "S3DataType": "S3Prefix", "CompressionType": "None"}}
    return {
        "Containers": [{"Image": names.image_uri(env), "ModelDataSource": source}],
        "SupportedContentTypes": ["application/json"],
        "SupportedResponseMIMETypes": ["application/json"],
    }


def _make_group(sagemaker: Any, group: str, description: str) -> None:
    from botocore.exceptions import ClientError

    try:
        sagemaker.create_model_package_group(ModelPackageGroupName=group, ModelPackageGroupDescription=description)
    except ClientError as error:
        if "already exists" not in str(error):  # somebody else made it a moment ago
            raise


def _group_exists(sagemaker: Any, group: str) -> bool:
    pages = sagemaker.get_paginator("list_model_package_groups").paginate(NameContains=group)
    return any(found["ModelPackageGroupName"] == group for page in pages for found in page["ModelPackageGroupSummaryList"])


def _registered(sagemaker: Any, group: str, release: str) -> str | None:
    pages = sagemaker.get_paginator("list_model_packages").paginate(ModelPackageGroupName=group)
    found = (each for page in pages for each in page["ModelPackageSummaryList"] if each.get("ModelPackageDescription") == release)
    return next((str(each["ModelPackageArn"]) for each in found), None)
