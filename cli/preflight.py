"""`hyperpod-rl preflight`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.session import Session, common

if TYPE_CHECKING:
    from config.environment import Environment
    from training.preflight.findings import Report, Subject
    from training.run import Specification

REFUSED = 2


@click.command(
    epilog="""\b
Example:
  hyperpod-rl preflight --run-id maze-grpo-1 --plan
  hyperpod-rl --env reference preflight --offline --set trainer.micro_train_batch_size_per_gpu=4

\b
The same checks run before every submit, which asks a worker's pod instead of having Ray place a task on a worker.
Exit codes: 0 nothing refuses the run, 2 something does."""
)
@click.option("--run-id", metavar="ID", help="A run that may exist: its folder and last attempt are looked at. Default: a new one.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="One of SkyRL's own keys; repeatable.")
@click.option("--plan", is_flag=True, help="Say the largest micro batches that fit, and what they gain.")
@click.option("--offline", is_flag=True, help="Reach nothing.")
@click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")
@common
def preflight(session: Session, run_id: str | None, settings: tuple[str, ...], plan: bool, offline: bool, address: str | None) -> int:
    """Check a run before anything is paid for.

    SkyRL's rules and ours, memory of the GPUs and disk with the arithmetic, whether a run can go on from its checkpoint; and, where
    the cluster answers, its Ray version, GPUs, clock and images, and a task on a worker that imports the run's code and writes to
    /shared and to the artifact bucket.
    """
    from config.problems import Refused
    from training import reproduce, run
    from training.preflight import checks
    from training.preflight import plan as planning
    from training.preflight.findings import Finding, Report, Subject

    env = session.environment()
    name = run_id if run_id is not None else run.default_run_id(env)
    _, values, unread = run.configuration(env, run_id=name, settings=settings)
    report = Report([Finding("configuration", "error", problem) for problem in unread])
    specification = None
    try:
        specification = run.specify(env, run_id=name, settings=settings, origin=reproduce.begun_with(env, name))
    except Refused as error:
        said = {finding.problem for finding in report.findings}
        names = {problem for problem in error.problems if problem not in said}
    else:
        names = set()
    subject = Subject(env, values, name, specification.origin if specification is not None else None)
    report = report.and_also(checks.laptop(subject, variables=frozenset(specification.variables) if specification else None))
    missing = names - {finding.problem for finding in report.findings}
    report = report.and_also(Report([Finding("configuration", "error", problem) for problem in sorted(missing)]))
    choices, no_plan = [], None
    if plan:
        no_plan = planning.impossible(subject, readable=not any(f.name.startswith(("word:", "range:")) for f in report.findings))
        choices = planning.plan(subject) if no_plan is None else []
    if specification is not None and not offline:
        report = report.and_also(_cluster(session, env, subject, specification, address=address, probe=not report.errors))
    session.result(
        {
            "run_id": name, "environment": env.name, **report.document(), "plan": [choice.document() for choice in choices],
            "no_plan": no_plan,
            "exit_code": REFUSED if report.errors else 0,
        },
        *(f"checked    {what}" for what in report.checked),
        *(f"{place}: {formula}" for place, formula in report.arithmetic.items()),
        *(f"plan       {choice.sentence}" for choice in choices),
        *([f"plan       none: {no_plan}"] if no_plan is not None else []),
        *(finding.sentence for finding in report.findings),
        "refused" if report.errors else "nothing refuses this run",
    )  # fmt: skip
    return REFUSED if report.errors else 0


def _cluster(
    session: Session, env: Environment, subject: Subject, specification: Specification, *, address: str | None, probe: bool
) -> Report:
    from config.problems import Refused, Unreachable
    from training import jobs
    from training.preflight import checks

    try:
        with jobs.connect(env, address=address, note=session.note) as connection:
            return checks.cluster(connection, subject, specification, probe=probe)
    except Unreachable as error:
        return checks.unreached(str(error))
    except Refused as error:
        if address is not None:
            raise
        return checks.unreached("; ".join(str(problem).rstrip(".") for problem in error.problems))
