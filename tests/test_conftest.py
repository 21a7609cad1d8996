"""The guard that keeps tests on this machine."""

from __future__ import annotations

import socket

import pytest


def test_nothing_beyond_this_machine_is_reached() -> None:
    with socket.socket() as outside, pytest.raises(ConnectionRefusedError, match=r"192\.0\.2\.1"):
        outside.connect(("192.0.2.1", 80))  # RFC 5737: an address for documentation
