"""A shared file system and a bucket of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.store import Store
from tests.serving.bucket import memory_store
from tests.serving.exports import GOOD, record_of, write_export, write_record


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for /shared, empty."""
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    return tmp_path


@pytest.fixture
def opened(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The bucket that the commands open; the run `demo` with an export of step 10 lies on the shared file system."""
    made = memory_store()
    monkeypatch.setattr("serving.store.open_store", lambda env, aws=None: made)
    write_export(shared, 10)
    write_record(shared, record_of(GOOD))
    return made
