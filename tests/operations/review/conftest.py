"""The base of each environment once for a whole session, and every pull request's head once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION", "1")
os.environ.setdefault("JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION", "1")

from operations.review.sides import Side
from tests.operations.review import revisions


@pytest.fixture(scope="session")
def bases() -> Callable[[str], Side]:
    """A base by the environment's name."""
    made: dict[str, Side] = {}

    def of(environment: str) -> Side:
        if environment not in made:
            made[environment] = revisions.base(environment)
        return made[environment]

    return of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In one worker with the tests of the stacks, which have loaded CDK already."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("stacks"))
