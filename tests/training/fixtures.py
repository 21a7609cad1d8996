"""Fixtures of the launcher's tests: the shared file system as a folder, and a scripted Ray behind the commands."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.training.fakes import reached
from tests.training.scripted import READY, Scripted
from training import cluster as clusters
from training import follow as following
from training import layout, supervise
from training.supervise import Limits


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    return tmp_path / "runs" / "maze-1"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    fake = Scripted()
    reached(fake, monkeypatch)
    monkeypatch.setattr(following, "STATUS_SECONDS", 0.05)
    monkeypatch.setattr(clusters, "state", lambda kubectl: READY)
    monkeypatch.setattr(supervise, "Limits", functools.partial(Limits, backoff=0.0))
    return fake
