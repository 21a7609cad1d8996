"""`hyperpod-rl verify` and `chat`: the endpoint, looked at and tried."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cli import in_cluster
from cli.in_cluster import show, start, words
from cli.session import Session, common, harmless

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from config.environment import Environment
    from serving.chat import Turn

_ENDPOINT = click.option("--endpoint", metavar="URL", help="Default: the environment's own, through kubectl where it has no address here.")
_MAX_TURNS = click.option(
    "--max-turns", type=int, metavar="N",
    help="Turns of an episode. Default: those of the gate (verify), else the environment's generator.max_turns.",
)  # fmt: skip
_TASK = click.option(
    "--task", "task_name", type=click.Choice(["visgym", "built-in"]),
    help="VisGym's mazes (as SkyRL trains with them), or those built in. Default: the environment's.",
)  # fmt: skip


@click.command(
    epilog="""\b
Example:
  hyperpod-rl verify
  hyperpod-rl verify --model visgym-qwen3vl:canary --mazes 32
  hyperpod-rl --env mine verify --in-cluster

\b
The API key, if one is needed, is read from $OPENAI_API_KEY."""
)
@click.option("--model", metavar="ID", help="<base>:<release>, <base>:current or <base>:canary. Default: current.")
@click.option("--mazes", type=int, metavar="N", help="Play the first N of the gate's held-out mazes. Default: all 64.")
@click.option("--concurrency", type=int, default=16, show_default=True, metavar="N", help="Requests at once.")
@_ENDPOINT
@_MAX_TURNS
@_TASK
@in_cluster.OPTION
@common
def verify(
    session: Session, model: str | None, mazes: int | None, concurrency: int, endpoint: str | None, max_turns: int | None, task_name: Any,
    in_cluster: bool,
) -> int:  # fmt: skip
    """Prove that the endpoint answers with the release: listed, applied, as good as the gate saw it.

    Compares the bytes in the bucket with the release's record, asks base model and adapter the same at temperature 0, and plays
    the gate's held-out mazes through the endpoint. Exit code 1 if anything fails.
    """
    from cli.evaluate import progress
    from serving import evaluate, releases, tasks
    from serving import verify as verifying
    from serving.openai_client import Endpoint
    from serving.store import open_store

    env = session.environment()
    evaluate.plan(env, mazes=mazes, concurrency=concurrency, max_turns=max_turns)  # refuses before anything is reached
    name = model or f"{env.serving.model_id}:current"
    if endpoint is not None:
        Endpoint(endpoint, name)
    if in_cluster:
        return _in_cluster(session, env, model=model, mazes=mazes, concurrency=concurrency, endpoint=endpoint, max_turns=max_turns,
                           task=task_name)  # fmt: skip
    store = open_store(env)
    release = releases.read(store, verifying.chosen(store, name)[1])
    if max_turns is None and release is not None and release.gate is not None:
        max_turns = release.gate.max_turns  # as the gate played it
    wanted = evaluate.plan(env, mazes=mazes, concurrency=concurrency, max_turns=max_turns)
    task = tasks.task(env, task_name, max_turns=wanted.max_turns)
    with _url(env, endpoint) as url, progress(session, "held-out mazes") as tell:
        report = verifying.verify(Endpoint(url, name), store, wanted, task, progress=tell)
    word = "is what answers" if report.passed else "is NOT proven"
    session.result(report.document(), *(check.line() for check in report.checks), f"release {report.release} {word}")
    return 0 if report.passed else 1


def _in_cluster(session: Session, env: Environment, *, endpoint: str | None, **options: Any) -> int:
    """The same in a Job: SkyRL's mazes are in the training image, and the endpoint has an address there."""
    from config.problems import Problem, Refused
    from serving import endpoint as endpoints
    from training.kubernetes import Kubectl

    if env.serving.authentication == "api-key":
        rule = "the Job would need the endpoint's key, and none is put into a Job"
        raise Refused(Problem("--in-cluster", "", rule, "run it without, where the mazes can be imported and $OPENAI_API_KEY is set"))
    url = endpoint if endpoint is not None else endpoints.cluster_url(Kubectl(env))
    return show(session, *start(session, words("verify", endpoint=url, **options), gpus=0, dry_run=False))


@click.command(
    epilog="""\b
Example:
  hyperpod-rl chat
  hyperpod-rl chat --model visgym-qwen3vl --seed 3 --output maze-3.png"""
)
@click.option("--model", metavar="ID", help="<base>, <base>:<release> or <base>:<alias>. Default: <base>:current.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Which maze; 0 to 63 are the held-out ones."
)
@click.option(
    "--output", type=click.Path(dir_okay=False), metavar="FILE",
    help="Write all pictures as one PNG. Default without a terminal that has colours: maze-N.png.",
)  # fmt: skip
@_ENDPOINT
@_MAX_TURNS
@_TASK
@common
def chat(
    session: Session, model: str | None, seed: int, output: str | None, endpoint: str | None, max_turns: int | None, task_name: Any
) -> None:  # fmt: skip
    """Play one maze through the endpoint and show the pictures and moves.

    Pictures are drawn in a terminal with colours, else written to a PNG file.
    """
    from dataclasses import replace
    from pathlib import Path

    from cli.evaluate import writable
    from serving import chat as chatting
    from serving import evaluate, tasks
    from serving.openai_client import Endpoint

    env = session.environment()
    wanted = replace(evaluate.plan(env, mazes=1, concurrency=1, max_turns=max_turns), seeds=(seed,), maze_set="other")
    task = tasks.task(env, task_name, max_turns=wanted.max_turns)
    draws = _colours(session)
    path = writable(Path(output)) if output else None if draws or session.json else writable(Path(f"maze-{seed}.png"))
    with _url(env, endpoint) as url:
        where = Endpoint(url, model or f"{env.serving.model_id}:current")
        game = chatting.play(where, wanted, task, show=_drawing() if draws else lambda turn: _told(session, turn))
    written = _write(session, path, [turn.picture for turn in game.turns])
    said = game.document() | {"model": where.model, "output": str(written) if written else None}
    session.result(said, game.sentence(), *([f"pictures: {written}"] if written else []))


@contextmanager
def _url(env: Environment, given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    from serving import endpoint
    from training.kubernetes import Kubectl

    with endpoint.reach(Kubectl(env)) as url:
        yield url


def _colours(session: Session) -> bool:
    """Whether somebody looks at standard output with a terminal that has colours enough for pictures."""
    if not session.terminal:
        return False
    from rich.console import Console

    return Console().color_system in ("256", "truecolor")


def _drawing() -> Any:
    from rich.console import Console

    from serving.chat import drawn
    from training.pictures import pixels

    console = Console()

    def show(turn: Turn) -> None:
        try:
            console.print(drawn(pixels(turn.picture), columns=min(36, console.width)), end="")
        except ValueError:
            console.print("(a picture of a kind that is not drawn here)")
        console.print(f"turn {turn.number}: {turn.move or 'no action in it'}", style="bold", highlight=False)
        console.print(harmless(turn.said), markup=False, highlight=False)

    return show


def _told(session: Session, turn: Turn) -> None:
    session.note(f"turn {turn.number}: {turn.move or 'no action in it'}  {harmless(' '.join(turn.said.split()))}")


def _write(session: Session, path: Path | None, pictures: list[bytes]) -> Path | None:
    from serving.chat import sheet
    from training.pictures import pixels

    if path is None:
        return None
    try:
        content = sheet([pixels(picture) for picture in pictures])
    except ValueError as error:
        session.note(f"no picture file: {error}")
        return None
    path.write_bytes(content)
    return path
