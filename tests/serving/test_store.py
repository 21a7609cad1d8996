from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config.load import load
from config.problems import Refused, Unreachable
from serving.store import Busy, Conflict, Store, open_store
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


def test_an_answer_that_was_cut_short_or_is_slow_down_is_no_object() -> None:
    import hashlib
    import io

    from botocore.exceptions import ClientError
    from botocore.response import StreamingBody

    class Cut:
        def get_object(self, **given: Any) -> Any:
            return {"Body": StreamingBody(io.BytesIO(b"half"), 8), "ETag": "x"}

        def head_object(self, **given: Any) -> Any:
            answer = {"Error": {"Code": "SlowDown", "Message": "Please reduce your request rate."}}
            raise ClientError({**answer, "ResponseMetadata": {"HTTPStatusCode": 503}}, "HeadObject")

    store = Store(Cut(), "artifacts")
    for ask in (store.get, store.sha256, store.head):
        with pytest.raises(Unreachable, match="bucket artifacts"):
            ask("key")
    whole = memory_store()
    whole.put("key", b"x" * 100)
    assert (whole.sha256("key"), whole.sha256("none")) == (hashlib.sha256(b"x" * 100).hexdigest(), None)


def test_the_local_environment_opens_no_bucket_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with pytest.raises(Refused, match="local cloud"):
        open_store(load("local"))


def busy(times: int, operation: str) -> MemoryS3:
    """S3 that answers the first conditional writes with 409: another is under way, and nothing is decided yet."""
    from botocore.exceptions import ClientError

    left = [times]

    def conflict(called: str, key: str) -> None:
        if called == operation and left[0]:
            left[0] -= 1
            raise ClientError({"Error": {"Code": "ConditionalRequestConflict", "Message": "retry"}}, called)

    return MemoryS3(conflict)


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_a_write_that_s3_did_not_decide_is_written_again(operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3's reference on 409: "you should retry the upload"; it does not say that the object is there."""
    monkeypatch.setattr("serving.store.PART_BYTES", 10)
    (tmp_path / "file").write_bytes(b"x" * (95 if operation == "CompleteMultipartUpload" else 5))
    s3, slept = busy(3, operation), list[float]()
    Store(s3, "bucket", sleep=slept.append).upload("key", tmp_path / "file", if_absent=True)
    assert s3.objects["key"][0] == (tmp_path / "file").read_bytes()
    assert s3.uploads == {}
    assert len(slept) == 3
    with pytest.raises(Conflict):
        Store(s3, "bucket", sleep=slept.append).upload("key", tmp_path / "file", if_absent=True)
    assert len(slept) == 3, "what is decided is not tried again"


def test_an_object_that_is_there_is_not_sent_again_only_to_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.store.PART_BYTES", 10)
    (tmp_path / "file").write_bytes(b"x" * 95)
    s3 = MemoryS3()
    store = memory_store(s3)
    store.put("key", b"other")
    with pytest.raises(Conflict):
        store.upload("key", tmp_path / "file", if_absent=True)
    assert [operation for operation, _ in s3.writes] == ["PutObject"]


def test_a_write_that_is_never_decided_ends() -> None:
    with pytest.raises(Busy):
        Store(busy(1000, "PutObject"), "bucket", sleep=lambda _: None).put("key", b"", if_absent=True)
