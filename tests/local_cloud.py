"""The one local cloud of a test process, for every folder that needs one: a second would take the first one's state folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from local import lifecycle, state
from tests.local.cloud.conftest import Account


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lifecycle.Status]:
    """A running local cloud in a state folder of its own, its nodes joining after 0.2 s."""
    before = os.environ.get(state.FOLDER)
    os.environ[state.FOLDER] = str(tmp_path_factory.mktemp("cloud"))
    try:
        yield lifecycle.up(node_delay=0.2)
    finally:
        lifecycle.down(purge=True)
        if before is None:
            del os.environ[state.FOLDER]
        else:
            os.environ[state.FOLDER] = before


@pytest.fixture
def account(daemon: lifecycle.Status) -> Iterator[Account]:
    made = Account(str(daemon.endpoint))
    yield made
    lifecycle.set_faults([])
    for name in reversed(made.stacks):
        made.destroy(name)


@pytest.fixture
def other_account(daemon: lifecycle.Status) -> Iterator[Account]:
    """AWS's documentation account, which the environment `reference` is synthesized for."""
    made = Account(str(daemon.endpoint), "111122223333")
    yield made
    for name in reversed(made.stacks):
        made.destroy(name)
