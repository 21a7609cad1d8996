"""Releases on the local cloud's S3, with processes that are really killed."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from config import names
from config.load import load
from serving import aliases, export, promote, releases
from serving import store as stores
from serving.promote import Plan
from serving.store import Store
from tests.local.cloud.conftest import Account
from tests.serving.exports import RUN, make_record, write_export
from training.verdicts import Verdict

pytestmark = pytest.mark.cloud
ENV = load("local")
BUCKET = "releases"


@pytest.fixture
def store(account: Account) -> Iterator[Store]:
    client = account.client("s3")
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    made = Store(client, BUCKET)
    yield made
    for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
        client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
    for key in made.list(""):
        made.delete(key)
    client.delete_bucket(Bucket=BUCKET)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """An export whose weights go up in two parts."""
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    monkeypatch.setattr(stores, "PART_BYTES", 5 << 20)
    import numpy as np

    weights = {f"base_model.model.m.lora_{side}.weight": np.ones(shape, np.float32)
               for side, shape in (("A", (8, 100_000)), ("B", (100_000, 8)))}  # fmt: skip
    write_export(tmp_path, 10, weights=weights)
    found = export.checked(ENV, make_record(), 10)
    verdict = Verdict(at="", run_id=RUN, step=10, selected="best", passed=True, export_digest=found.digest, trainer="stand-in")
    return promote.plan(ENV, make_record().model_copy(update={"verdicts": (verdict,)}), found, record_bytes=b"")


def whole(store: Store, name: str) -> bool:
    """Whether there is a release; fails the test where there is half of one."""
    record = releases.read(store, name)
    if record is None:
        return False
    for file in record.files:
        found = store.get(names.release_key(name, file.name))
        assert found is not None, file.name
        assert hashlib.sha256(found[0]).hexdigest() == file.sha256
    return True


WRITES = ("create_multipart_upload", "upload_part", "complete_multipart_upload", "put_object")


def in_a_process(account: Account, plan: Plan, *, killed_before: int | None) -> int:
    """Publish in a child that is killed before its n-th write. Returns how it ended: 0, or -9."""
    child = os.fork()
    if child == 0:
        try:
            client, lock, count = Account(account.endpoint).client("s3"), threading.Lock(), 0

            def before(call: Any) -> Any:
                def made(**given: Any) -> Any:
                    nonlocal count
                    with lock:
                        if count == killed_before:
                            os.kill(os.getpid(), signal.SIGKILL)
                        count += 1
                    return call(**given)

                return made

            for write in WRITES:
                setattr(client, write, before(getattr(client, write)))
            promote.publish(Store(client, BUCKET), plan)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_every_write_a_promotion_leaves_nothing_or_a_release(account: Account, store: Store, plan: Plan) -> None:
    stop, broken = threading.Event(), list[AssertionError]()

    def poll() -> None:
        reading = Store(Account(account.endpoint).client("s3"), BUCKET)
        while not stop.is_set():
            try:
                whole(reading, plan.release.name)
            except AssertionError as error:
                broken.append(error)
                return

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for number in range(20):
            ended = in_a_process(account, plan, killed_before=number)
            there = whole(store, plan.release.name)
            assert there == (ended == 0)
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
        # Weights in two parts are four writes; what earlier ones left is gone on with, so that few are needed in the end.
        assert number >= 4
    finally:
        stop.set()
        reader.join()
    assert broken == []
    assert in_a_process(account, plan, killed_before=None) == 0
    assert [release.name for release in releases.list_releases(store)] == [plan.release.name]


def test_twenty_promoters_at_once_end_in_one_release_and_one_alias(account: Account, store: Store, plan: Plan) -> None:
    begin = threading.Barrier(20)

    def run(number: int) -> str:
        own = Store(Account(account.endpoint).client("s3"), BUCKET)
        begin.wait()
        release, _ = promote.publish(own, plan)
        return aliases.move(own, "current", release.name, reason=str(number)).release

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(run, range(20))) == {plan.release.name}
    assert whole(store, plan.release.name)
    assert len(store.list(names.ADAPTER_PREFIX)) == 4
    alias = aliases.read(store, "current")
    assert alias is not None
    assert (alias.release, len(alias.history)) == (plan.release.name, 1)
