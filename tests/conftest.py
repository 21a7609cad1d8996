"""No test reaches beyond this machine, and those that start the same kind of process do not do so beside each other."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

import pytest

from tests.local_cloud import account, daemon, other_account

__all__ = ["account", "daemon", "other_account"]

# Who runs the tests in a shell of the local cloud (`hyperpod-rl local env`) gets the same outcome as everybody else.
for _name in ("HYPERPOD_RL_ENV", "HYPERPOD_RL_BUCKET", "HYPERPOD_RL_SHARED", "HYPERPOD_RL_SUBMITTER", "OPENAI_API_KEY"):
    os.environ.pop(_name, None)

# One worker under xdist for each: two Rays or two clouds at once are too much for two cores. What needs both counts as Ray.
HEAVY = ("ray", "cloud")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (group := next((name for name in HEAVY if item.get_closest_marker(name)), None)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to anything but the loopback interface and Unix sockets fail at once, with the address."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _loopback(address[0]):
            raise ConnectionRefusedError(f"a test tried to reach {address[0]}:{address[1]}")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
