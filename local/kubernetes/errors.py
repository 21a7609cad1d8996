"""What the Kubernetes of this machine says when it does not accept a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# HTTP status of each reason: https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.34/#status-v1-meta
HTTP_STATUS = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "AlreadyExists": 409,
    "Conflict": 409,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "NotImplemented": 501,
    "ServiceUnavailable": 503,
}


class Rejected(Exception):
    """A request was not accepted. `problems` lists every sentence; `reason` is the Kubernetes status reason."""

    def __init__(self, problems: str | Iterable[str], *, reason: str = "Invalid") -> None:
        self.problems: Sequence[str] = (problems,) if isinstance(problems, str) else tuple(problems)
        self.reason = reason
        super().__init__("\n".join(self.problems))

    @property
    def code(self) -> int:
        """The HTTP status code that belongs to the reason."""
        return HTTP_STATUS[self.reason]
