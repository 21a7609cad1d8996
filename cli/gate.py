"""`hyperpod-rl gate`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from cli import in_cluster
from cli.in_cluster import show, start, words
from cli.session import Session, common, table

if TYPE_CHECKING:
    from pathlib import Path

    from config.environment import Environment
    from serving.evaluate import Progress
    from training.record import Record
    from training.verdicts import Verdict


def which(function: Any) -> Any:
    """The options that say which step of a run is meant."""
    function = click.option("--best", is_flag=True, help="The evaluated export with the highest solve rate (the default).")(function)
    return click.option("--step", type=click.IntRange(min=1), metavar="N", help="This export.")(function)


@click.command(
    epilog="""\b
Example:
  hyperpod-rl gate maze-grpo-1 --best
  hyperpod-rl gate maze-grpo-1 --step 160 --endpoint http://127.0.0.1:8000 --model candidate --baseline-model base

\b
The exit code is 1 when the gate says no."""
)
@click.argument("run")
@which
@click.option("--endpoint", metavar="URL", help="An endpoint that serves the export already; else serving.gate.server is started.")
@click.option("--model", metavar="ID", help="The export's name at --endpoint.")
@click.option("--baseline-model", metavar="ID", help="The base model's name at --endpoint.")
@in_cluster.OPTION
@click.option("--dry-run", is_flag=True, help="Judge by what is there: evaluate nothing, write nothing.")
@common
def gate(
    session: Session, run: str, step: int | None, best: bool, endpoint: str | None, model: str | None, baseline_model: str | None,
    in_cluster: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Say whether an export may be released: baseline, candidate and current release on the same mazes.

    Exact paired tests on solve rates, with a second set of mazes that no checkpoint was chosen by. The verdict goes into the
    run's record. Thresholds: serving.gate of the environment.
    """
    from config.problems import Problem, Refused
    from serving import aliases, evidence, export, releases
    from serving import gate as judging
    from serving.openai_client import Endpoint
    from serving.store import open_store
    from training import recording

    asked = None
    if (endpoint is None) != (model is None):
        raise Refused(Problem("--endpoint", endpoint or "", "--endpoint and --model go together", "give both, or neither"))
    if endpoint is not None and model is not None:
        for name in (model, baseline_model if baseline_model is not None else model):
            Endpoint(endpoint, name)  # refuses before anything is read or written
        asked = evidence.Asked(endpoint, model, baseline_model)
    step = one(step, best)
    if in_cluster:
        again = words("gate", run, step=step, endpoint=endpoint, model=model, baseline_model=baseline_model)
        return show(session, *start(session, again, gpus=0 if asked else 1, dry_run=dry_run))
    env = session.environment()
    folder, record = read(env, run)
    if not dry_run:  # what lies in the run's folder by now, whoever followed the run or did not
        record = recording.update(env, run, folder=folder, attempts=None)
    chosen = judging.choose(record, export.steps(folder), step=step)
    candidate = export.checked(env, record, chosen)
    store = open_store(env)
    alias = aliases.read(store, aliases.CURRENT)
    current = releases.read(store, alias.release) if alias is not None else None
    found = evidence.gather(
        env, record, candidate, folder=folder, current=current, asked=asked, bar=_bar(session), note=session.note, evaluates=not dry_run
    )
    verdict = judging.judge(env, record, candidate, found=found, current=current, selected="step" if step is not None else "best")
    if not dry_run:
        recording.update(env, run, folder=folder, attempts=None)
        judging.keep(folder, verdict)
    session.result(verdict.model_dump(mode="json") | {"reasons": list(verdict.reasons)}, *lines(verdict))
    return 0 if verdict.passed else 1


def one(step: int | None, best: bool) -> int | None:
    """The step that is asked for; None for the best."""
    if step is not None and best:
        raise click.UsageError("--step and --best exclude each other")
    return step


def _bar(session: Session) -> Any:
    from cli.evaluate import progress

    def bar(title: str) -> AbstractContextManager[Progress]:
        return progress(session, title)

    return bar


def read(env: Environment, run: str) -> tuple[Path, Record]:
    """The run's folder and record on this machine. Raises Refused, Unreachable with what to do."""
    from config.names import check_run_id
    from config.problems import Problem, Refused, Unreachable
    from training import record

    folder = record.folder_here(env, check_run_id(run))
    if folder is None:
        raise Unreachable(
            f"the shared file system of environment {env.name} is not visible here; set HYPERPOD_RL_SHARED where it is mounted, or use"
            " --in-cluster"
        )
    found = record.read(folder)
    if found is None and not folder.is_dir():
        there = ", ".join(list(record.kept(env))[-5:]) or "none with a record"
        raise Refused(Problem("run", run, f"there is no such run below {folder.parent}", f"there are: {there}"))
    if found is None:
        raise Refused(Problem("run", run, f"there is no record of it in {folder}", f"hyperpod-rl report {run} makes it"))
    return folder, found


def lines(verdict: Verdict) -> list[str]:
    """A verdict for people."""
    rows = [
        (
            each.who, each.maze_set, f"{each.solved}/{each.mazes}", f"{each.rate:.3f} [{each.low:.3f}, {each.high:.3f}]",
            _or_dash(each.oracle_bound), _or_dash(each.format_rate), _or_dash(each.skyrl_pass_at_1),
        )
        for each in verdict.measured
    ]  # fmt: skip
    headers = ("WHO", "MAZES", "SOLVED", "SOLVE RATE", "REACHABLE", "FORMAT", "PASS_AT_1")
    word = "may be released" if verdict.passed else "must not be released"
    return [
        f"run {verdict.run_id}, step {verdict.step} ({verdict.selected}):",
        *(f"  {line}" for line in table(rows, headers)),
        *(f"  {'yes' if rule.passed else 'NO ':3} {rule.name}: {rule.said}" for rule in verdict.rules),
        f"the gate says {'yes' if verdict.passed else 'no'}: step {verdict.step} {word}",
    ]


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
