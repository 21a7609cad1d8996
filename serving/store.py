"""The artifact bucket: objects read and written whole, with S3's conditional writes where two may write at once.

`If-None-Match: *` and `If-Match: <etag>` on PutObject and CompleteMultipartUpload:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from config.environment import Environment

BUCKET_VARIABLE: Final = "HYPERPOD_RL_BUCKET"
MIB: Final = 1 << 20
PART_BYTES: Final = 16 * MIB
WORKERS: Final = 8
LARGEST_PARTS: Final = 10_000  # of one upload; S3 takes no more
BUSY_TRIES: Final = 12
_CONFLICTS: Final = ("PreconditionFailed", "412")
_BUSY: Final = ("ConditionalRequestConflict", "409")
_MISSING: Final = ("NoSuchKey", "NotFound", "404")
_WRITES: Final = ("PutObject", "CompleteMultipartUpload")
Written = TypeVar("Written")


class Conflict(Exception):
    """A conditional write was refused: the object is there already, or is not the one that was read."""


class Busy(Conflict):
    """Another conditional write of this object was under way, and whether the condition holds was not decided: to be tried again."""


@dataclass(frozen=True)
class Head:
    """What S3 tells of an object without its bytes. Metadata names are in lower case."""

    size: int
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Store:
    """One bucket. `client` is a boto3 S3 client. Every method raises Unreachable where S3 does not answer or refuses."""

    client: Any
    bucket: str
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)

    def get(self, key: str) -> tuple[bytes, str] | None:
        """An object's bytes and its etag; None if it is not there."""
        with _speaking(self.bucket):
            try:
                found = self.client.get_object(Bucket=self.bucket, Key=key)
            except Exception as error:
                if _code(error) in _MISSING:
                    return None
                raise
            return found["Body"].read(), str(found["ETag"])

    def sha256(self, key: str) -> str | None:
        """Digest of an object of any size, which is read piece by piece; None if it is not there."""
        with _speaking(self.bucket):
            try:
                body = self.client.get_object(Bucket=self.bucket, Key=key)["Body"]
            except Exception as error:
                if _code(error) in _MISSING:
                    return None
                raise
            total = hashlib.sha256()
            while piece := body.read(PART_BYTES):
                total.update(piece)
            return total.hexdigest()

    def head(self, key: str) -> Head | None:
        """Size, etag and metadata; None if it is not there."""
        with _speaking(self.bucket):
            try:
                found = self.client.head_object(Bucket=self.bucket, Key=key)
            except Exception as error:
                if _code(error) in _MISSING:
                    return None
                raise
            metadata = {name.lower(): value for name, value in (found.get("Metadata") or {}).items()}
            return Head(int(found["ContentLength"]), str(found["ETag"]), metadata)

    def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False, metadata: Mapping[str, str] | None = None
    ) -> str:
        """Write an object and return its etag.

        Args:
            if_match: only over the object with this etag.
            if_absent: only if there is none.

        Raises:
            Conflict: the condition does not hold.
        """

        def write() -> str:
            with _speaking(self.bucket):
                done = self.client.put_object(
                    Bucket=self.bucket, Key=key, Body=body, **_conditions(if_match, if_absent), **_with(metadata)
                )  # fmt: skip
                return str(done["ETag"])

        return self._decided(write)

    def _decided(self, write: Callable[[], Written]) -> Written:
        """Write again for as long as S3 answers 409: "On a 409 failure you should retry the upload" (PutObject's reference)."""
        for number in range(BUSY_TRIES - 1):
            try:
                return write()
            except Busy:
                self.sleep(random.uniform(0.1, 0.3) * min(number + 1, 10))  # noqa: S311 - spreads writers, guards nothing
        return write()

    def upload(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
        progress: Callable[[int], None] = lambda sent: None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a file of any size: in one piece, or in parts side by side that become an object all at once.

        `progress` is told how many more bytes have arrived, from several threads; `confirm` is called just before the object
        appears, and what it raises keeps it from appearing. What a killed upload leaves is no object;
        the bucket's life cycle removes its parts. Raises Conflict as `put` does, and OSError.
        """
        size = path.stat().st_size
        if size <= PART_BYTES:
            content = path.read_bytes()
            confirm()
            self.put(key, content, if_absent=if_absent, metadata=metadata)
            progress(size)
            return

        def write() -> None:
            self._in_parts(key, path, if_absent=if_absent, metadata=metadata, progress=progress, confirm=confirm)

        self._decided(write)

    def _in_parts(
        self, key: str, path: Path, *, if_absent: bool, metadata: Mapping[str, str] | None, progress: Callable[[int], None],
        confirm: Callable[[], None],
    ) -> None:  # fmt: skip
        if if_absent and self.head(key) is not None:
            raise Conflict("PreconditionFailed")  # before a gigabyte is sent that would be refused at its end
        with _speaking(self.bucket):
            upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=key, **_with(metadata))["UploadId"]
            where = {"Bucket": self.bucket, "Key": key, "UploadId": upload}
            try:
                parts = self._parts(where, path, path.stat().st_size, progress)
                confirm()
                self.client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts}, **_conditions(None, if_absent))
            except BaseException:
                with contextlib.suppress(Exception):
                    self.client.abort_multipart_upload(**where)
                raise

    def _parts(self, where: Mapping[str, str], path: Path, size: int, progress: Callable[[int], None]) -> Sequence[Mapping[str, Any]]:
        step = max(PART_BYTES, -(-size // LARGEST_PARTS))
        descriptor = os.open(path, os.O_RDONLY)

        def send(number: int) -> Mapping[str, Any]:
            body = os.pread(descriptor, step, (number - 1) * step)
            done = self.client.upload_part(**where, PartNumber=number, Body=body)
            progress(len(body))
            checksums = {name: value for name, value in done.items() if name.startswith("Checksum") and name != "ChecksumType"}
            return {"PartNumber": number, "ETag": done["ETag"], **checksums}

        try:
            with ThreadPoolExecutor(WORKERS) as pool:
                sent = [pool.submit(send, number) for number in range(1, -(-size // step) + 1)]
                wait(sent, return_when=FIRST_EXCEPTION)
                for each in sent:  # after a failure, what has not begun need not begin
                    each.cancel()
                failed = [error for each in sent if not each.cancelled() and (error := each.exception()) is not None]
                if failed:
                    raise failed[0]
                return [each.result() for each in sent]
        finally:
            os.close(descriptor)

    def delete(self, key: str) -> None:
        """Remove an object; no error if it is gone. Versions that the bucket keeps stay."""
        with _speaking(self.bucket):
            self.client.delete_object(Bucket=self.bucket, Key=key)

    def list(self, prefix: str) -> list[str]:
        """Keys below a prefix, in S3's order."""
        with _speaking(self.bucket):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
            return [str(item["Key"]) for page in pages for item in page.get("Contents", [])]


def open_store(env: Environment, aws: Any = None) -> Store:
    """The artifact bucket of a deployed environment, with the user's credentials (`aws`: a boto3 session instead).

    Raises Refused where endpoint, account and environment do not belong together, Unreachable where nothing is deployed.
    """
    from config.names import Parameter
    from training import deployed

    told = os.environ.get(BUCKET_VARIABLE)  # a Job of ours in the cluster, whose role reads objects and no parameters
    bucket = told or deployed.lookup(env, aws)[Parameter.ARTIFACT_BUCKET]
    return Store(client(env, aws), bucket)


def client(env: Environment, aws: Any = None) -> Any:
    """A boto3 S3 client in the environment's region for several threads, which gives up on a dead connection within a minute."""
    from botocore.config import Config

    from training import deployed

    limits = Config(
        connect_timeout=5, read_timeout=60, retries={"total_max_attempts": 4, "mode": "standard"}, max_pool_connections=2 * WORKERS
    )
    return (aws or deployed.session(env)).client("s3", config=limits)


def _conditions(if_match: str | None, if_absent: bool) -> dict[str, str]:
    return ({"IfMatch": if_match} if if_match is not None else {}) | ({"IfNoneMatch": "*"} if if_absent else {})


def _with(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    return {"Metadata": dict(metadata)} if metadata else {}


def _code(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


@contextlib.contextmanager
def _speaking(bucket: str) -> Iterator[None]:
    """Turns what boto3 raises into Conflict or Unreachable."""
    from training.deployed import reaching

    with reaching(f"bucket {bucket}"):
        try:
            yield
        except Exception as error:
            # A conditional write over an object that is gone answers NoSuchKey.
            if getattr(error, "operation_name", "") in _WRITES and (code := _code(error)) in (*_CONFLICTS, *_BUSY, *_MISSING):
                raise (Busy if code in _BUSY else Conflict)(code) from None
            raise
