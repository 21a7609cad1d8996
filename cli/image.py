"""`hyperpod-rl image build | status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.session import Session, common

if TYPE_CHECKING:
    from config.environment import Environment
    from training.image import Image, Outcome


@click.group(
    epilog="""\b
Example:
  hyperpod-rl --env mine image build
  hyperpod-rl --env mine image status --json"""
)
def image() -> None:
    """The training image: build it, and see which one there is."""


@image.command(
    epilog="""\b
Example:
  hyperpod-rl --env mine image build --dry-run
  hyperpod-rl --env mine image build
  hyperpod-rl --env mine image build --with codebuild --no-pin"""
)
@click.option("--with", "builder", type=click.Choice(["docker", "codebuild"]), help="Build with this; else Docker if it answers here.")
@click.option("--pin/--no-pin", default=True, show_default=True, help="Write the digest into the environment's file.")
@click.option("--dry-run", is_flag=True, help="Show what would be built, reach nothing.")
@common
def build(session: Session, builder: str | None, pin: bool, dry_run: bool) -> None:
    """Build the training image, push it, and pin its digest in the environment's file.

    With Docker where it answers on this machine, else in the environment's CodeBuild project. An image that has the tag already
    is not built again: tags are immutable. Interrupted, a CodeBuild build goes on, and the command attaches to it again.
    """
    from training import deployed
    from training import image as images

    env = session.environment()
    wanted = images.plan(env, builder=builder)  # type: ignore[arg-type]
    if dry_run:
        session.result(
            {"environment": env.name, "dry_run": True, **wanted.document()},
            f"would build {wanted.uri} with {wanted.builder}",
            *(f"  {name}={value}" for name, value in sorted(wanted.arguments.items())),
        )
        return
    aws = deployed.session(env)
    with deployed.reaching("AWS"):
        deployed.check_account(env, str(deployed.client(env, "sts", aws).get_caller_identity()["Account"]))
    done = images.build(env, aws, wanted, note=session.note)
    said = f"{'built' if done.built else 'there already:'} {wanted.uri}, {done.image.digest}"
    pinned, lines = _pin(session, done) if pin else (False, ["not pinned (--no-pin)"])
    document = {"environment": env.name, "built": done.built, "image": wanted.uri, **done.image.document()}
    session.result({**document, "base_digest": done.base_digest, "pinned": pinned}, said, *lines)


def _pin(session: Session, done: Outcome) -> tuple[bool, list[str]]:
    from config.load import path_of
    from training.pinning import NotPinned
    from training.pinning import pin as write

    called = session.environment_name
    path = path_of(called)
    values = {"digest": done.image.digest} | ({"base_digest": done.base_digest} if done.base_digest else {})
    try:
        changed = write(path, values)
    except NotPinned as error:
        return False, str(error).splitlines()
    if not changed:
        return True, [f"{path} pins it already"]
    return True, [f"pinned in {path}; next: python -m k8s --env {called}, then hyperpod-rl --env {called} cluster up"]


@image.command(
    epilog="""\b
Example:
  hyperpod-rl --env mine image status
  hyperpod-rl --env mine image status --json | jq -r .state"""
)
@common
def status(session: Session) -> None:
    """Say which training image ECR has, which one the environment pins, and whether a build runs."""
    from config import names
    from training import deployed
    from training import image as images

    env = session.environment()
    aws = deployed.session(env)
    project = deployed.lookup(env, aws)[names.Parameter.IMAGE_PROJECT]
    tagged = images.find(env, aws)
    pinned = images.find(env, aws, digest=env.image.digest) if env.image.digest else None
    with deployed.reaching("CodeBuild"):
        running = images.running(deployed.client(env, "codebuild", aws), project)
    state, sentence = _state(env, session.environment_name, tagged, pinned)
    session.result(
        {
            "environment": env.name,
            "state": state,
            "repository": names.image_repository(env),
            "tag": env.image.tag,
            "image": tagged.document() if tagged else None,
            "pinned": env.image.digest,
            "build": running["id"] if running else None,
        },
        sentence,
        *([f"{running['id']} is running: {str(running.get('currentPhase', '')).lower()}"] if running else []),
    )


def _state(env: Environment, called: str, tagged: Image | None, pinned: Image | None) -> tuple[str, str]:
    from config import names

    build = f"hyperpod-rl --env {called} image build"
    name = f"{names.image_repository(env)}:{env.image.tag}"
    if env.image.digest and pinned is None:
        return "missing", f"{env.image.digest}, which the environment pins, is not in ECR; {build} makes an image and pins it"
    if env.image.digest and pinned is not None:
        others = "" if env.image.tag in pinned.tags else f", under {', '.join(pinned.tags) or 'no tag'} instead of {env.image.tag}"
        return "pinned", f"{env.image.digest} is pinned and in ECR{others}{_size(pinned)}"
    if tagged is None:
        return "absent", f"{name} is not built yet; {build}"
    return "unpinned", f"{name} is {tagged.digest}{_size(tagged)}, and the environment pins none; {build} writes it down"


def _size(found: Any) -> str:
    size = f", {found.size_bytes / 2**30:.1f} GiB" if found.size_bytes else ""
    return size + (f", pushed {found.pushed_at}" if found.pushed_at else "")
