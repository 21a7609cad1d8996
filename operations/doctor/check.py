"""What a check is, and what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from config.environment import Environment
from operations.aws import Aws

Level = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """One line: how it stands, why, and the command or console page that mends it. `looked`: whether the check could look at all."""

    level: Level
    why: str
    fix: str = ""
    looked: bool = True


def ok(why: str) -> Finding:
    """As it should be."""
    return Finding("ok", why)


def warning(why: str, fix: str = "") -> Finding:
    """A deployment may work all the same."""
    return Finding("warning", why, fix)


def failed(why: str, fix: str) -> Finding:
    """A deployment, or what follows it, cannot work."""
    return Finding("failed", why, fix)


@dataclass(frozen=True)
class Identity:
    """Who the credentials belong to."""

    account: str
    arn: str


@dataclass(frozen=True)
class Subject:
    """What checks look at. Without `aws` only this machine and the environment file can be looked at.

    `answered_at`: the time on AWS's first answer, be it a refusal (seconds since 1970), as far as it said so.
    """

    environment: Environment
    aws: Aws | None = None
    identity: Identity | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], float] = time.time
    answered_at: float | None = None

    @property
    def account(self) -> Aws:
        """AWS, for checks that need it."""
        assert self.aws is not None
        return self.aws


@dataclass(frozen=True)
class Check:
    """One rule about the world. `look` raises Unanswered where AWS does not say."""

    name: str
    about: str
    look: Callable[[Subject], Iterator[Finding]]
    needs_aws: bool = True


@dataclass(frozen=True)
class Line:
    """A finding with the check that made it."""

    check: Check
    finding: Finding

    @property
    def sentence(self) -> str:
        """For people, on one line."""
        found = self.finding
        return f"{found.level:<8} {self.check.name:<22} {found.why}" + (f"; {found.fix}" if found.fix else "")

    def document(self) -> dict[str, Any]:
        """For programs."""
        found = self.finding
        return {
            "check": self.check.name, "about": self.check.about, "level": found.level, "why": found.why, "fix": found.fix,
            "looked": found.looked,
        }  # fmt: skip
