"""`hyperpod-rl local up | down | status | env`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from cli.session import Session, common


@click.group(
    epilog="""\b
Example:
  hyperpod-rl local up
  eval "$(hyperpod-rl local env)"
  hyperpod-rl local down"""
)
def local() -> None:
    """The local cloud: this machine stands in for AWS, EKS and the GPU trainer."""


@local.command(
    epilog="""\b
Example:
  hyperpod-rl local up"""
)
@common
def up(session: Session) -> None:
    """Start the local cloud and wait until it answers; content if it runs already."""
    from local import lifecycle

    session.note("starting the local cloud")
    _tell(session, lifecycle.up(), 'the local cloud is up; next: eval "$(hyperpod-rl local env)"')


@local.command(
    epilog="""\b
Example:
  hyperpod-rl local down"""
)
@common
def down(session: Session) -> None:
    """End the local cloud with everything that it started; content if it does not run."""
    from local import lifecycle

    lifecycle.down()
    _tell(session, None, "the local cloud is down")


@local.command(
    epilog="""\b
Example:
  hyperpod-rl local status --json"""
)
@common
def status(session: Session) -> None:
    """Say whether the local cloud runs, and where."""
    from local import lifecycle

    _tell(session, lifecycle.status(), "")


@local.command(
    epilog="""\b
Example:
  eval "$(hyperpod-rl local env)\""""
)
@common
def env(session: Session) -> None:
    """Print the variables that commands need to speak to the local cloud."""
    from local import lifecycle

    variables: Mapping[str, str] = lifecycle.environment()
    session.result(dict(variables), *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))


def _tell(session: Session, answer: Any, line: str) -> None:
    """What a lifecycle function returned: a mapping, a dataclass, a sentence or nothing."""
    import dataclasses

    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        answer = dataclasses.asdict(answer)
    document = dict(answer) if isinstance(answer, Mapping) else {"message": str(answer)} if answer is not None else {"message": line}
    lines = [line] if line else [f"{key}: {value}" for key, value in document.items()]
    session.result(document, *lines)
