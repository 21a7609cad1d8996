"""`hyperpod-rl cluster up | down | status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.session import Session, common, shown, timeout

if TYPE_CHECKING:
    from config.environment import Environment

_TIMEOUT = timeout(minutes=45.0)


@click.group(
    epilog="""\b
Example:
  hyperpod-rl cluster up
  hyperpod-rl cluster status --json"""
)
def cluster() -> None:
    """The Ray cluster that training runs on."""


@cluster.command(
    epilog="""\b
Example:
  python -m k8s --env reference
  hyperpod-rl --env reference cluster up --timeout 45
  hyperpod-rl cluster up --dry-run"""
)
@click.option("--dry-run", is_flag=True, help="Check everything, show what would be applied, change nothing.")
@click.option("--force", is_flag=True, help="Also where it restarts the pods under a running run.")
@_TIMEOUT
@common
def up(session: Session, dry_run: bool, force: bool, minutes: float) -> None:
    """Apply the RayCluster from dist/ and wait until head and workers are ready, and the base model is there.

    The files are applied byte for byte as they lie there, with your own identity (server-side apply), so that you may submit
    to it; their digest is printed.
    """
    from training import base_model
    from training import cluster as clusters
    from training import manifests as files
    from training.kubernetes import Kubectl

    env = session.environment()
    found = clusters.manifests(env, session.environment_name)
    kubectl = Kubectl(env)
    clusters.check_sharing(kubectl)
    _refuse_without_image(session, env)
    changed = [] if force and not dry_run else list(files.changes(kubectl, found))
    if changed and not force:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        _refuse_while_running(session, env, f"applying would restart its pods, since it changes {', '.join(changed[:3])}{more}")
    model = base_model.manifests(env)
    if dry_run:
        state = clusters.state(kubectl)
        what = files.would(changed, exists=state.exists)
        lines = (
            [f"base model: Job {name} would be applied; it does nothing where the model is whole" for name in model.jobs] if model else []
        )
        session.result(
            {
                "dry_run": True, "exists": state.exists, "changes": changed, "digest": found.digest,
                "files": [str(path) for path in found.files], "model_jobs": list(model.jobs) if model else [],
            },
            f"RayCluster {state.namespace}/{state.name}: {what}", *lines, f"digest {found.digest}",
        )  # fmt: skip
        return
    for each in (model, found):
        if each is not None:
            session.note(f"applying {len(each.files)} file(s) of {shown(each.folder)}, digest {each.digest}")
    state = clusters.up(kubectl, found, model=model, timeout_seconds=minutes * 60, note=session.note)
    session.result(
        {
            **state.document(),
            "digest": found.digest,
            "files": [str(path) for path in found.files],
            "model_digest": model.digest if model is not None else None,
        },
        state.sentence(),
        f"digest {found.digest}",
    )


@cluster.command(
    epilog="""\b
Example:
  hyperpod-rl cluster down
  hyperpod-rl cluster down --dry-run"""
)
@click.option("--dry-run", is_flag=True, help="Say what would go, change nothing.")
@click.option(
    "--force", is_flag=True, help="Also while a run is running; it fails, and resumes from its last checkpoint when submitted again."
)
@_TIMEOUT
@common
def down(session: Session, dry_run: bool, force: bool, minutes: float) -> None:
    """Delete the RayCluster and wait until it is gone; refused while a run is running."""
    from training import cluster as clusters
    from training.kubernetes import Kubectl

    env = session.environment()
    kubectl = Kubectl(env)
    state = clusters.state(kubectl)
    if state.exists and state.head_ready and not state.deleting and not force:
        _refuse_while_running(session, env, "it would be lost")
    if dry_run:
        session.result({"dry_run": True, **state.document()}, state.sentence(), *(["it would be deleted"] if state.exists else []))
        return
    state = clusters.down(kubectl, timeout_seconds=minutes * 60, note=session.note)
    session.result(state.document(), f"RayCluster {state.namespace}/{state.name} is gone")


@cluster.command(
    epilog="""\b
Example:
  hyperpod-rl cluster status"""
)
@common
def status(session: Session) -> None:
    """Say how the RayCluster stands and what it waits for."""
    from training import cluster as clusters
    from training.kubernetes import Kubectl

    state = clusters.state(Kubectl(session.environment()))
    session.result(state.document(), state.sentence(), *(f"  waits for {reason}" for reason in state.waiting_for))


def _refuse_without_image(session: Session, env: Environment) -> None:
    """Raises Refused where ECR has not the image; where ECR does not say, the pods will."""
    from config.problems import Refused, Unreachable
    from training import image

    try:
        problem = image.missing(env, environment_name=session.environment_name)
    except Unreachable as error:
        session.note(f"it is not known whether the image is there: {error}")
        return
    if problem is not None:
        raise Refused(problem)


def _refuse_while_running(session: Session, env: Environment, rule: str) -> None:
    """Raises Refused naming the runs that are running, Unreachable if Ray does not tell."""
    from config.problems import Problem, Refused, Unreachable
    from training import jobs

    try:
        with jobs.connect(env, note=session.note) as connection:
            running = [its[-1] for its in jobs.runs(connection).values() if its[-1].running]
    except Unreachable as error:
        raise Unreachable(f"{error}; so it is not known whether a run is running (--force does not ask)") from None
    if running:
        raise Refused(
            Problem(
                f"run {a.run_id}",
                f"attempt {a.number} is {a.status.lower()}",
                rule,
                f"stop it first (hyperpod-rl stop {a.run_id}), or give --force",
            )
            for a in running
        )
