"""`--in-cluster` of `gate`, `promote` and `verify`: the same command in a Job, with the training image and the shared file system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cli.session import Session

if TYPE_CHECKING:
    from serving.cluster_job import Ended, Job

OPTION = click.option("--in-cluster", is_flag=True, help="Run this in a Job of the cluster, where the shared file system is mounted.")


def words(command: str, run: str | None = None, **options: str | int | bool | None) -> list[str]:
    """The command line that the Job runs: flags that are set, options that have a value. Raises Refused for a bad run id."""
    from config.names import check_run_id

    found = [command, *([check_run_id(run)] if run is not None else [])]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(option)
        elif value is not None and value is not False:
            found += [option, str(value)]
    return found


def start(session: Session, wanted: Sequence[str], *, gpus: int, dry_run: bool) -> tuple[Job, Ended | None]:
    """Run the command in a Job and return it with how it ended; with `dry_run` nothing is applied, and that is None.

    Raises Refused in environment local, Failed where the Job could not run it.
    """
    from config.problems import Problem, Refused
    from serving import cluster_job
    from training.jobs import submitter
    from training.kubernetes import Kubectl

    env = session.environment()
    if env.local:
        rule = "the local cloud runs no containers, and its shared file system is a folder of this machine"
        raise Refused(Problem("--in-cluster", env.name, rule, "leave it out"))
    made = cluster_job.job(env, environment_name=session.environment_name, words=wanted, gpus=gpus, by=submitter())
    if dry_run:
        return made, None
    return made, cluster_job.run(Kubectl(env), made, note=session.note)


def show(session: Session, made: Job, ended: Ended | None) -> int:
    """What the Job printed, or would be applied as. Returns the command's exit code."""
    if ended is None:
        session.result({"job": made.name, "namespace": made.namespace, "dry_run": True},
                       f"would run Job {made.name} in namespace {made.namespace}")  # fmt: skip
        return 0
    told = {"job": made.name, "namespace": made.namespace, "output": ended.printed, "exit_code": ended.exit_code}
    session.result(told, *ended.printed.rstrip("\n").split("\n"))
    return ended.exit_code
