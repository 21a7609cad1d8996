"""One environment's AWS as operations ask it: calls by name that give up soon and fail in one sentence, safe from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from config.environment import Environment
from training import deployed, refusals

CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 3, 15, 2
# For whoever asks hundreds of times in a row: services then want pauses.
PATIENT = 6
# Without them ACM lists RSA certificates of 1024 and 2048 bits alone: https://docs.aws.amazon.com/acm/latest/APIReference/API_Filters.html
KEY_TYPES = ("RSA_1024", "RSA_2048", "RSA_3072", "RSA_4096", "EC_prime256v1", "EC_secp384r1", "EC_secp521r1")


class Unanswered(Exception):
    """A call that AWS refused, or that never arrived.

    `code` is the service's own, empty where none answered; `time` what its clock said then, in seconds since 1970.
    """

    def __init__(self, operation: str, code: str, message: str, *, region: str = "REGION", time: float | None = None) -> None:
        super().__init__(f"{operation}: {code}, {message}" if code else f"{operation}: {message}")
        self.operation, self.code, self.message = operation, code, message.rstrip(".")
        self.region, self.time = region, time

    @property
    def denied(self) -> bool:
        """Whether the caller lacks the permission."""
        return refusals.denied(self.code)

    @property
    def reached(self) -> bool:
        """Whether a service answered at all."""
        return bool(self.code)

    @property
    def hopeless(self) -> bool:
        """Whether every other call would get the same answer."""
        return refusals.hopeless(self.code, self.message)

    @property
    def fix(self) -> str:
        """What would mend it; empty where only the message itself says."""
        return refusals.fix(self.code, self.message, operation=self.operation, region=self.region)

    @property
    def sentence(self) -> str:
        """For a command that cannot go on without the answer."""
        said = str(self).rstrip(".") if self.reached and not self.hopeless else self.message
        return f"AWS cannot be asked: {said}" + (f"; {self.fix}" if self.fix else "")


class Aws:
    """Clients of one session, each made once."""

    def __init__(self, env: Environment, session: Any = None, *, attempts: int = ATTEMPTS) -> None:
        """Raises Refused where endpoint and environment do not belong together, Unanswered for an AWS_PROFILE that is not there."""
        self.environment, self._attempts = env, attempts
        deployed.check_endpoint(env)
        try:
            self._session = session or _session(env)
        except Exception as error:
            raise _sentence("session", error, env.region) from error
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
                    retries={"total_max_attempts": self._attempts, "mode": "standard"},
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
            raise _sentence(f"{service}:{operation}", error, in_region or self.environment.region) from error

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
            raise _sentence(f"{service}:{operation}", error, self.environment.region) from error


def _session(env: Environment) -> Any:
    import boto3

    return boto3.Session(region_name=env.region)


def _sentence(operation: str, error: Exception, region: str) -> Exception:
    """Unanswered for what botocore raises; anything else is a defect and comes back as it is."""
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, ClientError):
        detail = error.response.get("Error", {})
        message = " ".join(str(detail.get("Message", "")).split())
        date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        return Unanswered(operation, str(detail.get("Code", "error")), message, region=region, time=seconds_of(date))
    if isinstance(error, BotoCoreError):
        return Unanswered(operation, "", f"{type(error).__name__}: {' '.join(str(error).split())}", region=region)
    return error


def seconds_of(date: str | None) -> float | None:
    """The time that a service wrote into its answer, in seconds since 1970; None where it wrote none that can be read."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
