"""Where the endpoint answers: an address of its Service that reaches this machine, or a port that kubectl forwards to it."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from config import names
from config.problems import Unreachable
from training.kubernetes import Kubectl

FORWARD_SECONDS: Final = 30.0
_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")
Start = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def reach(kubectl: Kubectl, *, start: Start = subprocess.Popen) -> Iterator[str]:
    """The endpoint's URL (without `/v1`), for as long as it is used.

    The internal load balancer's address, else an external address of KubeRay's Service, else a port on 127.0.0.1 that kubectl
    forwards. Raises Unreachable naming the step that is missing.
    """
    url = address(kubectl)
    if url is not None:
        yield url
        return
    with _forwarded(kubectl, start) as url:
        yield url


def address(kubectl: Kubectl) -> str | None:
    """URL of the endpoint without a forwarded port; None where it has no such address. Raises Unreachable if there is no endpoint."""
    env = kubectl.environment
    if env.serving.authentication == "internal-load-balancer":
        balancer = kubectl.get("services", namespace=env.serving.namespace, name=names.load_balancer_service(env))
        given = ((balancer or {}).get("status", {}).get("loadBalancer") or {}).get("ingress") or []
        for one in given:
            if host := one.get("hostname") or one.get("ip"):
                return f"http://{host}:{names.SERVE_PORT}"
    service = kubectl.get("services", namespace=env.serving.namespace, name=names.serve_service(env))
    if service is None:
        raise Unreachable(f"there is no endpoint {env.serving.namespace}/{env.serving.name}; run `hyperpod-rl serve up`")
    hosts: list[Any] = service.get("spec", {}).get("externalIPs") or []
    ports = {port.get("name"): port["port"] for port in service["spec"].get("ports") or []}
    return f"http://{hosts[0]}:{ports.get('serve', names.SERVE_PORT)}" if hosts else None


def cluster_url(kubectl: Kubectl) -> str:
    """URL for pods of the same cluster."""
    env = kubectl.environment
    return f"http://{names.serve_service(env)}.{env.serving.namespace}:{names.SERVE_PORT}"


@contextmanager
def _forwarded(kubectl: Kubectl, start: Start) -> Iterator[str]:
    from training import kubeconfig
    from training.kubernetes import kubectl as program

    env = kubectl.environment
    config = kubeconfig.ensure(env)
    command = (
        program(), "--kubeconfig", str(config), "port-forward", "--namespace", env.serving.namespace, "--address", "127.0.0.1",
        f"service/{names.serve_service(env)}", f":{names.SERVE_PORT}",
    )  # fmt: skip
    process = start(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **kubeconfig.credential(config)},
    )  # fmt: skip
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield f"http://127.0.0.1:{_port(lines)}"
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
        process.wait()
        reader.join(timeout=5)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Also afterwards, so that kubectl never waits for somebody to read what it says of each connection."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _port(lines: queue.Queue[str | None]) -> int:
    said: list[str] = []
    deadline = time.monotonic() + FORWARD_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except queue.Empty:
            break
        if line is None:
            raise Unreachable(f"kubectl port-forward ended: {' '.join(' '.join(said).split()) or 'it said nothing'}")
        if match := _FORWARDING.match(line):
            return int(match[1])
        said.append(line)
    raise Unreachable(f"kubectl port-forward did not begin within {FORWARD_SECONDS:.0f} s")
