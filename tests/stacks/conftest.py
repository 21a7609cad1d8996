"""One synthesis of each environment for a whole session."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION", "1")
os.environ.setdefault("JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION", "1")

from config import load
from config.environment import Environment
from stacks.stack import EnvironmentStack
from tests.stacks.assembly import Assembly, synthesize

ENVIRONMENTS = ("reference", "production", "local")
EVERYTHING: dict[str, object] = {
    "remote_access.domain": {"name": "ray.example.com", "hosted_zone_id": "Z0123456789ABC"},
    "access.delivery": {"repository": "owner/name"},
    "studio.enabled": True,
    "storage.removal": "backup",
    "storage.encryption": "kms",
    "hyperpod.autoscaling": "karpenter",
    "hyperpod.task_governance": True,
    "ray_cluster.namespace": "hyperpod-ns-training",
    "serving.namespace": "hyperpod-ns-serving",
    "observability.monthly_budget_usd": 30000,
    "observability.alarm_email": "platform@example.com",
}
Variant = Callable[..., Environment]
Resources = dict[str, dict[str, object]]


@pytest.fixture(scope="session")
def assemblies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Assembly]:
    """The assembly of a named environment, made when first asked for."""
    made: dict[str, Assembly] = {}

    def of(name: str) -> Assembly:
        if name not in made:
            made[name] = synthesize(load.load(name), tmp_path_factory.mktemp(name), reviewed=True)
        return made[name]

    return of


@pytest.fixture(params=ENVIRONMENTS)
def assembly(request: pytest.FixtureRequest, assemblies: Callable[[str], Assembly]) -> Assembly:
    """Each environment that the project carries, in turn."""
    return assemblies(request.param)


@pytest.fixture(scope="session")
def reference(assemblies: Callable[[str], Assembly]) -> Assembly:
    """The reference environment."""
    return assemblies("reference")


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The reference environment with all that can be added to it."""
    return synthesize(changed("reference", EVERYTHING), tmp_path_factory.mktemp("everything"), reviewed=True)


@pytest.fixture
def variant() -> Variant:
    """An environment that differs from a named one: `variant("reference", {"storage.removal": "destroy"})`."""
    return changed


def changed(name: str, changes: dict[str, object]) -> Environment:
    """A named environment with other values at some dotted paths."""
    import yaml

    data = yaml.safe_load((load.ENVIRONMENTS / f"{name}.yaml").read_text())
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = data
        for parent in parents:
            place = place[int(parent)] if parent.isdigit() else place.setdefault(parent, {})
        place[last] = value
    return load.parse(yaml.safe_dump(data))


@pytest.fixture
def resources(tmp_path: Path) -> Callable[[type[EnvironmentStack], Environment], Resources]:
    """Resources of one stack of an environment, alone."""

    def of(stack: type[EnvironmentStack], settings: Environment) -> Resources:
        folder = tmp_path / f"{stack.__name__}-{len(list(tmp_path.iterdir()))}"
        made = synthesize(settings, folder, only=lambda app: stack(app, settings))
        return dict(made.templates[stack.__name__]["Resources"])

    return of


def by_type(made: Resources, others: Resources) -> dict[str, str]:
    """What is in one set of resources and not in the other: logical id without CDK's hash -> type."""
    return {re.sub(r"[0-9A-F]{8}$", "", name): str(made[name]["Type"]) for name in set(made) - set(others)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one worker under xdist: a second one would synthesize everything again."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("stacks"))
