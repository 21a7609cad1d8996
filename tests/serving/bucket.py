"""A bucket in memory with S3's conditional writes, behind the names of a boto3 client. The same checks run against the local cloud's S3."""

from __future__ import annotations

import hashlib
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import ClientError

from serving.store import Store


class Killed(BaseException):
    """The process ended here: nothing that it would have done afterwards is done, and no handler of errors runs for it."""


class MemoryS3:
    """One bucket. `before_write` is called with the operation and the key before each call that changes something."""

    def __init__(self, before_write: Callable[[str, str], None] = lambda operation, key: None) -> None:
        self.objects: dict[str, tuple[bytes, str, dict[str, str]]] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes], dict[str, str]]] = {}
        self.before_write = before_write
        self.writes: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        with self._lock:
            body, etag, metadata = self._existing("GetObject", Key)
        return {"Body": io.BytesIO(body), "ETag": etag, "Metadata": metadata, "ContentLength": len(body)}

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        with self._lock:
            body, etag, metadata = self._existing("HeadObject", Key, code="404")
        return {"ETag": etag, "Metadata": metadata, "ContentLength": len(body)}

    def put_object(
        self, *, Bucket: str, Key: str, Body: bytes, IfMatch: str | None = None, IfNoneMatch: str | None = None,
        Metadata: dict[str, str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        self._write("PutObject", Key)
        with self._lock:
            return {"ETag": self._put("PutObject", Key, Body, IfMatch, IfNoneMatch, Metadata or {})}

    def delete_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        self._write("DeleteObject", Key)
        with self._lock:
            self.objects.pop(Key, None)
        return {}

    def create_multipart_upload(self, *, Bucket: str, Key: str, Metadata: dict[str, str] | None = None) -> dict[str, Any]:
        self._write("CreateMultipartUpload", Key)
        with self._lock:
            number = f"upload-{next(self._numbers)}"
            self.uploads[number] = (Key, {}, Metadata or {})
        return {"UploadId": number}

    def upload_part(self, *, Bucket: str, Key: str, UploadId: str, PartNumber: int, Body: bytes) -> dict[str, Any]:
        self._write("UploadPart", Key)
        with self._lock:
            self.uploads[UploadId][1][PartNumber] = Body
        return {"ETag": _etag(Body), "ChecksumCRC32": "x"}

    def complete_multipart_upload(
        self, *, Bucket: str, Key: str, UploadId: str, MultipartUpload: dict[str, Any],
        IfMatch: str | None = None, IfNoneMatch: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        self._write("CompleteMultipartUpload", Key)
        with self._lock:
            _, parts, metadata = self.uploads[UploadId]
            numbers = [part["PartNumber"] for part in MultipartUpload["Parts"]]
            assert numbers == sorted(numbers)
            body = b"".join(parts[number] for number in numbers)
            etag = self._put("CompleteMultipartUpload", Key, body, IfMatch, IfNoneMatch, metadata)
            del self.uploads[UploadId]
        return {"ETag": etag}

    def abort_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str) -> dict[str, Any]:
        with self._lock:
            self.uploads.pop(UploadId, None)
        return {}

    def get_paginator(self, operation: str) -> MemoryS3:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        with self._lock:
            keys = sorted(key for key in self.objects if key.startswith(Prefix))
        for some in itertools.batched(keys, 2) if hasattr(itertools, "batched") else [keys]:
            yield {"Contents": [{"Key": key} for key in some]}
        yield {}

    def _write(self, operation: str, key: str) -> None:
        self.before_write(operation, key)
        self.writes.append((operation, key))

    def _existing(self, operation: str, key: str, code: str = "NoSuchKey") -> tuple[bytes, str, dict[str, str]]:
        if key not in self.objects:
            raise ClientError({"Error": {"Code": code, "Message": "none"}}, operation)
        return self.objects[key]

    def _put(self, operation: str, key: str, body: bytes, match: str | None, none_match: str | None, metadata: dict[str, str]) -> str:
        there = self.objects.get(key)
        if none_match is not None:
            assert none_match == "*"
        if match is not None and there is None:
            raise ClientError({"Error": {"Code": "NoSuchKey", "Message": "none"}}, operation)
        if (none_match and there is not None) or (match is not None and there is not None and there[1] != match):
            raise ClientError({"Error": {"Code": "PreconditionFailed", "Message": "no"}}, operation)
        etag = _etag(body)
        self.objects[key] = (bytes(body), etag, metadata)
        return etag


def memory_store(s3: MemoryS3 | None = None) -> Store:
    return Store(s3 or MemoryS3(), "bucket")


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
