"""`hyperpod-rl supervise`, and what `submit --supervise` does after submitting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from cli.session import Session, streaming

if TYPE_CHECKING:
    from config.environment import Environment
    from training.connection import Connection
    from training.run import Specification
    from training.supervise import Limits


def _checked(context: click.Context, parameter: click.Parameter, run: str) -> str:
    from config.names import check_run_id

    return check_run_id(run)


_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command(
    epilog="""\b
Example:
  hyperpod-rl supervise maze-grpo-1
  hyperpod-rl supervise maze-grpo-1 --attempts 5 --json | jq -c 'select(.event != "step")'

\b
Ctrl-C leaves the run running; `supervise` again returns to it. Exit codes: 0 the run succeeded; 1 it did not; 3 the cluster did
not come back in time."""
)
@click.argument("run", callback=_checked)
@click.option("--attempts", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="Most attempts, the one that is watched first included.")  # fmt: skip
@click.option("--hang-factor", type=_POSITIVE, default=10.0, show_default=True, metavar="X",
              help="An attempt hangs when no step came for X median step times ...")  # fmt: skip
@click.option("--hang-minimum", type=_POSITIVE, default=15.0, show_default=True, metavar="MINUTES", help="... but never before this.")
@click.option("--first-step", type=_POSITIVE, default=60.0, show_default=True, metavar="MINUTES",
              help="Time for an attempt to load its models and make its first step.")  # fmt: skip
@click.option("--ready", type=_POSITIVE, default=120.0, show_default=True, metavar="MINUTES",
              help="Time for the cluster to have all GPUs back after a fault.")  # fmt: skip
@click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")
@streaming
def supervise(
    session: Session, run: str, attempts: int, hang_factor: float, hang_minimum: float, first_step: float, ready: float, address: str | None
) -> int:
    """Watch over a run, and start its next attempt after a fault.

    A failed, hung or lost attempt is stopped if need be; when all GPUs are ready again the next one goes on from the last
    checkpoint. The same error at the same step twice ends it at once. Every decision is printed, and is an event of the run's
    record where the shared file system is visible.
    """
    from training import jobs
    from training.supervise import Limits

    env = session.environment()
    limits = Limits(
        attempts=attempts, hang_factor=hang_factor, hang_minimum=hang_minimum * 60, first_step=first_step * 60, ready=ready * 60
    )

    with jobs.connect(env, address=address, note=session.note) as connection:
        its = jobs.attempts(connection, run)
        first: list[Specification] = []

        def specification() -> Specification:
            # Made once, and before anything fails: a head that is restarted forgets what was submitted.
            if not first:
                first.append(_submitted(env, connection, run))
            return first[0]

        if not its or its[-1].status != "SUCCEEDED":
            specification()
        return watch_over(session, env, connection, run, specification=specification, limits=limits)


def _submitted(env: Environment, connection: Connection, run: str) -> Specification:
    """The specification of the newest attempt. Raises Refused if nobody knows it, or if the environment has changed since."""
    from config.problems import Problem, Refused
    from training import jobs, record, reproduce

    folder = record.folder_here(env, run)
    known = record.read(folder) if folder is not None else None
    what = reproduce.submitted(run, attempts=jobs.attempts(connection, run), record=known)
    if what is None:
        jobs.newest(connection, run)
        rule = "neither the Ray cluster nor the record tells what it was submitted with"
        raise Refused(Problem("run", run, rule, f"submit it again: hyperpod-rl submit --run-id {run} --supervise"))
    return reproduce.again(env, what)


def watch_over(
    session: Session, env: Environment, connection: Connection, run: str, *, specification: Callable[[], Specification],
    limits: Limits | None = None,
) -> int:  # fmt: skip
    """Supervise a run and print what happens, as lines or as one JSON object a line. Returns the exit code."""
    from training import cluster as clusters
    from training import supervise as supervising
    from training.follow import Ended
    from training.keeping import Keeper
    from training.kubernetes import Kubectl

    keeper = Keeper(connection, run, note=session.note)
    if keeper.folder is None:
        session.note("the shared file system is not visible here, so no record is kept: see $HYPERPOD_RL_SHARED")
    supervisor = supervising.Supervisor(
        connection, run, specification, lambda: clusters.state(Kubectl(env)), keeper, limits=limits or supervising.Limits()
    )
    code = 1
    try:
        for event in supervisor.run():
            if isinstance(event, supervising.Verdict):
                code = 0 if event.succeeded else 1
            if session.json:
                document: dict[str, Any] = supervising.document(event) if not isinstance(event, Ended) else {}
                session.line(document)
            else:
                click.echo(supervising.sentence(event))
    except KeyboardInterrupt:
        session.note(
            f"\nno longer supervising; run {run} goes on. Return with: hyperpod-rl --env {session.environment_name} supervise {run}"
        )
        if session.json:
            session.line({"event": "interrupted", "run_id": run, "job": "goes on"})
        return 130
    return code
