"""The two ways to count what costs money give the same: from the environment, and from its templates."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from config.load import load
from operations import footprint
from operations.review.sides import Side


@pytest.mark.parametrize("name", ["reference", "production", "local"])
def test_environment_and_templates_count_the_same(name: str, bases: Callable[[str], Side]) -> None:
    assert footprint.of_templates(bases(name).templates) == footprint.of_environment(load(name))
