"""Which release answers a request: `<base>:current` and `<base>:canary` name aliases, everything else is left as it is.

Runs inside the endpoint, delivered as a file: only the standard library, nothing of ours but `serving.ingress` beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

CURRENT: Final = "current"
CANARY: Final = "canary"
RELEASE_HEADER: Final = "x-hyperpod-rl-release"
ALIAS_HEADER: Final = "x-hyperpod-rl-alias"
_RELEASE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


@dataclass(frozen=True)
class Alias:
    """What an alias object says: the release, and of a canary the share of requests (0..1) that go to it."""

    release: str
    share: float = 0.0


@dataclass(frozen=True)
class Aliases:
    """Both aliases as they stand; None where there is none."""

    current: Alias | None = None
    canary: Alias | None = None


@dataclass(frozen=True)
class Asked:
    """The model that a request names: base model, and the adapter or alias behind the first colon ('' without one)."""

    base: str
    adapter: str


@dataclass(frozen=True)
class Route:
    """The release that is to answer, and the alias that led to it."""

    release: str
    alias: str


def read_alias(body: bytes) -> Alias | None:
    """The alias in an object's bytes; None where it names no release. Raises ValueError for anything else."""
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("an alias is a JSON object")
    release, share = found.get("release"), found.get("share")
    if release is None:
        return None
    if not isinstance(release, str) or not _RELEASE.fullmatch(release):
        raise ValueError("an alias names its release")
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1):
        raise ValueError("an alias's share is a number from 0 to 1")
    return Alias(release, float(share or 0.0))


def asked(model: object) -> Asked | None:
    """Split a model id as Ray Serve does: base before the first colon, adapter behind it. None for what is no text."""
    if not isinstance(model, str):
        return None
    base, _, adapter = model.partition(":")
    return Asked(base, adapter)


def route(aliases: Aliases, alias: str, *, user: object, draw: Callable[[], float]) -> Route | None:
    """The release for a request to an alias; None where the alias names none.

    Args:
        user: OpenAI's `user` field. Requests with the same one stay with the same release, so that one conversation is not
            answered by two; without it each request is drawn for itself.
        draw: a number from 0 (included) to 1 (excluded).
    """
    if alias == CANARY:
        return Route(aliases.canary.release, CANARY) if aliases.canary is not None else None
    canary = aliases.canary
    if canary is not None and canary.share > 0:
        sticky = isinstance(user, str) and user != ""
        if (_share_of(canary.release, str(user)) if sticky else draw()) < canary.share:
            return Route(canary.release, CANARY)
    return Route(aliases.current.release, CURRENT) if aliases.current is not None else None


def _share_of(release: str, user: str) -> float:
    return int.from_bytes(hashlib.sha256(f"{release}\0{user}".encode("utf-8", "surrogatepass")).digest()[:6]) / 2**48


def rewritten(body: dict[str, Any], model: str) -> bytes:
    """The request with another model, everything else as it was."""
    return json.dumps({**body, "model": model}).encode()
