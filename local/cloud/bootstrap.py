"""Undo `cdk bootstrap` in the local cloud: empty what the toolkit stack holds, delete the stack, delete what it retains.

`python -m local.cloud.bootstrap`, with the variables of `hyperpod-rl local env`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from local.cloud import ACCOUNT, REGION, SECRET

STACK = "CDKToolkit"


def remove(*, endpoint: str) -> bool:
    """Idempotent; False where there was none. Raises botocore's WaiterError when the stack cannot be deleted."""
    import boto3

    session = boto3.session.Session(aws_access_key_id=ACCOUNT, aws_secret_access_key=SECRET, region_name=REGION)
    clients = {name: session.client(name, endpoint_url=endpoint) for name in ("cloudformation", "s3", "ecr")}
    cloudformation = clients["cloudformation"]
    try:
        resources = cloudformation.describe_stack_resources(StackName=STACK)["StackResources"]
    except cloudformation.exceptions.ClientError as error:
        if "does not exist" in str(error):
            return False
        raise
    named: dict[str, list[str]] = {}
    for resource in resources:
        named.setdefault(resource["ResourceType"], []).append(resource.get("PhysicalResourceId", ""))
    buckets, repositories = named.get("AWS::S3::Bucket", []), named.get("AWS::ECR::Repository", [])
    for bucket in buckets:
        _empty(clients["s3"], bucket)
    for repository in repositories:
        _delete_images(clients["ecr"], repository)
    cloudformation.delete_stack(StackName=STACK)
    cloudformation.get_waiter("stack_delete_complete").wait(StackName=STACK, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    # The template retains the bucket: https://github.com/aws/aws-cdk-cli, `bootstrap-template.yaml`.
    kept = {b["Name"] for b in clients["s3"].list_buckets()["Buckets"]}
    for bucket in buckets:
        if bucket in kept:
            clients["s3"].delete_bucket(Bucket=bucket)
    for repository in repositories:
        try:
            clients["ecr"].delete_repository(repositoryName=repository, force=True)
        except clients["ecr"].exceptions.RepositoryNotFoundException:
            pass
    return True


def _empty(s3: Any, bucket: str) -> None:
    """Delete every version and delete marker, at most 1000 in a call."""
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        objects = [{"Key": o["Key"], "VersionId": o["VersionId"]} for o in found]
        if objects:
            s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})


def _delete_images(ecr: Any, repository: str) -> None:
    for page in ecr.get_paginator("list_images").paginate(repositoryName=repository):
        images = page.get("imageIds", [])
        if images:
            ecr.batch_delete_image(repositoryName=repository, imageIds=images)


def main() -> int:
    """Returns 0, or 2 where no local cloud is named."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if not endpoint.startswith("http://127.0.0.1:"):
        print(
            f'AWS_ENDPOINT_URL is {endpoint or "not set"}: this is for the local cloud alone; eval "$(hyperpod-rl local env)"',
            file=sys.stderr,
        )
        return 2
    gone = remove(endpoint=endpoint)
    print(f"the bootstrap is undone: stack {STACK}, its bucket and its repository are gone" if gone else "there was no bootstrap to undo")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once; running it again goes on
    sys.exit(main())
