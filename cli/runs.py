"""`hyperpod-rl follow | status | logs | stop | list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.session import Session, common, streaming, table

if TYPE_CHECKING:
    from config.environment import Environment
    from training.jobs import Attempt


def _checked(context: click.Context, parameter: click.Parameter, run: str | None) -> str | None:
    """Refuse a run id that breaks the rule before anything is reached."""
    if run is None:
        return None
    from config.names import check_run_id

    return check_run_id(run)


_ADDRESS = click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")


@click.command(
    epilog="""\b
Example:
  hyperpod-rl follow maze-grpo-1
  hyperpod-rl follow maze-grpo-1 --json | jq .solve_rate

\b
Ctrl-C leaves the run running; `follow` again returns to it. The exit code is the job's: 0 succeeded, 1 failed or stopped."""
)
@click.argument("run", callback=_checked)
@_ADDRESS
@streaming
def follow(session: Session, run: str, address: str | None) -> int:
    """Show a run live: step, solve rate, reward, step time, attempt.

    Follows the newest attempt from its first step and survives lost connections.
    Where the shared file system is visible, steps and record are kept in the run's folder.
    """
    from training import follow as following
    from training import jobs
    from training.keeping import Keeper, kept

    env = session.environment()
    try:
        with jobs.connect(env, address=address, note=session.note) as connection:
            attempt = jobs.newest(connection, run)
            events = kept(following.follow(connection, attempt), Keeper(connection, run, note=session.note))
            if session.json:
                return _follow_json(session, events)
            if session.terminal:
                from cli.live import show

                ended = show(events, attempt, environment=env)
            else:
                ended = None
                for event in events:
                    if isinstance(event, following.Ended):
                        ended = event
                    else:
                        click.echo(event.sentence() if isinstance(event, following.StepSeen) else f"-- {event.text}")
            return _verdict(session, env, ended)
    except KeyboardInterrupt:
        session.note(f"\nno longer following; run {run} goes on. Return with: hyperpod-rl --env {session.environment_name} follow {run}")
        if session.json:
            session.line({"event": "interrupted", "run_id": run, "job": "goes on"})
        return 130


def _follow_json(session: Session, events: Any) -> int:
    from training import follow as following

    code = 1
    for event in events:
        if isinstance(event, following.StepSeen):
            session.line(event.document())
        elif isinstance(event, following.Ended):
            code = 0 if event.succeeded else 1
            session.line({"event": "end", "exit_code": code, "last_step": event.last_step, **event.attempt.document()})
        else:
            session.line({"event": event.kind, "text": event.text})
    return code


def _verdict(session: Session, env: Environment, ended: Any) -> int:
    from training import checkpoints

    attempt: Attempt = ended.attempt
    word = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "was stopped"}.get(attempt.status, attempt.status)
    step = f" after step {ended.last_step}" if ended.last_step is not None else ""
    click.echo(
        f"run {attempt.run_id} {word} (attempt {attempt.number}){step}"
        + (f": {attempt.message}" if not ended.succeeded and attempt.message else "")
    )
    if not ended.succeeded:
        after = checkpoints.next_attempt(env, attempt.run_id, origin=(attempt.metadata or {}).get("from_run"))
        session.note(f"submit it again: {after}; its log: hyperpod-rl logs {attempt.run_id}")
    return 0 if ended.succeeded else 1


@click.command(
    epilog="""\b
Example:
  hyperpod-rl status
  hyperpod-rl status maze-grpo-1 --json"""
)
@click.argument("run", required=False, callback=_checked)
@_ADDRESS
@common
def status(session: Session, run: str | None, address: str | None) -> int:
    """Say how a run stands, or the cluster and all runs.

    Without a run: stacks, node groups and their events, add-ons, RayCluster and RayService with their warnings, the file system's use,
    runs, and what the nodes have cost since they joined; the exit code is 3 if one of these does not answer. For a run it is 1 if its
    newest attempt failed, was stopped or is lost. Of a run that Ray has forgotten, what its record tells.
    """
    if run is None:
        from cli.overview import show

        return show(session, address)
    from cli import attempts as attempts_shown
    from cli import kept
    from training import console, frameworks, jobs
    from training import follow as following

    env = session.environment()
    with jobs.connect(env, address=address, note=session.note) as connection:
        attempts = jobs.attempts(connection, run)
        if not attempts and (code := kept.status(session, env, run)) is not None:
            return code
        last = attempts[-1] if attempts else jobs.newest(connection, run)
        parser = frameworks.parser(env)
        events = (*parser.feed(jobs.log(connection, last).encode("utf-8", "replace")), *parser.finish())
        steps = [event for event in events if isinstance(event, console.Step)]
        turns = following.max_turns(last, env.training.overrides)
        seen = [following.seen(env, last, step, turns=turns) for step in steps if step is steps[-1] or "eval/all/avg_score" in step.metrics]
    rated = [step for step in seen if step.solve_rate is not None]
    return attempts_shown.stands(session, run, attempts or [last], last=seen[-1] if seen else None, rated=rated[-1] if rated else None)


