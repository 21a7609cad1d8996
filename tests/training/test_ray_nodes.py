"""How the cluster stands where only Ray is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli import main
from config.problems import Unreachable
from tests.training.fakes import connection
from tests.training.fixtures import ray, shared
from tests.training.preflight.test_cluster_rules import Answer, Dashboard
from tests.training.scripted import DONE, Scripted, failed, start
from training import cluster as clusters
from training import ray_nodes, supervise

__all__ = ["ray", "shared"]


@pytest.mark.parametrize(("gpus", "ready", "workers"), [((2, 2, 2), True, 3), ((2, 2), False, 2), ((2, 2, 1), False, 2), ((), False, 0)])
def test_ready_is_every_worker_with_all_its_gpus(gpus: tuple[int, ...], ready: bool, workers: int) -> None:
    dashboard = Dashboard()
    dashboard.gpus = gpus  # type: ignore[assignment]
    state = ray_nodes.state(connection(dashboard))
    assert (state.ready, state.workers_ready, state.workers_wanted, state.gpus) == (ready, workers, 3, sum(gpus))


def test_a_dashboard_that_does_not_tell() -> None:
    class Silent(Dashboard):
        def _do_request(self, method: str, path: str) -> Answer:
            return Answer({"data": None})

    with pytest.raises(Unreachable, match="does not tell its nodes"):
        ray_nodes.state(connection(Silent()))


def test_supervise_with_rays_address_never_asks_kubernetes(
    ray: Scripted, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(ray, failed(3), DONE)
    asked: list[Any] = []
    monkeypatch.setattr(clusters, "state", lambda kubectl: pytest.fail("Kubernetes is not asked"))
    looks = [(2, 2), (2, 2, 2)]
    dashboard = Dashboard()

    def answer(method: str, path: str) -> Answer:
        dashboard.gpus = looks[min(len(asked), 1)]  # type: ignore[assignment]
        asked.append(path)
        return Dashboard._do_request(dashboard, method, path)

    ray._do_request = answer  # type: ignore[attr-defined]
    monkeypatch.setattr(supervise, "LOOK_SECONDS", 0.0)
    assert main.run(["supervise", "maze-1", "--address", "http://127.0.0.1:8265"]) == 0
    out = capsys.readouterr().out
    assert "2 of 3 workers ready, 4 GPUs" in out
    assert "3 of 3 workers ready, 6 GPUs" in out
