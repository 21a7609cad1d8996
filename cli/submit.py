"""`hyperpod-rl submit`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from cli.session import DOCUMENT, Session, common

if TYPE_CHECKING:
    from config.environment import Environment
    from training.preflight.findings import Report, Subject
    from training.run import Specification

_with_session = functools.partial(common, json_help=DOCUMENT.rstrip(".") + "; with --supervise one object a line.")


class _Submit(click.Command):
    """The other commands take a run's id as a word, so some will write it here too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, and with the option named where there is a word too many."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not error.message.startswith("Got unexpected extra argument"):
                raise
            word = error.message.partition("(")[2].partition(")")[0].split(" ")[0]
            raise click.UsageError(f"a run's id stands behind --run-id: did you mean --run-id {word}", ctx) from None


@click.command(
    cls=_Submit,
    epilog="""\b
Example:
  hyperpod-rl submit --run-id maze-grpo-1 --set trainer.epochs=5
  hyperpod-rl --env reference submit --run-id maze-grpo-1 --dry-run
  hyperpod-rl submit --run-id maze-grpo-2 --from-run maze-grpo-1@40 --set trainer.epochs=30""",
)
@click.option("--run-id", metavar="ID", help="Names the run and its folder below /shared/runs. Default: <adapter>-<UTC time>.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="One of SkyRL's own keys; repeatable.")
@click.option("--from-run", metavar="RUN[@STEP]", help="Begin a new run with another run's checkpoint, its newest by default.")
@click.option("--dry-run", is_flag=True, help="Check and print what would be submitted, and what differs from the run's last attempt.")
@click.option("--supervise", "supervised", is_flag=True, help="Stay, and start the next attempt after a fault (see supervise).")
@click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")
@_with_session
def submit(
    session: Session, run_id: str | None, settings: tuple[str, ...], from_run: str | None, dry_run: bool, supervised: bool,
    address: str | None,
) -> int | None:  # fmt: skip
    """Start a run, or attach to it while it runs.

    A run that failed or was stopped goes on from its last checkpoint as the next attempt. A run that still runs is left as it
    is: the command succeeds if nothing differs, and is refused with the differences otherwise. --dry-run reaches nothing.
    """
    from training import checkpoints, reproduce, run

    env = session.environment()
    name = run_id if run_id is not None else run.default_run_id(env)
    origin = checkpoints.origin(env, from_run) if from_run is not None else reproduce.begun_with(env, name)
    specification = run.specify(env, run_id=name, settings=settings, origin=origin)
    subject, on_laptop = _checked(env, specification)
    warnings = [*_of_code(specification), *(warning.sentence for warning in on_laptop.warnings)]
    _say(session, warnings)
    if dry_run:
        _shown(session, env, specification, on_laptop, warnings)
        return None
    from training import jobs
    from training.keeping import Keeper
    from training.preflight import checks, pods

    of_pods = pods.begin(env, specification)
    with jobs.connect(env, address=address, note=session.note) as connection:
        if from_run is None and (begun := reproduce.begun_with(env, name, attempts=jobs.attempts(connection, name))) != origin:
            specification = run.specify(env, run_id=name, settings=settings, origin=begun)
            subject, _ = _checked(env, specification)
        if from_run is None and specification.origin is not None:
            session.note(f"run {name} began with checkpoint {specification.origin}, and does so again while it has none of its own")
        on_cluster = checks.cluster(connection, subject, specification).and_also(of_pods())
        on_cluster.refuse()
        _say(session, learnt := [warning.sentence for warning in on_cluster.warnings])
        warnings += learnt
        outcome = jobs.submit(connection, specification)
        if outcome.known:
            # From here on the run is known without Ray, whose head may go before anybody follows.
            Keeper(connection, specification.run_id, note=session.note).refresh(known=outcome.known)
        if supervised:
            from cli.supervise import watch_over

            session.line({"event": "submit", **outcome.document(), "warnings": warnings}) if session.json else click.echo(outcome.sentence)
            by_ray = address is not None and not address.startswith("sagemaker_ray://")
            return watch_over(session, env, connection, specification.run_id, specification=lambda: specification, by_ray=by_ray)
    changed = [f"changed        {line}" for line in outcome.changes]
    session.result(
        {**outcome.document(), "warnings": warnings},
        outcome.sentence,
        *changed,
        f"follow it with: hyperpod-rl --env {session.environment_name} follow {specification.run_id}",
    )
    return None


def _checked(env: Environment, specification: Specification) -> tuple[Subject, Report]:
    """What the rules look at, and what those say that need no cluster. Raises Refused."""
    from training.preflight import checks

    subject = checks.subject_of(env, specification)
    report = checks.laptop(subject, variables=frozenset(specification.variables))
    report.refuse()
    return subject, report


def _of_code(specification: Specification) -> list[str]:
    """What somebody will miss who wants to repeat the run."""
    if not specification.code.dirty:
        return []
    if specification.code.commit == "unknown":
        return ["this is no git checkout with a commit, so `reproduce` will refuse this run; submit from a clone"]
    return ["the working tree has uncommitted changes, so `reproduce` will refuse this run; commit first"]


def _say(session: Session, warnings: list[str]) -> None:
    for warning in warnings:
        session.note(warning)


def _shown(session: Session, env: Environment, specification: Specification, on_laptop: Report, warnings: list[str]) -> None:
    """Print the specification, and what differs from what the run's record tells of its last attempt."""
    from training import jobs, record, reproduce
    from training.skyrl import render

    folder = record.folder_here(env, specification.run_id)
    known = record.read(folder) if folder is not None else None
    before = reproduce.submitted(specification.run_id, attempts=(), record=known)
    changes = reproduce.changes(before, specification) if before is not None else []
    # A run that nobody followed has no record yet, and its attempts have left their marks all the same.
    last = max((*jobs.recorded(env, specification.run_id), before.attempt if before is not None else 0))
    differ = "nothing differs" if not changes else f"{len(changes)} differ"
    if before is not None:
        said = f"against attempt {before.attempt}: {differ}" + (f" (attempt {last} began after it)" if last > before.attempt else "")
    elif last:
        said = f"attempt {last} has begun, and no record here tells with what, so nothing is compared"
    else:
        said = "no earlier attempt of this run is known here"
    job = specification.job(last + 1)
    session.result(
        {
            **specification.document(attempt=last + 1), "dry_run": True, "preflight": on_laptop.document(), "warnings": warnings,
            "last_attempt": last or None, "changes": [change.document() for change in changes],
        },
        f"run            {specification.run_id}",
        f"folder         {specification.folder}",
        f"image          {specification.image}",
        f"specification  {specification.digest}",
        f"commit         {specification.code.commit}{' (dirty)' if specification.code.dirty else ''}",
        f"submission id  {job.submission_id} (or the next attempt's)",
        *([f"begins with    checkpoint {specification.origin}"] if specification.origin is not None else []),
        *(f"variable       {name}={value}" for name, value in sorted(job.runtime_env["env_vars"].items())),
        *(f"override       {word}" for word in render(specification.overrides)),
        "entrypoint:",
        job.entrypoint,
        said,
        *(line for change in changes for line in change.lines),
    )  # fmt: skip
