"""`hyperpod-rl report | reproduce`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.session import Session, common

if TYPE_CHECKING:
    from config.environment import Environment
    from training.keeping import History


def _checked(context: click.Context, parameter: click.Parameter, runs: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse run ids that break the rule before anything is reached; each run once."""
    from config.names import check_run_id

    return tuple(dict.fromkeys(check_run_id(run) for run in runs))


@click.command(
    epilog="""\b
Example:
  hyperpod-rl report maze-grpo-1
  hyperpod-rl report maze-grpo-1 maze-grpo-2 --output compared.html
  hyperpod-rl report maze-grpo-1 --offline --json | jq .runs[0].evaluations"""
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN ...]", callback=_checked)
@click.option("--output", "-o", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Where to write the page. Default: report-RUN.html in this folder.")  # fmt: skip
@click.option("--offline", is_flag=True, help="From the copy on the shared file system alone; ask no Ray cluster.")
@click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")
@common
def report(session: Session, runs: tuple[str, ...], output: Path | None, offline: bool, address: str | None) -> None:
    """Write one HTML page about one run, or comparing several.

    The steps come from the logs of all attempts that the Ray cluster has, and from what was kept in the run's folder where the
    shared file system is visible: so the page can be made after the cluster is gone. With --json, the records are printed too.
    """
    from config.problems import Problem, Refused
    from training.report import page

    env = session.environment()
    target = output if output is not None else Path(f"report-{'-'.join(runs)[:100]}.html")
    if not target.parent.is_dir():
        raise Refused(Problem("--output", str(target), "there is no such folder", f"make {target.parent} first, or name another place"))
    histories = gather(session, env, runs, offline=offline, address=address)
    text = page(histories)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    lines = [
        f"{each.record.run_id}: {len(each.series)} steps, {len(each.record.evaluations)} evaluations, from {each.source}"
        for each in histories
    ]
    session.result(
        {"output": str(target), "runs": [each.record.model_dump(mode="json") for each in histories]}, *lines, f"written: {target}"
    )


def gather(session: Session, env: Environment, runs: tuple[str, ...], *, offline: bool, address: str | None) -> list[History]:
    """What is known of each run, in the order given.

    Raises Refused naming every run that nobody knows, Unreachable if the Ray cluster does not answer and a run was not kept.
    """
    from config.problems import Problem, Refused, Unreachable
    from training import jobs, keeping

    unreachable: Unreachable | None = None
    found: list[History | None] = []
    with contextlib.ExitStack() as stack:
        connection = None
        if not offline:
            try:
                connection = stack.enter_context(jobs.connect(env, address=address, note=session.note))
                jobs.runs(connection)
            except Unreachable as error:
                unreachable, connection = error, None
                session.note(f"{error}; going by what was kept")
        found = [keeping.history(env, run, connection=connection, note=session.note) for run in runs]
    missing = [run for run, history in zip(runs, found, strict=True) if history is None]
    if missing and unreachable is not None:
        raise Unreachable(f"{unreachable}; and nothing was kept of run {', '.join(missing)}")
    if missing:
        where = (
            "there is no copy of such a run on the shared file system"
            if offline
            else "neither the Ray cluster nor the shared file system knows it"
        )
        raise Refused(Problem("run", run, where, "hyperpod-rl list shows those that there are") for run in missing)
    return [history for history in found if history is not None]


@click.command(
    epilog="""\b
Example:
  hyperpod-rl reproduce maze-grpo-1
  hyperpod-rl reproduce maze-grpo-1 --as maze-grpo-1-again --json | jq -r '.commands[]'"""
)
@click.argument("run", callback=lambda context, parameter, run: _checked(context, parameter, (run,))[0])
@click.option("--as", "new_run_id", metavar="ID", help="Run id of the reproduction. Default: RUN-again.")
@click.option("--offline", is_flag=True, help="From the record on the shared file system alone; ask no Ray cluster.")
@click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")
@common
def reproduce(session: Session, run: str, new_run_id: str | None, offline: bool, address: str | None) -> None:
    """Print the commands that submit the same thing as another run.

    Refused if the run was submitted with uncommitted changes, or if the environment at its commit is another one.
    """
    from config.problems import Problem, Refused, Unreachable
    from training import jobs, record
    from training import reproduce as reproducing

    env = session.environment()
    folder = record.folder_here(env, run)
    known = record.read(folder) if folder is not None else None
    attempts: tuple[jobs.Attempt, ...] = ()
    if not offline:
        try:
            with jobs.connect(env, address=address, note=session.note) as connection:
                attempts = jobs.attempts(connection, run)
        except Unreachable as error:
            if known is None:
                raise
            session.note(f"{error}; going by the record")
    what = reproducing.submitted(run, attempts=attempts, record=known)
    if what is None:
        raise Refused(Problem("run", run, "neither the Ray cluster nor a record tells what it was submitted with"))
    made = reproducing.reproduce(what, environment_name=session.environment_name, new_run_id=new_run_id or f"{run[:42]}-again")
    for remark in made.remarks:
        session.note(f"note: {remark}")
    session.result(made.document(), *made.commands)
