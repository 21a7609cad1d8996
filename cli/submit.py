"""`hyperpod-rl submit`."""

from __future__ import annotations

import functools

import click

from cli.session import DOCUMENT, Session, common

_with_session = functools.partial(common, json_help=DOCUMENT.rstrip(".") + "; with --supervise one object a line.")


@click.command(
    epilog="""\b
Example:
  hyperpod-rl submit --run-id maze-grpo-1 --set trainer.epochs=5
  hyperpod-rl --env reference submit --run-id maze-grpo-1 --dry-run"""
)
@click.option("--run-id", metavar="ID", help="Names the run and its folder below /shared/runs. Default: <adapter>-<UTC time>.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="One of SkyRL's own keys; repeatable.")
@click.option("--dry-run", is_flag=True, help="Check and print what would be submitted; reach nothing.")
@click.option("--supervise", "supervised", is_flag=True, help="Stay, and start the next attempt after a fault (see supervise).")
@click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")
@_with_session
def submit(
    session: Session, run_id: str | None, settings: tuple[str, ...], dry_run: bool, supervised: bool, address: str | None
) -> int | None:
    """Start a run, or attach to it while it runs.

    A run that failed or was stopped goes on from its last checkpoint as the next attempt. A run that still runs is left as it
    is: the command succeeds if nothing differs, and is refused with the differences otherwise.
    """
    from training import run
    from training.preflight import checks

    env = session.environment()
    specification = run.specify(env, run_id=run_id if run_id is not None else run.default_run_id(env), settings=settings)
    subject = checks.subject_of(env, specification)
    on_laptop = checks.laptop(subject, variables=frozenset(specification.variables))
    on_laptop.refuse()
    for warning in on_laptop.warnings:
        session.note(warning.sentence)
    if dry_run:
        from training.skyrl import render

        job = specification.job(1)
        session.result(
            {**specification.document(), "dry_run": True, "preflight": on_laptop.document()},
            f"run            {specification.run_id}",
            f"folder         {specification.folder}",
            f"image          {specification.image}",
            f"specification  {specification.digest}",
            f"commit         {specification.code.commit}{' (dirty)' if specification.code.dirty else ''}",
            f"submission id  {job.submission_id} (or the next attempt's)",
            *(f"variable       {name}={value}" for name, value in sorted(job.runtime_env["env_vars"].items())),
            *(f"override       {word}" for word in render(specification.overrides)),
            "entrypoint:",
            job.entrypoint,
        )
        return None
    from training import jobs

    with jobs.connect(env, address=address, note=session.note) as connection:
        on_cluster = checks.cluster(connection, subject, specification)
        on_cluster.refuse()
        for warning in on_cluster.warnings:
            session.note(warning.sentence)
        outcome = jobs.submit(connection, specification)
        if supervised:
            from cli.supervise import watch_over

            session.line({"event": "submit", **outcome.document()}) if session.json else click.echo(outcome.sentence)
            return watch_over(session, env, connection, specification.run_id, specification=lambda: specification)
    changed = [f"changed        {line}" for line in outcome.changes]
    session.result(
        outcome.document(),
        outcome.sentence,
        *changed,
        f"follow it with: hyperpod-rl --env {session.environment_name} follow {specification.run_id}",
    )
    return None
