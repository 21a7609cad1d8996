"""No test reaches beyond this machine, and those that start the same kind of process do not do so beside each other."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.local_cloud import account, daemon, other_account

__all__ = ["account", "daemon", "other_account"]

# Whatever a shell has set for other tools, or for the local cloud (`hyperpod-rl local env`): everybody gets the same outcome.
# Left alone: where certificates, caches and builds lie, and what asks for a certain kind of test (KUBEBUILDER_ASSETS, *_DRILL).
_FOREIGN = re.compile(
    r"AWS_(?!CA_BUNDLE).*|RAY_.*|GIT_(?!SSL_|CONFIG).*|CDK_.*|JSII_(?!SILENCE).*|KUBECONFIG|OPENAI_.*"
    r"|HYPERPOD_RL_(ENV|BUCKET|SHARED|SUBMITTER|CACHE|FAULTS|LOCAL|LOCAL_PORT|LOCAL_KUBERNETES)"
    r"|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR.*|TTY_COMPATIBLE|PYTHONSAFEPATH|PYTHONSTARTUP|PYTHONIOENCODING",
    re.IGNORECASE,
)
for _name in [name for name in os.environ if _FOREIGN.fullmatch(name)]:
    del os.environ[_name]
# As if the user had no settings for AWS, and past the proxy that the environment may name (Go needs it to build what is built).
os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1,127.0.0.0/8,localhost,::1"]))
# Python passes over a $TMPDIR that is no folder; Node and jsii end there.
if not os.path.isdir(os.environ.get("TMPDIR", "/")):
    del os.environ["TMPDIR"]

# The same examples everywhere, and no limit on the time that one takes: a timing is a benchmark, never a test.
settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

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
