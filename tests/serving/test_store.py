from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config.load import load
from config.problems import Refused, Unreachable
from serving.store import Store, open_store
from tests.serving.bucket import Killed, MemoryS3, memory_store
from tests.serving.store_checks import check


def test_the_bucket_in_memory_does_what_s3_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(memory_store(), tmp_path, monkeypatch)


def test_an_upload_whose_part_fails_leaves_no_object_and_no_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.store.PART_BYTES", 10)
    (tmp_path / "file").write_bytes(b"x" * 95)
    calls = []

    def third_part_fails(operation: str, key: str) -> None:
        calls.append(operation)
        if calls.count("UploadPart") == 3:
            raise Killed

    s3 = MemoryS3(third_part_fails)
    with pytest.raises(Killed):
        Store(s3, "bucket").upload("key", tmp_path / "file", if_absent=True)
    assert s3.objects == {}
    assert s3.uploads == {}


def test_what_s3_refuses_is_one_sentence() -> None:
    from botocore.exceptions import ClientError, EndpointConnectionError

    class Refusing:
        def get_object(self, **given: Any) -> Any:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "Access Denied"}}, "GetObject")

        def put_object(self, **given: Any) -> Any:
            raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

    store = Store(Refusing(), "artifacts")
    with pytest.raises(Unreachable, match="bucket artifacts refused GetObject: AccessDenied"):
        store.get("key")
    with pytest.raises(Unreachable, match="bucket artifacts cannot be reached"):
        store.put("key", b"")


def test_the_local_environment_opens_no_bucket_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with pytest.raises(Refused, match="local cloud"):
        open_store(load("local"))
