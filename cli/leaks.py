"""`hyperpod-rl leaks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.session import Session, common

if TYPE_CHECKING:
    from operations.leaks.leak import Found, Leak

ASSET = "CDK asset"


@click.command(
    epilog="""\b
Example:
  hyperpod-rl --env mine leaks
  hyperpod-rl --env mine leaks --before-destroy
  hyperpod-rl --env mine leaks --delete --dry-run
  hyperpod-rl --env mine leaks --json | jq -r '.leaks[].commands[]'

\b
Exit codes: 0 nothing is left (or everything went), 1 something is left (or a run keeps a destroy from starting),
3 something could not be looked at."""
)
@click.option("--before-destroy", is_flag=True, help="Instead: what `cdk destroy --all` would take, and what not.")
@click.option("--delete", "deleting", is_flag=True, help="Remove what was found, after showing it. Asks first on a terminal.")
@click.option("--kept", is_flag=True, help="With --delete: also the data that storage.removal keeps on purpose.")
@click.option("--yes", is_flag=True, help="With --delete: do not ask.")
@click.option("--dry-run", is_flag=True, help="With --delete: show what would be run, and run nothing.")
@common
def leaks(session: Session, before_destroy: bool, deleting: bool, kept: bool, yes: bool, dry_run: bool) -> int:
    """List what this environment left in the account, and what removes it.

    By tag, name and VPC: everything that the stacks, the controllers of the cluster, SageMaker and GuardDuty can have made and that no
    stack owns any more. Nothing of another environment or of anybody else. Read-only without --delete.
    """
    from config.problems import Unreachable
    from operations.aws import PATIENT, Aws, Unanswered
    from operations.leaks.scan import scan
    from training import deployed

    if before_destroy:
        if deleting:
            raise click.UsageError("--before-destroy changes nothing, so it does not go with --delete")
        return _before(session)
    if (kept or yes or dry_run) and not deleting:
        raise click.UsageError("--kept, --yes and --dry-run say how to --delete")
    env = session.environment()
    session.note(f"looking for what environment {env.name} left in {env.region}")
    try:
        deployed.check_account(env, str(Aws(env).call("sts", "get_caller_identity")["Account"]))
        found = scan(env, Aws(env, attempts=PATIENT))
    except Unanswered as error:
        raise Unreachable(error.sentence) from None
    chosen = [leak for leak in found.leaks if kept or not leak.kept]
    if not deleting or dry_run or not chosen:
        _tell(session, found, chosen if deleting else [])
        return _code(found, [leak for leak in found.leaks if not leak.kept])
    if not session.json:
        _tell(session, found, [])
    if session.terminal and not yes and not click.confirm(f"remove {len(chosen)}?", default=False, err=True):
        return _code(found, chosen)
    from operations.leaks.remove import remove

    left = remove(chosen, note=session.note)
    document = _document(found) | {"removed": [leak.id for leak in chosen if leak not in left], "left": _left(left)}
    session.result(
        document, f"removed {len(chosen) - len(left)} of {len(chosen)}", *(f"left: {leak.id}: {said}" for leak, said in left.items())
    )
    return _code(found, list(left))


def _before(session: Session) -> int:
    from cli.overview import look
    from operations.teardown import plan
    from training.jobs import TERMINAL

    env = session.environment()
    parts = look(session, env, None).parts
    runs = parts["runs"].data if "runs" in parts and parts["runs"].data else []
    found = plan(env, stacks=parts["stacks"].data or {}, running=[run["run_id"] for run in runs if run["status"] not in TERMINAL])
    unknown = [
        f"not known: {name}, {part.unknown}" for name, part in parts.items() if part.unknown and name in ("stacks", "runs", "cluster")
    ]
    nothing = (
        [] if parts["stacks"].data or unknown else [f"environment {env.name} is not deployed in {env.region}: there is nothing to destroy"]
    )
    session.result({"environment": env.name, **found.document(), "not_known": unknown}, *nothing, *found.lines, *unknown)
    return 1 if found.refused else 3 if unknown else 0


def _code(found: Found, left: list[Leak]) -> int:
    return 3 if found.unseen else 1 if left else 0


def _left(left: dict[Leak, str]) -> list[dict[str, Any]]:
    return [{"id": leak.id, "said": said} for leak, said in left.items()]


def _document(found: Found) -> dict[str, Any]:
    return {
        "leaks": [leak.document() for leak in found.leaks if not leak.kept],
        "kept": [leak.document() for leak in found.leaks if leak.kept],
        "not_looked_at": list(found.unseen),
        "standing": [which.value for which in found.standing],
    }


def _tell(session: Session, found: Found, chosen: list[Leak]) -> None:
    lost, kept = [leak for leak in found.leaks if not leak.kept], [leak for leak in found.leaks if leak.kept]
    # CDK's own files are dozens, free, and the account's: one line of them, until somebody wants them gone.
    files = [leak for leak in kept if leak.kind == ASSET] if not any(leak.kind == ASSET for leak in chosen) else []
    listed = [leak for leak in (*lost, *kept) if leak not in files]
    lines = [line for leak in listed for line in (leak.sentence, *(f"  $ {command}" for command in leak.commands))]
    lines += [f"{len(files)} CDK assets in the account's toolkit bucket, kept for a next deploy; `cdk gc` cleans them"] if files else []
    lines += [f"not looked at: {text}" for text in found.unseen]
    on_purpose = len(kept) - len(files)
    summary = f"{len(lost)} left" + (f", and {on_purpose} kept on purpose" if on_purpose else "")
    would = [f"would remove {len(chosen)} of them"] if chosen else []
    names = ", ".join(which.value for which in found.standing)
    count = len(found.standing)
    stand = [f"{count} stack{'s' * (count != 1)} still stand{'s' * (count == 1)} ({names}): deployed, no leaks"] if count else []
    none = "nothing is left beside them" if stand else "nothing is left"
    session.result(_document(found), *lines, *stand, summary if listed else none, *would)
