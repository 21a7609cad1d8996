"""Kubernetes read from a pod: over TLS with the service account's token, and every way in which that can go wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli import supervise
from config import names
from config.load import load
from config.problems import Unreachable
from local.kubernetes import certificates
from tests.training.fakes import FakeRay, connection
from training import cluster, pod_api, ray_nodes
from training.cluster import State
from training.kubernetes import Rejected

ENV = load("reference")
WHERE = {"namespace": ENV.ray_cluster.namespace, "name": ENV.ray_cluster.name}
CLUSTER = {
    "metadata": {"generation": 1},
    "spec": {"workerGroupSpecs": [{"replicas": 3}]},
    "status": {"state": "ready", "readyWorkerReplicas": 2, "desiredGPU": "6", "conditions": [{"type": "HeadPodReady", "status": "True"}]},
}
POD = {"metadata": {"name": "w-3"}, "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]}}


class Server(ThreadingHTTPServer):
    """An API server that knows one RayCluster and one pod, and one token."""

    answers: dict[str, tuple[int, Any]]
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked.append(self.path)
        code, answer = self.server.answers.get(self.path.partition("?")[0], (404, {"message": "not found"}))
        if self.headers["Authorization"] != "Bearer right":
            code, answer = 401, {"message": "Unauthorized"}
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = certificates.make(tmp_path / "certificates")
    identity = tmp_path / "identity"
    identity.mkdir()
    (identity / "ca.crt").write_bytes(made.authority.read_bytes())
    (identity / "token").write_text("right\n")
    api, ray = f"/api/v1/namespaces/{WHERE['namespace']}", f"/apis/ray.io/v1/namespaces/{WHERE['namespace']}"
    found = Server(("127.0.0.1", 0), Handler)
    found.asked = []
    found.answers = {
        f"{ray}/rayclusters/{WHERE['name']}": (200, CLUSTER), f"{api}/pods": (200, {"items": [POD]}), f"{api}/events": (200, {"items": []}),
    }  # fmt: skip
    found.socket = made.server_context().wrap_socket(found.socket, server_side=True)
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(found.server_address[1]))
    monkeypatch.setenv(names.IN_CLUSTER_VARIABLE, names.eks_cluster(ENV))
    monkeypatch.setattr(pod_api, "IDENTITY", identity)
    yield found
    found.shutdown()
    found.server_close()
    thread.join(5)


def here() -> pod_api.PodApi:
    found = pod_api.here(ENV)
    assert found is not None
    return found


def test_it_says_why_the_raycluster_is_not_ready(server: Server) -> None:
    state = cluster.state(here())
    assert (state.exists, state.head_ready, state.workers_ready, state.workers_wanted) == (True, True, 2, 3)
    assert state.waiting_for == ["pod w-3: not scheduled, no node"]
    assert server.asked[1].endswith(f"/pods?labelSelector=ray.io%2Fcluster%3D{WHERE['name']}")


def test_what_is_not_there_is_none_and_a_refusal_is_said(server: Server) -> None:
    assert here().get(cluster.KIND, namespace="training", name="other") is None
    server.answers = dict.fromkeys(server.answers, (403, {"message": "rayclusters.ray.io is forbidden"}))
    with pytest.raises(Rejected, match=r"rayclusters\.ray\.io is forbidden"):
        here().get(cluster.KIND, **WHERE)
    (here().identity / "token").write_text("old")
    with pytest.raises(Rejected, match="Unauthorized"):
        here().get(cluster.KIND, **WHERE)


@pytest.mark.parametrize("answer", [(503, b"<html>"), (200, b"{"), (500, {"message": "etcd"})])
def test_an_answer_that_is_none_is_unreachable(answer: tuple[int, Any], server: Server) -> None:
    server.answers = dict.fromkeys(server.answers, answer)
    with pytest.raises(Unreachable):
        here().get(cluster.KIND, **WHERE)


def test_no_server_no_token_and_another_authority_are_unreachable(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    api = here()
    (api.identity / "ca.crt").write_text("nonsense")
    with pytest.raises(Unreachable):
        api.get(cluster.KIND, **WHERE)
    (api.identity / "token").unlink()
    with pytest.raises(Unreachable):
        api.get(cluster.KIND, **WHERE)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    with pytest.raises(Unreachable):
        api.get(cluster.KIND, **WHERE)


def test_it_writes_nothing(server: Server) -> None:
    with pytest.raises(Rejected, match="only reads"):
        here().delete("pods", namespace="training", name="w-3")
    assert server.asked == []


def test_a_pod_of_another_cluster_is_not_here(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.IN_CLUSTER_VARIABLE, "hyperpod-rl-other")
    assert pod_api.here(ENV) is None
    monkeypatch.delenv(names.IN_CLUSTER_VARIABLE)
    assert pod_api.here(ENV) is None


def test_the_supervisor_in_the_cluster_asks_kubernetes_then_ray(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    by_ray = State("x", "training", exists=True, head_ready=True, workers_ready=1, workers_wanted=3)
    monkeypatch.setattr(ray_nodes, "state", lambda connection: by_ray)
    standing = supervise._standing(ENV, connection(FakeRay()), by_ray=True)
    assert standing().waiting_for == ["pod w-3: not scheduled, no node"]  # Kubernetes knows why
    status = {**CLUSTER["status"], "readyWorkerReplicas": 3}
    path = next(path for path in server.answers if "rayclusters" in path)
    server.answers[path] = (200, {**CLUSTER, "status": status})
    assert standing() is by_ray  # all pods are ready, their GPUs have not joined
    server.answers = dict.fromkeys(server.answers, (403, {"message": "forbidden"}))
    assert standing() is by_ray
