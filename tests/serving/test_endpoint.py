"""Where the endpoint answers, and a port that kubectl forwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from config.environment import Environment
from config.problems import Unreachable
from serving import endpoint
from tests.serving.api_server import ApiServer
from tests.serving.test_deploy import env
from tests.training.fakes import FakeKubectl
from training import kubeconfig
from training.kubernetes import Kubectl

__all__ = ["env"]


def kubectl(env: Environment, server: ApiServer) -> Kubectl:
    return Kubectl(env, execute=FakeKubectl(server))


def with_balancer(env: Environment) -> Environment:
    return env.model_copy(update={"serving": env.serving.model_copy(update={"authentication": "internal-load-balancer"})})


def test_addresses_in_their_order(env: Environment) -> None:
    server = ApiServer()
    with pytest.raises(Unreachable, match="there is no endpoint serving/maze-vlm; run `hyperpod-rl serve up`"):
        endpoint.address(kubectl(env, server))
    server.put("Service", "maze-vlm-serve-svc", spec={})
    assert endpoint.address(kubectl(env, server)) is None
    server.put("Service", "maze-vlm-serve-svc", spec={"externalIPs": ["127.0.0.9"]})
    assert endpoint.address(kubectl(env, server)) == "http://127.0.0.9:8000"
    with endpoint.reach(kubectl(env, server), start=pytest.fail) as url:
        assert url == "http://127.0.0.9:8000"
    server.put("Service", "maze-vlm-serve-svc", spec={"externalIPs": ["127.0.0.9"], "ports": [{"name": "serve", "port": 8077}]})
    assert endpoint.address(kubectl(env, server)) == "http://127.0.0.9:8077", "the Service says where it answers"
    server.put("Service", "maze-vlm-serve-svc", spec={"externalIPs": ["127.0.0.9"]})
    balanced = kubectl(with_balancer(env), server)
    assert endpoint.address(balanced) == "http://127.0.0.9:8000", "while the load balancer has no name yet"
    server.put("Service", "maze-vlm-internal", status={"loadBalancer": {"ingress": [{"hostname": "nlb.elb.us-west-2.amazonaws.com"}]}})
    assert endpoint.address(balanced) == "http://nlb.elb.us-west-2.amazonaws.com:8000"
    assert endpoint.address(kubectl(env, server)) == "http://127.0.0.9:8000"
    assert endpoint.cluster_url(balanced) == "http://maze-vlm-serve-svc.serving:8000"


FORWARDS = """
import sys, time
print("a warning of kubectl's", flush=True)
print("Forwarding from 127.0.0.1:45678 -> 8000", flush=True)
print("x" * 200000, flush=True)  # more than a pipe holds: somebody must read on
print("done", file=open(sys.argv[1], "w"), flush=True)
time.sleep(60)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    monkeypatch.setattr(kubeconfig, "ensure", kubeconfig.path)
    monkeypatch.setattr(kubeconfig, "credential", lambda path: {})
    return []


def starting(script: str, started: list[subprocess.Popen[str]], asked: list[Sequence[str]], *more: str) -> Any:
    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        asked.append(command)
        started.append(subprocess.Popen([sys.executable, "-S", "-c", script, *more], **options))
        return started[-1]

    return start


def test_a_forwarded_port_lives_as_long_as_it_is_used(env: Environment, started: list[subprocess.Popen[str]], tmp_path: Any) -> None:
    server = ApiServer()
    server.put("Service", "maze-vlm-serve-svc", spec={})
    asked: list[Sequence[str]] = []
    written = tmp_path / "written"
    with endpoint.reach(kubectl(env, server), start=starting(FORWARDS, started, asked, str(written))) as url:
        assert url == "http://127.0.0.1:45678"
        while not written.exists():
            assert started[0].poll() is None
    assert started[0].poll() is not None
    assert list(asked[0][3:]) == [
        "port-forward", "--namespace", "serving", "--address", "127.0.0.1", "service/maze-vlm-serve-svc", ":8000"
    ]  # fmt: skip


def test_a_port_that_is_not_forwarded(env: Environment, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    server = ApiServer()
    server.put("Service", "maze-vlm-serve-svc", spec={})
    refuses = starting("print('error: timed out waiting for the condition')", started, [])
    with (
        pytest.raises(Unreachable, match="kubectl port-forward ended: error: timed out waiting for the condition"),
        endpoint.reach(kubectl(env, server), start=refuses),
    ):
        pass
    monkeypatch.setattr(endpoint, "FORWARD_SECONDS", 0.1)
    silent = starting("import time; time.sleep(60)", started, [])
    with pytest.raises(Unreachable, match="did not begin within"), endpoint.reach(kubectl(env, server), start=silent):
        pass
    assert all(process.poll() is not None for process in started)