@click.command(
    epilog="""\b
Example:
  hyperpod-rl logs maze-grpo-1
  hyperpod-rl logs maze-grpo-1 --attempt 1 | grep -i error"""
)
@click.argument("run", callback=_checked)
@click.option("--attempt", "number", type=click.IntRange(min=1), metavar="N", help="An earlier attempt.")
@click.option("--follow", "-f", "going_on", is_flag=True, help="Go on printing until the attempt has ended.")
@_ADDRESS
@common
def logs(session: Session, run: str, number: int | None, going_on: bool, address: str | None) -> None:
    """Print the log of a run's newest attempt.

    Of an attempt that Ray has forgotten, the copy that it left on the shared file system, where that is visible.
    """
    from cli import kept
    from config.problems import Problem, Refused
    from training import follow as following
    from training import jobs

    if going_on and session.json:
        raise click.UsageError("--json gives one document, so it does not go with --follow")
    env = session.environment()
    with jobs.connect(env, address=address, note=session.note) as connection:
        its = {a.number: a for a in jobs.attempts(connection, run)}
        if (number not in its if number is not None else not its) and not going_on and kept.log(session, env, run, number):
            return
        attempt = its[max(its)] if its else jobs.newest(connection, run)
        if number is not None and number != attempt.number:
            if number not in its:
                raise Refused(
                    Problem(
                        "--attempt", str(number), f"run {run} has no such attempt on this Ray cluster", f"it has {', '.join(map(str, its))}"
                    )
                )
            attempt = its[number]
        if going_on:
            for piece in following.Log(connection, attempt).stream():
                if isinstance(piece, str):
                    click.echo(piece, nl=False)
                elif isinstance(piece, following.Changed):
                    session.note(f"-- {piece.text}")
            return
        text = jobs.log(connection, attempt)
    if session.json:
        session.result({"run_id": run, "attempt": attempt.number, "status": attempt.status, "log": text})
    else:
        click.echo(text, nl=not text.endswith("\n"))


@click.command(
    epilog="""\b
Example:
  hyperpod-rl stop maze-grpo-1
  hyperpod-rl stop maze-grpo-1 --dry-run"""
)
@click.argument("run", callback=_checked)
@click.option("--dry-run", is_flag=True, help="Say what would be stopped and where it would go on, change nothing.")
@_ADDRESS
@common
def stop(session: Session, run: str, dry_run: bool, address: str | None) -> None:
    """Stop a run's running attempt and wait until it has ended.

    What was trained since the last checkpoint is lost; submitting the run again goes on from there. If there is none yet, it
    begins as it began: at step 0, or with the checkpoint of --from-run. The end says which.
    """
    from training import checkpoints, jobs

    env = session.environment()
    with jobs.connect(env, address=address, note=session.note) as connection:
        if dry_run:
            attempt = jobs.newest(connection, run)
            was_running = attempt.running
        else:
            attempt, was_running = jobs.stop(connection, run)
    word = attempt.status.lower()
    after = checkpoints.next_attempt(env, run, origin=(attempt.metadata or {}).get("from_run"))
    said = f"is {word} and would be stopped" if dry_run else f"is {word}"
    session.result(
        {"was_running": was_running, **({"dry_run": True} if dry_run else {}), **attempt.document()},
        f"run {run}: attempt {attempt.number} {said}; {after}"
        if was_running
        else f"run {run} was not running: attempt {attempt.number} ended before ({word})",
    )


@click.command(
    name="list",
    epilog="""\b
Example:
  hyperpod-rl list
  hyperpod-rl list --json | jq -r '.runs[].run_id'""",
)
@_ADDRESS
@common
def list_runs(session: Session, address: str | None) -> None:
    """List the runs that the Ray cluster knows.

    Where the shared file system is visible, also those that Ray has forgotten and whose records are there.
    """
    from cli.attempts import RUN_HEADERS, run_row
    from training import jobs, record, recording

    env = session.environment()
    with jobs.connect(env, address=address, note=session.note) as connection:
        known = jobs.runs(connection)
    # Ray's table goes with its head; what a run left does not.
    kept = {run: each for run, each in record.kept(env).items() if run not in known}
    newest = [recording.remembered(each)[-1:] or (jobs.Attempt(run, 0, each.status),) for run, each in kept.items()]
    rows = [run_row(its[-1], kept=True) for its in newest] + [run_row(its[-1]) for its in known.values()]
    lines = table(rows, RUN_HEADERS) if rows else ["no runs"]
    if kept:
        lines.append("Ray no longer knows the runs marked kept: `hyperpod-rl report RUN` shows what one left")
    session.result(
        {
            "runs": [its[-1].document() for its in known.values()],
            "kept": [{"run_id": run, "status": each.status, "attempts": len(each.attempts)} for run, each in kept.items()],
        },
        *lines,
    )  # fmt: skip
