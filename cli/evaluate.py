"""`hyperpod-rl evaluate`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cli.session import Session, common, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from config.environment import Environment
    from serving.evaluate import Plan, Progress
    from training.results import Result


@click.command(
    epilog="""\b
Example:
  hyperpod-rl evaluate --endpoint http://127.0.0.1:8000 --model visgym-qwen3vl:current
  hyperpod-rl evaluate --endpoint https://models.example.com/v1 --model some-vlm --set fresh --output fresh.json
  hyperpod-rl evaluate --endpoint http://127.0.0.1:8000 --model candidate --run-id maze-grpo-1 --step 160 --set fresh

\b
The API key, if one is needed, is read from $OPENAI_API_KEY."""
)
@click.option("--endpoint", required=True, metavar="URL", help="Any server with OpenAI's chat API and images, with or without /v1.")
@click.option("--model", required=True, metavar="ID", help="Model as the endpoint names it: <base>, <base>:<release>, <base>:current.")
@click.option("--set", "maze_set", type=click.Choice(["held-out", "fresh"]), default="held-out", show_default=True,
              help="The mazes that checkpoints are chosen by, or a second set that no choice has seen.")  # fmt: skip
@click.option("--mazes", type=int, metavar="N", help="Only the first N of the set. Default: all 64.")
@click.option("--max-turns", type=int, metavar="N", help="Turns of an episode. Default: the environment's generator.max_turns.")
@click.option("--task", "task_name", type=click.Choice(["visgym", "built-in"]),
              help="VisGym's mazes (as SkyRL trains with them), or those built in. Default: the environment's.")  # fmt: skip
@click.option("--concurrency", type=int, default=16, show_default=True, metavar="N", help="Mazes played at once.")
@click.option("--temperature", type=float, default=0.0, show_default=True, metavar="T", help="0 is greedy, as SkyRL evaluates.")
@click.option("--max-tokens", type=int, metavar="N", help="Longest answer. Default: as in training, else 1024.")
@click.option("--tries", type=click.IntRange(1, 50), default=6, show_default=True, metavar="N", help="Tries of one request.")
@click.option("--run-id", metavar="ID", help="The run that the model comes from: the result goes into its folder, where gate reads it.")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="The step that the model comes from; goes with --run-id.")
@click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write the result here (JSON).")
@click.option("--dry-run", is_flag=True, help="Check everything and say what would be played; reach nothing.")
@common
def evaluate(
    session: Session, endpoint: str, model: str, maze_set: Any, mazes: int | None, max_turns: int | None, task_name: Any,
    concurrency: int, temperature: float, max_tokens: int | None, tries: int, run_id: str | None, step: int | None,
    output: str | None, dry_run: bool,
) -> None:  # fmt: skip
    """Play the evaluation mazes against any OpenAI-compatible endpoint with images.

    Prints solve rate with interval and oracle bound, format rate and latency, and writes a result file for gate and report.
    """
    from dataclasses import replace
    from pathlib import Path

    from serving import evaluate as evaluation
    from serving import export, tasks
    from serving.openai_client import Endpoint
    from training import results

    env = session.environment()
    where = Endpoint(endpoint, model, tries=tries)
    wanted = evaluation.plan(
        env, maze_set=maze_set, mazes=mazes, max_turns=max_turns, concurrency=concurrency, temperature=temperature,
        max_tokens=max_tokens, run_id=run_id, step=step,
    )  # fmt: skip
    path = writable(Path(output)) if output else _in_run(env, run_id, step, wanted)
    if run_id is not None and step:
        wanted = replace(wanted, export_digest=export.digest_of(env, run_id, step))
    task = tasks.task(env, task_name, max_turns=wanted.max_turns)
    told = f"{len(wanted.seeds)} {maze_set} mazes ({task.name}, {wanted.max_turns} turns) with {model} at {where.shown}"
    if dry_run:
        session.result({"endpoint": where.shown, "model": model, "task": task.name, "maze_set": maze_set, "mazes": len(wanted.seeds),
                        "max_turns": wanted.max_turns, "output": str(path) if path else None}, f"would play {told}")  # fmt: skip
        return
    with progress(session, f"{maze_set} mazes") as tell:
        result = evaluation.run(where, wanted, task, progress=tell)
    failed: OSError | None = None
    try:
        if path is not None:
            result = results.counted(path, result) if run_id is not None else result
            results.write(path, result)
    except OSError as error:  # what was played for minutes is told in any case
        failed = error
    session.result(
        result.model_dump(mode="json") | {"rate": result.rate, "interval": result.interval, "format_rate": result.format_rate,
                                          "skyrl_pass_at_1": result.pass_at_1, "output": str(path) if path else None},
        *lines(result, path if failed is None else None),
    )  # fmt: skip
    if failed is not None:
        raise failed


def lines(result: Result, path: Path | None) -> list[str]:
    """A result for people."""
    seen = result.latency
    rows = [[f"{value:.3f}" for value in (seen.mean, seen.p50, seen.p90, seen.p99, seen.longest)]]
    speed = f"{seen.requests} requests in {result.seconds:.1f} s, {seen.requests / max(result.seconds, 1e-9):.1f} a second"
    return [
        f"{result.model}: {result.sentence()}",
        f"  SkyRL's pass_at_1 would be {result.pass_at_1:.3f}; it counts any reward above 0, and format alone is paid for",
        f"  {speed}, {result.concurrency} at once, {result.retries} retries; seconds an answer:",
        *(f"  {line}" for line in table(rows, ("MEAN", "P50", "P90", "P99", "LONGEST"))),
        *([f"  result: {path}"] if path else []),
    ]


def writable(path: Path) -> Path:
    """The path, if a file can be put there: known before an hour is played. Raises Refused."""
    import os

    from config.problems import Problem, Refused

    folder = next(parent for parent in path.resolve().parents if parent.exists())
    said = (
        "this is a folder" if path.is_dir()
        else f"{folder} is no folder" if not folder.is_dir()
        else f"nothing can be written in {folder}" if not os.access(path if path.exists() else folder, os.W_OK)
        else ""
    )  # fmt: skip
    if said:
        raise Refused(Problem("--output", str(path), said, "name a file that can be written"))
    return path


def _in_run(env: Environment, run_id: str | None, step: int | None, wanted: Plan) -> Path | None:
    """Where a result of a run lies; None where it was not said what the model comes from. Raises Refused, Unreachable."""
    from config.problems import Problem, Refused, Unreachable
    from serving import export
    from training import record, results
    from training.maze_task import SETS

    if (run_id is None) != (step is None):
        missing = "--step" if step is None else "--run-id"
        raise Refused(Problem(missing, "", "--run-id and --step say together what the model comes from", "give both, or neither"))
    if run_id is None or step is None:
        return None
    if len(wanted.seeds) < len(SETS[wanted.maze_set]):
        raise Refused(Problem("--mazes", str(len(wanted.seeds)), "the gate compares whole sets", "leave it out, or use --output"))
    folder = record.folder_here(env, run_id)  # refuses what is no run id
    if folder is None:
        raise Unreachable(
            f"the shared file system of environment {env.name} is not visible here; set HYPERPOD_RL_SHARED, or use --output"
        )  # fmt: skip
    if not folder.is_dir():
        raise Refused(Problem("--run-id", run_id, f"there is no such run ({folder})", "hyperpod-rl list, or leave --run-id and --step out"))
    known = record.read(folder)
    there = {0, *export.steps(folder), *(each.step for each in (known.exports if known else ()))}
    if step not in there:
        told = ", ".join(map(str, sorted(there)))
        raise Refused(Problem("--step", str(step), f"run {run_id} has no export of this step", f"its steps are {told}"))
    return folder / results.FOLDER / results.file_name(step, wanted.maze_set)


@contextmanager
def progress(session: Session, what: str) -> Iterator[Progress]:
    """A bar on a terminal, a line now and then elsewhere."""
    import sys

    if session.json or not sys.stderr.isatty():
        told = 0

        def line(played: int, total: int, solved: int) -> None:
            nonlocal told
            if played == total or played >= told + max(1, total // 4):
                told = played
                session.note(f"{what}: {played}/{total} played, {solved} solved")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[solved]} solved"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        number = bar.add_task(what, total=None, solved=0)
        yield lambda played, total, solved: bar.update(number, completed=played, total=total, solved=solved)
