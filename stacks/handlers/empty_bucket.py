"""Empties a bucket before it is deleted: every version, every delete marker, every unfinished upload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3

from .custom_resource import answering


def empty(bucket: str) -> int:
    """Delete everything in the bucket and return how many versions went. A bucket that is gone is empty.

    Raises RuntimeError naming the first object that S3 refused to delete.
    """
    client = boto3.client("s3")
    gone = 0
    try:
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
            doomed = [
                {"Key": item["Key"], "VersionId": item["VersionId"]}
                for kind in ("Versions", "DeleteMarkers")
                for item in page.get(kind, ())
            ]
            if not doomed:
                continue
            answer = client.delete_objects(Bucket=bucket, Delete={"Objects": doomed, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise RuntimeError(f"s3://{bucket}/{error['Key']} could not be deleted: {error['Code']} {error.get('Message', '')}")
            gone += len(doomed)
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
            for upload in page.get("Uploads", ()):
                client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    except client.exceptions.NoSuchBucket:
        return gone
    return gone


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Nothing on create and update, everything on delete."""
    bucket = event["ResourceProperties"]["Bucket"]
    if event["RequestType"] == "Delete":
        empty(bucket)
    return f"emptied/{bucket}", {}


handler = answering(work)
