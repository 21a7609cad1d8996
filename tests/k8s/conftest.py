"""Environments and their manifests, made once for all tests of the charts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from config.environment import Environment
from config.load import ENVIRONMENTS, load, parse
from k8s import manifests

Objects = dict[str, list[dict[str, Any]]]
NAMES = ("local", "production", "reference")


@cache
def _charts(name: str) -> Objects:
    return manifests.charts(load(name))


@pytest.fixture(params=NAMES)
def environment(request: pytest.FixtureRequest) -> Environment:
    """Each environment that the project carries."""
    return load(request.param)


@pytest.fixture
def objects(environment: Environment) -> Objects:
    """The manifests of that environment. Shared between tests: read only."""
    return _charts(environment.name)


@pytest.fixture
def reference() -> Environment:
    return load("reference")


@pytest.fixture
def edited() -> Callable[..., Environment]:
    """The reference environment with lines of its text replaced, as a user would edit it."""

    def edit(*replacements: tuple[str, str]) -> Environment:
        text = (ENVIRONMENTS / "reference.yaml").read_text()
        for old, new in replacements:
            assert old in text, f"{old!r} is not in reference.yaml"
            text = text.replace(old, new, 1)
        return parse(text)

    return edit
