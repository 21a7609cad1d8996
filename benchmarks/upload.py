"""Publishing an adapter of 1 GB to the local cloud's S3 against `aws s3 cp --recursive` of the same folder, in one run.

Our time is that of the product's own code: the upload with its conditions, all three objects, from this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import compare

GIGABYTE = 1_000_000_000
BUCKET = "upload-benchmark"
TIMES = 2  # the best of each


def run() -> list[str]:
    """The throughput of both ways."""
    with tempfile.TemporaryDirectory() as name, _cloud(Path(name)) as environment:
        folder = Path(name) / "adapter"
        folder.mkdir()
        _adapter(folder)
        os.environ.update(environment)
        import boto3
        from botocore.config import Config

        from serving.store import Store

        client = boto3.client("s3", config=Config(max_pool_connections=16))
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": environment["AWS_DEFAULT_REGION"]})
        ours, theirs = [], []
        for number in range(TIMES):  # in turns, so that both meet the machine's other work
            theirs.append(_copied(folder, f"theirs-{number}"))
            _emptied(client)
            ours.append(_published(Store(client, BUCKET), folder, number))
            _emptied(client)
    print(f"1 GB: {1000 / min(ours):.0f} MB/s ours, {1000 / min(theirs):.0f} MB/s aws s3 cp")
    return compare("publishing 1 GB / aws s3 cp --recursive", min(ours), min(theirs), budget=1.0)


def _adapter(folder: Path) -> None:
    """One tensor of random numbers, so that nothing on the way can compress it."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [GIGABYTE // 4], "data_offsets": [0, GIGABYTE]}}).encode()
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(10):
            file.write(os.urandom(GIGABYTE // 10))
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "release.json").write_text("{}")


def _published(store: Any, folder: Path, number: int) -> float:
    from config import names
    from serving import promote
    from serving.export import describe, stamp
    from serving.releases import Release, content_digest

    (folder / "config.json").write_text("{}")
    files = tuple(describe(folder / name) for name in (names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG))
    release = Release(
        name=names.release("bench", step=number, digest=content_digest(files)), adapter="bench", step=number, run_id="bench",
        environment="local", content_digest=content_digest(files), files=files, rank=8, alpha=8,
    )  # fmt: skip
    begin = time.perf_counter()
    promote.publish(store, promote.Plan(release, folder, stamp(folder)))
    taken = time.perf_counter() - begin
    (folder / "config.json").unlink()
    return taken


def _copied(folder: Path, prefix: str) -> float:
    command = [
        str(Path(sys.executable).parent / "aws"),
        "s3",
        "cp",
        "--recursive",
        "--only-show-errors",
        str(folder),
        f"s3://{BUCKET}/{prefix}",
    ]
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


def _emptied(client: Any) -> None:
    for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=item["Key"])


@contextmanager
def _cloud(folder: Path) -> Iterator[dict[str, str]]:
    from local import lifecycle, state

    before = os.environ.get(state.FOLDER)
    os.environ[state.FOLDER] = str(folder / "cloud")
    try:
        lifecycle.up()
        yield dict(lifecycle.environment())
    finally:
        lifecycle.down(purge=True)
        if before is None:
            del os.environ[state.FOLDER]
        else:
            os.environ[state.FOLDER] = before
