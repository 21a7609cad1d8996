"""The local cloud's S3 keeps S3's conditions, also for many writers at once: releases and aliases stand on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.store import Store
from tests.local.cloud.conftest import Account
from tests.serving.store_checks import check

pytestmark = pytest.mark.cloud


def test_the_local_s3_does_what_the_bucket_in_memory_does(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = account.client("s3")
    client.create_bucket(Bucket="conditions", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    try:
        check(Store(client, "conditions"), tmp_path, monkeypatch)
    finally:
        for key in Store(client, "conditions").list(""):
            client.delete_object(Bucket="conditions", Key=key)
        client.delete_bucket(Bucket="conditions")
