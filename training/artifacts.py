"""A copy of the record in the environment's artifact bucket, where it outlives the file system: `runs/<run-id>/record.json`."""

from __future__ import annotations

import os
from typing import Any

from config import names
from config.environment import DOCUMENTATION_ACCOUNT, Environment
from training import deployed
from training.record import FILE, Record


def there(env: Environment) -> bool:
    """Whether there is a bucket to copy to: not for the documentation account, nor for a local cloud that nobody pointed us at."""
    return bool(os.environ.get("AWS_ENDPOINT_URL")) if env.local else env.account != DOCUMENTATION_ACCOUNT


def copy(env: Environment, record: Record, *, aws: Any = None) -> str:
    """Put the record there, whole (S3 knows no half objects), and return where. Raises Refused or Unreachable."""
    bucket, key = names.artifact_bucket(env), f"{names.RUNS_PREFIX}{record.run_id}/{FILE}"
    with deployed.reaching("S3"):
        client = deployed.client(env, "s3", aws)
        client.put_object(Bucket=bucket, Key=key, Body=record.text().encode(), ContentType="application/json")
    return f"s3://{bucket}/{key}"
