"""The way to Ray's Jobs API: which one, what it survives, and what is said when there is none."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from config.environment import Environment
from config.load import load
from config.platform import RemoteAccess
from config.problems import Refused, Unreachable
from training import connection, kubeconfig


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("HYPERPOD_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(kubeconfig, "ensure", lambda env: _file(kubeconfig.path(env), "old"))
    return load("reference")


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def with_operator(env: Environment) -> Environment:
    return env.model_copy(update={"remote_access": RemoteAccess(endpoint_operator=True)})


def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = _file(tmp_path / "kubectl", f"#!/bin/sh\n{text}\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(connection, "kubectl", lambda: str(program))


def test_the_endpoint_operator_is_preferred(env: Environment) -> None:
    assert connection.endpoint_address(env) is None
    assert connection.endpoint_address(with_operator(env)) == "sagemaker_ray://skyrl-visgym/training"
    with connection.connect(with_operator(env)) as link:
        assert link.address == "sagemaker_ray://skyrl-visgym/training"


def test_without_it_a_port_is_forwarded_and_ends_with_the_command(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"echo $$ > {tmp_path}/pid; echo $@ > {tmp_path}/words; echo 'Forwarding from 127.0.0.1:43125 -> 8265'; exec sleep 60"
    kubectl(tmp_path, monkeypatch, said)
    with connection.connect(env) as link:
        assert link.address == "http://127.0.0.1:43125"
        link.renew()  # a lost forward is opened anew
        assert link.address == "http://127.0.0.1:43125"
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    words = (tmp_path / "words").read_text()
    assert "--namespace training port-forward --address 127.0.0.1 svc/skyrl-visgym-head-svc :8265" in words


def test_a_forward_that_fails_says_why_and_what_is_missing(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl(tmp_path, monkeypatch, 'echo "Error from server (NotFound): services \\"skyrl-visgym-head-svc\\" not found" >&2; exit 1')
    with pytest.raises(Unreachable, match=r"not found; is the cluster up \(`hyperpod-rl cluster up`\)"), connection.connect(env):
        pass


def test_an_address_by_hand(env: Environment) -> None:
    with connection.connect(env, address="http://10.0.0.1:8265") as link:
        assert link.address == "http://10.0.0.1:8265"
    for address in ("10.0.0.1:8265", "ray://x", "http://", "http://a b"):
        with pytest.raises(Refused), connection.connect(env, address=address):
            pass
    with pytest.raises(Refused, match="this machine only"), connection.connect(load("local"), address="http://10.0.0.1:8265"):
        pass


def test_a_cluster_that_moved_is_found_again(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def client(address: str) -> Any:
        tried.append(Path(os.environ["KUBECONFIG"]).read_text())
        if tried[-1] == "old":
            raise RuntimeError("Unable to connect to the K8s API server.")
        return "client"

    monkeypatch.setattr(connection, "_ray_client", client)
    monkeypatch.setattr(kubeconfig, "refresh", lambda env: _file(kubeconfig.path(env), "new"))
    monkeypatch.setenv("KUBECONFIG", "/the/users/own")
    with connection.connect(with_operator(env)) as link:
        assert link.call(lambda client: client) == "client"
    assert tried == ["old", "new"]
    assert os.environ["KUBECONFIG"] == "/the/users/own"


def test_no_ray_cluster_names_the_step(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Resource not found for cluster 'skyrl-visgym' in namespace 'training'. Verify the cluster name and namespace are correct."
    calls: list[str] = []

    def client(address: str) -> Any:
        calls.append(address)
        raise RuntimeError(said)

    monkeypatch.setattr(connection, "_ray_client", client)
    with connection.connect(with_operator(env)) as link, pytest.raises(Unreachable, match="hyperpod-rl cluster up"):
        link.call(lambda client: client)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Request failed with status code 404: Job x does not exist.", connection.Answered),
        ("Request failed with status code 500: Traceback: no.", connection.Answered),
        ("Request failed with status code 401: no session.", connection.Lost),
        ("Request failed with status code 500: Traceback: Failed to get head node agent within 10 seconds.", connection.Lost),
        ("Request failed with status code 502: Bad gateway.", connection.Lost),
        ("WebSocket connection closed unexpectedly with close code 1006", connection.Lost),
        ("Failed to connect to Ray at address: http://127.0.0.1:1.", connection.Lost),
    ],
)
def test_what_ray_says_and_what_the_way_says(said: str, kind: type[BaseException]) -> None:
    assert type(connection.translated(RuntimeError(said), "Ray")) is kind


def test_a_call_that_never_returns_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CALL_TIMEOUT_SECONDS", 0.1)
    begun = time.monotonic()
    for factory in (lambda _: None, lambda _: time.sleep(30)):
        link = connection.Connection(load("reference"), "http://x", factory=factory)
        with pytest.raises(connection.Lost, match="did not answer within"):
            link.call(lambda _: time.sleep(30))
    assert time.monotonic() - begun < 5
