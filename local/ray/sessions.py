"""Tokens and sessions of the dashboards' proxy: a token is good once for one RayCluster, a session for a few hours.

Lifetimes of the real ones: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-endpoint-operator-security.html
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

TOKEN_SECONDS = 15 * 60.0
SESSION_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class Target:
    """Which RayCluster of which EKS cluster."""

    cluster: str
    namespace: str
    name: str


@dataclass
class Sessions:
    """Thread-safe. `clock` counts seconds; tests give their own."""

    token_seconds: float = TOKEN_SECONDS
    session_seconds: float = SESSION_SECONDS
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._tokens: dict[str, tuple[Target, float]] = {}
        self._sessions: dict[str, tuple[Target, float]] = {}
        self._lock = threading.Lock()

    def token(self, target: Target) -> str:
        """A new token for one connection."""
        return self._keep(self._tokens, target, self.token_seconds)

    def exchange(self, token: str) -> str | None:
        """The session that a token buys, or None when the token is unknown, used or too old."""
        with self._lock:
            found = self._tokens.pop(token, None)
        if found is None or found[1] < self.clock():
            return None
        return self._keep(self._sessions, found[0], self.session_seconds)

    def target(self, session: str) -> Target | None:
        """What a session leads to, or None when it is unknown or too old."""
        with self._lock:
            found = self._sessions.get(session)
        return found[0] if found is not None and found[1] >= self.clock() else None

    def _keep(self, where: dict[str, tuple[Target, float]], target: Target, seconds: float) -> str:
        made = secrets.token_urlsafe(32)
        at = self.clock()
        with self._lock:
            for old in [name for name, (_, until) in where.items() if until < at]:
                del where[old]
            where[made] = (target, at + seconds)
        return made
