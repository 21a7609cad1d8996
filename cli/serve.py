"""`hyperpod-rl serve up | down | status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.session import Session, common, shown, timeout

if TYPE_CHECKING:
    from config.environment import Environment
    from serving.aliases import Alias
    from serving.store import Store

_TIMEOUT = timeout(minutes=60.0)


@click.group(
    epilog="""\b
Example:
  hyperpod-rl serve up
  hyperpod-rl serve status --json"""
)
def serve() -> None:
    """The endpoint: OpenAI's chat API, with the base model and every release."""


@serve.command(
    epilog="""\b
Example:
  python -m k8s --env reference
  hyperpod-rl --env reference serve up
  hyperpod-rl serve up --dry-run"""
)
@click.option("--dry-run", is_flag=True, help="Check everything, show what would be applied, change nothing.")
@_TIMEOUT
@common
def up(session: Session, dry_run: bool, minutes: float) -> None:
    """Apply the RayService from dist/ and wait until it answers.

    Refused where its GPUs are not there, or are held by the RayCluster with which it shares them. The thin application in
    front of Ray's is delivered through the artifact bucket first.
    """
    from config import ingress
    from serving import deploy
    from serving.store import open_store
    from training import manifests as files
    from training.kubernetes import Kubectl

    env = session.environment()
    found = deploy.manifests(env, session.environment_name)
    kubectl = Kubectl(env)
    store = open_store(env)
    if dry_run:
        deploy.check(kubectl, found)
        state = deploy.state(kubectl)
        changed = list(files.changes(kubectl, found))
        archive = f"s3://{store.bucket}/{ingress.key()}"
        deliver = store.head(ingress.key()) is None
        what = files.would(changed, exists=state.exists)
        session.result(
            {"dry_run": True, "exists": state.exists, "changes": changed, "digest": found.digest, "archive": archive, "deliver": deliver},
            f"RayService {state.namespace}/{state.name}: {what}",
            f"{archive}: {'would be delivered' if deliver else 'is there'}",
            f"digest {found.digest}",
        )
        return
    session.note(f"applying {len(found.files)} file(s) of {shown(found.folder)}, digest {found.digest}")
    state = deploy.up(kubectl, found, store, timeout_seconds=minutes * 60, note=session.note)
    more, lines = _answers(env, kubectl, store)
    session.result({**state.document(), "digest": found.digest, **more}, state.sentence(), *lines)


@serve.command(
    epilog="""\b
Example:
  hyperpod-rl serve down
  hyperpod-rl serve down --dry-run"""
)
@click.option("--dry-run", is_flag=True, help="Say what would go, change nothing.")
@_TIMEOUT
@common
def down(session: Session, dry_run: bool, minutes: float) -> None:
    """Delete the RayService and wait until it is gone; releases and aliases stay."""
    from serving import deploy
    from training.kubernetes import Kubectl

    if dry_run:
        state = deploy.state(Kubectl(session.environment()))
        session.result({"dry_run": True, **state.document()}, state.sentence(), *(["it would be deleted"] if state.exists else []))
        return
    state = deploy.down(Kubectl(session.environment()), timeout_seconds=minutes * 60, note=session.note)
    session.result(state.document(), f"RayService {state.namespace}/{state.name} is gone")


@serve.command(
    epilog="""\b
Example:
  hyperpod-rl serve status"""
)
@common
def status(session: Session) -> None:
    """Say how the endpoint stands, where it answers, and what its aliases name."""
    from serving import deploy
    from serving.store import open_store
    from training.kubernetes import Kubectl

    env = session.environment()
    kubectl = Kubectl(env)
    state = deploy.state(kubectl)
    more, lines = _answers(env, kubectl, open_store(env)) if state.ready else ({}, [])
    session.result({**state.document(), **more}, state.sentence(), *(f"  waits for {reason}" for reason in state.waiting_for), *lines)


def _answers(env: Environment, kubectl: Any, store: Store) -> tuple[dict[str, Any], list[str]]:
    """Where a ready endpoint answers, and the models that people ask for."""
    from serving import aliases, endpoint, releases

    url = endpoint.address(kubectl)
    inside = endpoint.cluster_url(kubectl)
    found = {name: each for name in aliases.ALIASES if (each := aliases.read(store, name)) is not None and each.release}
    model = env.serving.model_id
    lines = [f"answers at {inside}/v1 in the cluster{f', at {url}/v1 here' if url else ''}", f"  {model}: the base model"]
    gone = [name for name, each in found.items() if not releases.whole(store, each.release)]
    for name, each in found.items():
        lost = ", which is not whole in the bucket: requests for it answer 404 (hyperpod-rl rollback, or alias)" if name in gone else ""
        lines.append(f"  {model}:{name}: {each.release}{_share(each)}{lost}")
    if not found:
        lines.append("  no release yet: hyperpod-rl promote RUN")
    named = {name: each.release for name, each in found.items()}
    return {"url": url, "cluster_url": inside, "model": model, "aliases": named, "missing": gone}, lines


def _share(alias: Alias) -> str:
    return f", for {alias.share:.0%} of the requests to current" if alias.share is not None else ""
