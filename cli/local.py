"""`hyperpod-rl local up | down | status | env`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
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

    if not lifecycle.status().running:
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

    found = lifecycle.status()
    lines = [f"the local cloud runs as process {found.pid}" if found.running else "the local cloud does not run; hyperpod-rl local up"]
    if found.running and found.ports is not None:
        places = {"AWS": found.endpoint, "Kubernetes": _https(found.ports.kubernetes), "Ray dashboards": _https(found.ports.dashboards)}
        lines += [f"{name:<15} {url}" for name, url in places.items()]
    session.result(dataclasses.asdict(found), *lines)


def _https(port: int) -> str:
    return f"https://127.0.0.1:{port}"


@local.command(
    epilog="""\b
Example:
  eval "$(hyperpod-rl local env)\""""
)
@common
def env(session: Session) -> None:
    """Print the variables that commands need to speak to the local cloud.

    For environment `local`, or for the one that --env names if it is one of the local cloud's account: each has a kubeconfig and a
    shared folder of its own.
    """
    from config import load, names
    from local import lifecycle, state

    name, cluster = "local", state.FIRST_CLUSTER
    if session.environment_name not in ("reference", "local"):  # the first is every command's default, and in AWS
        wanted = load.load(session.environment_name)
        file = Path(session.environment_name)
        if wanted.local:
            name, cluster = str(file.resolve()) if file.suffix in (".yaml", ".yml") else wanted.name, names.eks_cluster(wanted)
    variables: Mapping[str, str] = lifecycle.environment(name, cluster=cluster)
    unset = lifecycle.against_it()
    lines = [f"unset {' '.join(unset)}"] if unset else []
    session.result(dict(variables), *lines, *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))


def _tell(session: Session, answer: Any, line: str) -> None:
    """What a lifecycle function returned: a mapping, a dataclass, a sentence or nothing."""
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        answer = dataclasses.asdict(answer)
    document = dict(answer) if isinstance(answer, Mapping) else {"message": str(answer)} if answer is not None else {"message": line}
    lines = [line] if line else [f"{key}: {value}" for key, value in document.items()]
    session.result(document, *lines)
