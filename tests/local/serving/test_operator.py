"""What becomes of a RayService object; Serve's REST API is played by a function."""

from __future__ import annotations

import copy
import io
import time
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from local.kubernetes.cluster import Cluster, Node
from local.kubernetes.store import Key
from local.serving import operator
from local.serving.operator import Services, on_this_machine
from tests.local.kubernetes.conftest import cluster, clusters, install_kuberay, ray_cluster

__all__ = ["cluster", "clusters"]
GPU_BUILDER = "ray.serve.llm:build_openai_app"
FRONT = {"aliases": "s3://bucket/aliases", "application": GPU_BUILDER}
CONFIG: dict[str, Any] = {
    "proxy_location": "EveryNode",
    "http_options": {"host": "0.0.0.0", "port": 8000, "request_timeout_s": 7},
    "applications": [
        {
            "name": "llm", "import_path": "serving.ingress:build", "runtime_env": {"working_dir": "s3://bucket/x.zip"},
            "args": {"llm_configs": [{"model_loading_config": {"model_id": "m"}}], "front": FRONT},
        },
        {"name": "plain", "import_path": GPU_BUILDER, "args": {}},
        {"name": "mine", "import_path": "mine:app"},
    ],
}  # fmt: skip


class Serve:
    """Serve's REST API: remembers what it was told, says what it is set to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[dict[str, Any]] = []
        self.status = "RUNNING"
        self.error: Callable[[], Exception] | None = None
        monkeypatch.setattr(operator, "_call", self.call)
        # Nothing is bound: somebody's web server on this machine may have the port.
        monkeypatch.setattr(operator.processes, "free_port", lambda address, *, preferred: preferred)

    def call(self, method: str, url: str, body: Any) -> dict[str, Any]:
        assert url == "http://127.66.1.2:8265/api/serve/applications/"
        if self.error is not None:
            raise self.error()
        if method == "PUT":
            self.told.append(body)
            return {}
        return {"applications": {"llm": {"status": self.status, "message": "m", "deployments": {"LLMServer": {"status": "HEALTHY"}}}}}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    return Serve(monkeypatch)


@pytest.fixture
def ready(cluster: Cluster) -> Cluster:
    cluster.set_nodes([Node(f"n{i}", capacity={"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}) for i in range(2)])
    install_kuberay(cluster)
    return cluster


def service(config: Any = CONFIG, *, strategy: str = "NewCluster", workers: int = 1) -> dict[str, Any]:
    text = config if isinstance(config, str) else yaml.safe_dump(config)
    spec = {"serveConfigV2": text, "upgradeStrategy": {"type": strategy}, "rayClusterConfig": ray_cluster(workers=workers, gpus=1)["spec"]}
    metadata = {"name": "maze-vlm", "namespace": "default", "annotations": {"access.sagemaker.amazonaws.com/enabled": "true", "other": "x"}}
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata, "spec": spec}


class Round:
    """Looks of the operator at a cluster whose RayClusters are ready at once."""

    def __init__(self, kubernetes: Cluster) -> None:
        self.kubernetes, self.services, self.dashboard = kubernetes, Services(), "http://127.66.1.2:8265"

    def look(self) -> bool:
        busy = self.services.reconcile(self.kubernetes, lambda cluster, namespace, name: self.dashboard)
        for endpoint in self.services._endpoints.values():
            if endpoint.telling is not None:
                endpoint.telling.join(timeout=120)
        for found in self.clusters():
            if not found.get("status"):
                key = Key("ray.io", "RayCluster", "default", found["metadata"]["name"])
                self.kubernetes.api.set_status(key, {"state": "ready"})
        return busy

    def until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < limit
            self.look()

    def clusters(self) -> list[dict[str, Any]]:
        return self.kubernetes.store.select(group="ray.io", kind="RayCluster")

    def status(self) -> dict[str, Any]:
        found = self.kubernetes.get("RayService", "default", "maze-vlm")
        assert found is not None
        return dict(found.get("status") or {})

    def running(self) -> bool:
        return self.status().get("serviceStatus") == "Running"


def test_only_what_must_differs_on_this_machine() -> None:
    given = copy.deepcopy(CONFIG)
    made = on_this_machine(CONFIG, "127.66.1.2")
    assert given == CONFIG
    assert made["proxy_location"] == "HeadOnly"
    assert made["http_options"] == {"host": "127.66.1.2", "port": 8000, "request_timeout_s": 7}
    assert [app["import_path"] for app in made["applications"]] == [
        "serving.ingress:build",
        "local.serving.application:build_openai_app",
        "mine:app",
    ]
    made["applications"][0]["args"]["front"]["application"] = "ray.serve.llm:build_openai_app"
    assert made["applications"][0] == CONFIG["applications"][0]


def test_from_object_to_answer(ready: Cluster, serve: Serve) -> None:
    ready.apply([service()], manager="alice")
    rounds = Round(ready)
    assert rounds.look(), "there is more to come"
    (made,) = rounds.clusters()
    assert made["metadata"]["name"].startswith("maze-vlm-")
    assert made["metadata"]["ownerReferences"][0]["kind"] == "RayService"
    assert made["metadata"]["annotations"]["access.sagemaker.amazonaws.com/enabled"] == "true"
    assert "other" not in made["metadata"]["annotations"]
    assert ready.creators[made["metadata"]["uid"]] == "alice", "a private endpoint lets in who applied the RayService"
    assert rounds.status()["conditions"][0]["status"] == "False"
    assert "externalIPs" not in (ready.get("Service", "default", "maze-vlm-serve-svc") or {})["spec"]
    rounds.until(rounds.running)
    assert serve.told == [on_this_machine(CONFIG, "127.66.1.2")]
    status = rounds.status()
    assert status["activeServiceStatus"]["applicationStatuses"]["llm"]["serveDeploymentStatuses"] == {
        "LLMServer": {"status": "HEALTHY", "message": ""}
    }
    assert status["activeServiceStatus"]["rayClusterName"] == made["metadata"]["name"]
    assert (status["numServeEndpoints"], status["conditions"][0]["status"]) == (1, "True")
    assert (ready.get("Service", "default", "maze-vlm-serve-svc") or {})["spec"]["externalIPs"] == ["127.66.1.2"]
    assert not rounds.look(), "nothing is on its way any more"
    assert len(serve.told) == 1


def test_where_8000_is_taken_on_this_machine_the_service_says_where_serve_answers(
    ready: Cluster, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator.processes, "free_port", lambda address, *, preferred: preferred + 77)
    ready.apply([service()], manager="alice")
    rounds = Round(ready)
    rounds.until(rounds.running)
    assert [told["http_options"]["port"] for told in serve.told] == [8077]
    spec = (ready.get("Service", "default", "maze-vlm-serve-svc") or {})["spec"]
    assert [port["port"] for port in spec["ports"]] == [8077]
    assert not rounds.look(), "chosen once, not at every look"


def test_another_configuration_goes_to_the_same_cluster(ready: Cluster, serve: Serve) -> None:
    rounds = Round(ready)
    ready.apply([service()], manager="alice")
    rounds.until(rounds.running)
    uid = rounds.clusters()[0]["metadata"]["uid"]
    changed = {**CONFIG, "applications": CONFIG["applications"][:1]}
    ready.apply([service(changed)], manager="alice")
    rounds.until(lambda: len(serve.told) == 2)
    assert serve.told[-1] == on_this_machine(changed, "127.66.1.2")
    assert [value["metadata"]["uid"] for value in rounds.clusters()] == [uid]


def test_another_cluster_is_made_where_the_strategy_says_so(ready: Cluster, serve: Serve) -> None:
    rounds = Round(ready)
    ready.apply([service()], manager="alice")
    rounds.until(rounds.running)
    before = rounds.clusters()[0]["metadata"]["name"]
    ready.apply([service(strategy="None", workers=2)], manager="alice")
    rounds.look()
    assert [value["metadata"]["name"] for value in rounds.clusters()] == [before]
    ready.apply([service(strategy="NewCluster", workers=2)], manager="alice")
    rounds.look()
    (now,) = rounds.clusters()
    assert now["metadata"]["name"] != before
    rounds.until(lambda: len(serve.told) == 2)


def test_what_serve_does_not_take_is_told(ready: Cluster, serve: Serve) -> None:
    rounds = Round(ready)
    # Made anew each time: a body can be read once.
    serve.error = lambda: urllib.error.HTTPError("u", 400, "Bad Request", {}, io.BytesIO(b"ValidationError: extra\n fields"))  # type: ignore[arg-type]
    ready.apply([service()], manager="alice")
    rounds.until(lambda: rounds.status().get("conditions", [{}])[0].get("message") == "ValidationError: extra fields")
    serve.error = lambda: OSError("connection refused")
    rounds.until(lambda: rounds.status()["conditions"][0]["message"] == "connection refused")
    serve.error, serve.status = None, "DEPLOY_FAILED"
    rounds.until(
        lambda: rounds.status()["pendingServiceStatus"].get("applicationStatuses", {}).get("llm", {}).get("status") == "DEPLOY_FAILED"
    )
    assert not rounds.running()
    serve.status = "RUNNING"
    rounds.until(rounds.running)
    rounds.dashboard = None  # type: ignore[assignment]
    rounds.until(lambda: not rounds.running())
    assert "externalIPs" not in (ready.get("Service", "default", "maze-vlm-serve-svc") or {})["spec"]


def test_what_it_made_goes_with_it(ready: Cluster, serve: Serve) -> None:
    rounds = Round(ready)
    ready.apply([service()], manager="alice")
    rounds.until(rounds.running)
    ready.delete([service()])
    rounds.look()
    assert rounds.clusters() == []
    assert ready.get("Service", "default", "maze-vlm-serve-svc") is None
    assert rounds.services._endpoints == {}
