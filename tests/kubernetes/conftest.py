"""One real control plane for all tests of this folder. Only `make test-kubernetes` (`-m kubernetes`) runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from config.environment import Environment
from config.load import load
from config.placeholders import AT_APPLY, PLACEHOLDERS, fill
from k8s import manifests
from tests.kubernetes import kubelet
from tests.kubernetes.control_plane import ControlPlane, running
from tools import kubernetes_binaries

Objects = dict[str, list[dict[str, Any]]]
NAMES = ("local", "production", "reference")
DEPLOYED = {name: f"fs-0123456789abcdef0-{name.lower().replace('_', '-')}" for name in PLACEHOLDERS}
# As `hyperpod-rl supervise drill --deploy` fills them; the zip is no zip.
APPLIED = dict.fromkeys(AT_APPLY, "1") | {"RUN_ID": "drill", "CODE_ZIP": "eA=="}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run that chose its tests by marks and did not name this one leaves these alone."""
    chosen = config.getoption("-m")
    ours = [item for item in items if "tests/kubernetes" in item.path.as_posix()]
    for item in ours:
        item.add_marker(pytest.mark.kubernetes)
        item.add_marker(pytest.mark.xdist_group("heavy"))
    if chosen and "kubernetes" not in chosen and ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def binaries(request: pytest.FixtureRequest) -> kubernetes_binaries.Binaries:
    """Built, or found; where neither can be, one line says how, and CI fails."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        """Minutes pass without a word otherwise: past pytest, which shows what a test prints only if it fails."""
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", flush=True)

    try:
        return kubernetes_binaries.ensure(tell=tell)
    except kubernetes_binaries.Missing as missing:
        if os.environ.get("CI"):
            pytest.exit(f"must not be skipped in CI: {missing}", returncode=1)
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def plane(binaries: kubernetes_binaries.Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane with KubeRay in it."""
    with running(tmp_path_factory.mktemp("kubernetes"), binaries) as made:
        made.start_kuberay()
        yield made


@pytest.fixture(scope="session")
def nodes(plane: ControlPlane) -> Iterator[kubelet.Kubelet]:
    """Kubelets; without nodes until a test says which."""
    made = kubelet.Kubelet(plane.api("kubelet"))
    made.start()
    yield made
    made.stop()


@cache
def charts(name: str) -> Objects:
    """Manifests of an environment, filled as after a deploy and by the launcher. Shared: read only."""
    return {chart: [fill(found, DEPLOYED | APPLIED) for found in objects] for chart, objects in manifests.charts(load(name)).items()}


@pytest.fixture(scope="module", params=NAMES)
def environment(request: pytest.FixtureRequest) -> Environment:
    """Each environment that the project carries."""
    return load(request.param)
