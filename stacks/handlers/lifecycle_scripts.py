"""Puts HyperPod's lifecycle scripts into their bucket under a prefix that names their content; on delete the bucket is emptied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3

from .custom_resource import answering
from .empty_bucket import empty


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Scripts of an older prefix stay until the stack goes: a node that is replaced meanwhile may still read them."""
    properties = event["ResourceProperties"]
    bucket, prefix = properties["Bucket"], properties["Prefix"]
    if event["RequestType"] == "Delete":
        empty(bucket)
    else:
        client = boto3.client("s3")
        for name, text in properties["Scripts"].items():
            client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=text.encode(), ContentType="text/x-shellscript")
    return f"scripts/{bucket}", {"Uri": f"s3://{bucket}/{prefix}"}


handler = answering(work)
