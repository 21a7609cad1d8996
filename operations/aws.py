"""One environment's AWS as operations ask it: calls by name that give up soon and fail in one sentence, safe from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from config.environment import Environment
from training import deployed

CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 3, 15, 2
# What services say to a caller who may not ask.
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized", "AuthorizationError"})
# What each of these errors of the credentials needs.
_LOGIN = {
    "NoCredentialsError": "log in first (aws sso login), or set AWS_PROFILE",
    "ProfileNotFound": "check AWS_PROFILE",
    "UnauthorizedSSOTokenError": "run aws sso login",
    "SSOTokenLoadError": "run aws sso login",
}


class Unanswered(Exception):
    """A call that AWS refused, or that never arrived. `code` is the service's own, empty where none answered."""

    def __init__(self, operation: str, code: str, message: str) -> None:
        super().__init__(f"{operation}: {code}, {message}" if code else f"{operation}: {message}")
        self.operation, self.code, self.message = operation, code, message.rstrip(".")

    @property
    def denied(self) -> bool:
        """Whether the caller lacks the permission."""
        return self.code in _DENIED

    @property
    def reached(self) -> bool:
        """Whether a service answered at all."""
        return bool(self.code)

    @property
    def fix(self) -> str:
        """What would mend the connection or the credentials."""
        return _LOGIN.get(self.message.partition(":")[0], "check the network and AWS_ENDPOINT_URL")


class Aws:
    """Clients of one session, each made once."""

    def __init__(self, env: Environment, session: Any = None) -> None:
        """Raises Refused where endpoint and environment do not belong together, Unanswered for an AWS_PROFILE that is not there."""
        self.environment = env
        try:
            self._session = session or deployed.session(env)
        except Exception as error:
            raise _sentence("session", error) from error
        self._clients: dict[str, Any] = {}
        # A boto3 session is not made for several threads; its clients are.
        # https://boto3.amazonaws.com/v1/documentation/api/latest/guide/clients.html
        self._lock = threading.Lock()

    def client(self, service: str, region: str | None = None) -> Any:
        """The client of a service, in the environment's region or another."""
        key = f"{service}/{region or self.environment.region}"
        with self._lock:
            if key not in self._clients:
                from botocore.config import Config

                limits = Config(
                    connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, max_pool_connections=20,
                    retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
                )  # fmt: skip
                self._clients[key] = self._session.client(service, config=limits, region_name=region or self.environment.region)
            return self._clients[key]

    def regions(self, service: str) -> list[str]:
        """The regions in which a service is."""
        found: list[str] = self._session.get_available_regions(service)
        return found

    def call(self, service: str, operation: str, /, in_region: str | None = None, **arguments: Any) -> dict[str, Any]:
        """One call, by its name in snake case. Raises Unanswered."""
        try:
            answer: dict[str, Any] = getattr(self.client(service, in_region), operation)(**arguments)
            return answer
        except Exception as error:
            raise _sentence(f"{service}:{operation}", error) from error

    def pages(self, service: str, operation: str, key: str, /, **arguments: Any) -> Iterator[Any]:
        """The members of `key` on every page. Raises Unanswered."""
        try:
            client = self.client(service)
            if client.can_paginate(operation):
                for page in client.get_paginator(operation).paginate(**arguments):
                    yield from page.get(key, ())
            else:
                yield from getattr(client, operation)(**arguments).get(key, ())
        except Exception as error:
            raise _sentence(f"{service}:{operation}", error) from error


def _sentence(operation: str, error: Exception) -> Exception:
    """Unanswered for what botocore raises; anything else is a defect and comes back as it is."""
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, ClientError):
        detail = error.response.get("Error", {})
        return Unanswered(operation, str(detail.get("Code", "error")), " ".join(str(detail.get("Message", "")).split()))
    if isinstance(error, BotoCoreError):
        return Unanswered(operation, "", f"{type(error).__name__}: {' '.join(str(error).split())}")
    return error
