"""`verify` against the stand-in's own API behind the real front: adapters that are real files in a bucket, played by a real policy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from config import names
from config.load import load
from local.serving.application import Api
from local.serving.policy import Adapters
from local.trainer import checkpoint
from local.trainer.policy import Weights, initial_weights
from serving import aliases, evaluate, tasks, verify
from serving.ingress import AliasObjects, Front, Reader
from serving.openai_client import Endpoint
from serving.releases import File, Release, Verdict, content_digest
from serving.store import Store
from tests.local.serving.test_application import ENGINE, LORA, adapter
from tests.serving.bucket import MemoryS3, memory_store
from tests.serving.http_endpoint import serving

BASE = "visgym"


class Ignoring(Adapters):
    """An engine that takes an adapter's name and answers with the base model."""

    def weights(self, adapter: str) -> Weights:
        super().weights(adapter)
        return self.base


def publish(store: Store, tensors: dict[str, Any], *, step: int, alias: str | None = None) -> str:
    """A release as `promote` leaves it, the gate's word included: this policy solves nothing."""
    files = checkpoint.adapter_files(tensors, LORA, base="")
    entries = tuple(File(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items())
    digest = content_digest(entries)
    release = Release(
        name=names.release("maze-grpo", step=step, digest=digest), adapter="maze-grpo", step=step, run_id="a", environment="local",
        content_digest=digest, files=entries, rank=LORA.rank, alpha=LORA.alpha,
        gate=Verdict(passed=True, at="2026-11-29T00:00:00+00:00", candidate_rate=0.0),
    )  # fmt: skip
    for file, data in {**files, names.RELEASE_RECORD: release.text()}.items():
        store.put(names.release_key(release.name, file), data)
    if alias:
        aliases.move(store, alias, release.name, reason="test", by="t")
    return release.name


def look(s3: MemoryS3, model: str, made: Callable[..., Adapters] = Adapters) -> verify.Report:
    env = load("local")
    base = initial_weights(np.random.default_rng(0))
    api = Api(BASE, made("s3://bucket/lora-adapters", base, 8, client=s3), {**ENGINE, "limit_mm_per_prompt": {"image": 16}})
    front = Front(api, read=Reader(AliasObjects("s3://bucket/lora-adapters/aliases", s3)))
    wanted = evaluate.plan(env, mazes=4, max_turns=3)
    with serving(front) as url:
        task = tasks.task(env, "built-in", max_turns=wanted.max_turns)
        return verify.verify(Endpoint(url, model, tries=1), Store(s3, "bucket"), wanted, task)


def failed(report: verify.Report) -> list[str]:
    return [check.name for check in report.checks if check.passed is False]


@pytest.fixture
def s3() -> MemoryS3:
    return MemoryS3()


def test_a_release_by_its_alias(s3: MemoryS3) -> None:
    release = publish(memory_store(s3), adapter(1), step=20, alias="current")
    report = look(s3, f"{BASE}:current")
    assert report.passed, [check.line() for check in report.checks]
    assert report.release == release


def test_an_all_zero_adapter(s3: MemoryS3) -> None:
    release = publish(memory_store(s3), adapter(1, zero=True), step=20)
    assert failed(look(s3, f"{BASE}:{release}")) == ["applied"]


def test_an_endpoint_that_ignores_the_adapter(s3: MemoryS3) -> None:
    release = publish(memory_store(s3), adapter(1), step=20)
    assert look(s3, f"{BASE}:{release}").passed
    assert failed(look(s3, f"{BASE}:{release}", Ignoring)) == ["applied"]


def test_another_runs_adapter_under_this_name(s3: MemoryS3) -> None:
    store = memory_store(s3)
    release, other = publish(store, adapter(1), step=20), publish(store, adapter(2), step=20)
    content = store.get(names.release_key(other, names.ADAPTER_WEIGHTS))
    assert content is not None
    store.put(names.release_key(release, names.ADAPTER_WEIGHTS), content[0])
    assert failed(look(s3, f"{BASE}:{release}")) == ["bytes"]
