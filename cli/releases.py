"""`hyperpod-rl promote | releases | alias | rollback | retire`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cli import in_cluster
from cli.gate import which
from cli.in_cluster import show, start, words
from cli.session import Session, common, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@click.command(
    epilog="""\b
Example:
  hyperpod-rl promote maze-grpo-1 --best
  hyperpod-rl promote maze-grpo-1 --step 160 --alias canary --share 0.2
  hyperpod-rl promote maze-grpo-1 --step 20 --override "to try the endpoint" --dry-run"""
)
@click.argument("run")
@which
@click.option("--override", metavar="REASON", help="Release what the gate did not pass; the reason is recorded in the release.")
@click.option("--alias", "alias_name", type=click.Choice(["current", "canary"]), help="Let this alias name the release afterwards.")
@click.option("--share", type=float, metavar="0..1", help="With --alias canary: its share of the requests. Default: 0.1.")
@click.option("--register", is_flag=True, help="Register the release in SageMaker's Model Registry too, with its lineage.")
@in_cluster.OPTION
@click.option("--dry-run", is_flag=True, help="Check everything and show the release; upload nothing.")
@common
def promote(
    session: Session, run: str, step: int | None, best: bool, override: str | None, alias_name: str | None, share: float | None,
    register: bool, in_cluster: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Publish an export that passed the gate as a release, under a name that never changes.

    Repeating it changes nothing. A release appears whole or not at all, whenever the promotion is killed.
    """
    from cli.gate import one, read
    from config.problems import Problem, Refused
    from serving import aliases, export, promote, registry
    from serving import gate as judging
    from serving.store import open_store
    from training import record as records

    if share is not None and alias_name != aliases.CANARY:
        raise Refused(Problem("--share", str(share), "only the canary has a share", "use it with --alias canary"))
    if alias_name is not None:
        aliases.check_share(alias_name, share)
    _check_text("--override", override)
    step = one(step, best)
    if register and in_cluster:
        raise Refused(Problem("--register", "", "the Job's role writes releases, not the registry", "promote again with --register here"))
    if in_cluster:
        again = words("promote", run, step=step, override=override, alias=alias_name, share=share if share is None else str(share))
        return show(session, *start(session, again, gpus=0, dry_run=dry_run))
    env = session.environment()
    if register and env.local:
        raise Refused(Problem("--register", env.name, "the local cloud has no Model Registry", "leave it out"))
    folder, record = read(env, run)
    chosen = judging.choose(record, export.steps(folder), step=step)
    candidate = export.checked(env, record, chosen)
    wanted = promote.plan(env, record, candidate, record_bytes=(folder / records.FILE).read_bytes(), override=override)
    name, size = wanted.release.name, sum(file.size_bytes for file in wanted.release.files)
    store = open_store(env)
    if alias_name == aliases.CURRENT and override is None:
        promote.check_current(store, record, wanted.release)
    where = f"s3://{store.bucket}/{_folder(name)}"
    if dry_run:
        session.result(
            {**wanted.document(), "would_upload_to": where, "dry_run": True},
            f"would release step {chosen} of run {run} as {name}: {_bytes(size)} to {where}",
        )
        return 0
    with _uploading(session, size) as progress:
        release, new = promote.publish(store, wanted, progress=progress)
    lines = [f"release {name} is at {where}" if new else f"release {name} was there already: {where}"]
    if release.override:
        lines.append(f"  against the gate: {release.override}")
    if alias_name is not None:
        moved = aliases.move(store, alias_name, name, reason=f"promoted from run {run}{f': {override}' if override else ''}", share=share)
        lines.append(_named(moved))
    promote.note(folder, release)
    package = None
    if register:
        package, _ = registry.register(env, release, location=where)
        lines.append(f"registered as {package}")
    told = {"new": new, "location": where, "alias": alias_name, "model_package": package}
    session.result({**release.model_dump(mode="json"), **told}, *lines)
    return 0


@click.command(
    name="releases",
    epilog="""\b
Example:
  hyperpod-rl releases
  hyperpod-rl releases --json | jq -r '.releases[].name'""",
)
@common
def list_releases(session: Session) -> int:
    """List the releases, the newest first, with the aliases that name them."""
    from serving import aliases, releases
    from serving.store import open_store

    store = open_store(session.environment())
    broken: list[str] = []
    found, named = releases.list_releases(store, unreadable=broken.append), aliases.named(store)
    rows = [
        (
            each.name, ", ".join(named.get(each.name, [])) or "-", each.run_id, str(each.step), _verdict(each),
            "-" if each.gate is None or each.gate.candidate_rate is None else f"{each.gate.candidate_rate:.3f}",
            each.published_at, each.published_by,
        )
        for each in found
    ]  # fmt: skip
    headers = ("RELEASE", "ALIAS", "RUN", "STEP", "GATE", "SOLVE RATE", "PUBLISHED", "BY")
    document = {"releases": [{**each.model_dump(mode="json"), "aliases": named.get(each.name, [])} for each in found], "unreadable": broken}
    session.result(document, *(table(rows, headers) if rows else ["no releases"]))
    for said in broken:
        session.note(f"hyperpod-rl: {said}.")
    return 1 if broken else 0


def _verdict(release: Any) -> str:
    return "overridden" if release.override else "passed" if release.gate is not None and release.gate.passed else "-"


@click.command(
    epilog="""\b
Example:
  hyperpod-rl alias current
  hyperpod-rl alias current maze-grpo-s160-0a1b2c3d --reason "better on fresh mazes"
  hyperpod-rl alias canary maze-grpo-s200-4e5f6a7b --share 0.2
  hyperpod-rl alias canary --remove"""
)
@click.argument("name", metavar="NAME")
@click.argument("release", required=False)
@click.option("--share", type=float, metavar="0..1", help="Of the canary: its share of the requests. Default: 0.1.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the alias's history.")
@click.option("--remove", is_flag=True, help="Let the alias name nothing; its history stays.")
@click.option("--dry-run", is_flag=True, help="Check and say what would change.")
@common
def alias(
    session: Session, name: str, release: str | None, share: float | None, reason: str, remove: bool, dry_run: bool
) -> None:  # fmt: skip
    """Show an alias (`current`, `canary`) with its history, or let it name another release.

    Users get what `current` names, and a share of them what `canary` names, from the next request on.
    """
    from serving import aliases
    from serving.store import open_store

    aliases.check_name(name)
    if remove and (release is not None or share is not None):
        raise click.UsageError("--remove goes with neither a release nor a share")
    if release is None and share is not None:
        raise click.UsageError("--share needs a release")
    if release is not None:
        share = aliases.check_share(name, share)
    _check_text("--reason", reason)
    store = open_store(session.environment())
    before = aliases.read(store, name)
    if release is None and not remove:
        if before is None:
            session.result({"alias": name, "release": None, "history": []}, f"{name} names no release")
            return
        rows = [(each.at, each.release or "(none)", each.by, each.reason or "-") for each in reversed(before.history)]
        session.result(before.document(), _named(before), *(f"  {line}" for line in table(rows, ("AT", "RELEASE", "BY", "REASON"))))
        return
    if dry_run:
        if release is not None:
            aliases.check_release(store, release)
        session.result(
            {"alias": name, "from": before.release if before else None, "to": release, "share": share, "dry_run": True},
            f"{name} would name {release or 'nothing'}, and names {before.release if before else 'nothing'} now",
        )
        return
    if remove:
        was = aliases.remove(store, name, reason=reason or "removed")
        session.result({"alias": name, "release": None, "was": was.release if was else None},
                       f"{name} names nothing now" + (f"; it named {was.release}" if was else ", as before"))  # fmt: skip
        return
    assert release is not None
    moved = aliases.move(store, name, release, reason=reason, share=share)
    session.result(moved.document(), _named(moved) + (f", before {before.release}" if before and before.release != moved.release else ""))


@click.command(
    epilog="""\b
Example:
  hyperpod-rl rollback
  hyperpod-rl rollback --from maze-grpo-s200-4e5f6a7b --reason "answers without tags\""""
)
@click.option("--from", "leaving", metavar="RELEASE", help="The release to leave: repeating the command then changes nothing.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the alias's history.")
@click.option("--dry-run", is_flag=True, help="Say where the rollback would lead.")
@common
def rollback(session: Session, leaving: str | None, reason: str, dry_run: bool) -> None:
    """Let `current` name the release before, from the next request on.

    A canary that names the release which is left is taken away with it. Nothing is restarted.
    """
    from serving import aliases, releases
    from serving.store import open_store

    if leaving is not None:
        releases.check_name(leaving)
    _check_text("--reason", reason)
    store = open_store(session.environment())
    before = aliases.read(store, aliases.CURRENT)
    if dry_run:
        target = aliases.rollback_target(store, leaving=leaving)
        said = f"current would go back from {before.release} to {target}" if before and target else "nothing would change"
        session.result({"alias": aliases.CURRENT, "from": before.release if before else None, "to": target, "dry_run": True}, said)
        return
    after = aliases.rollback(store, leaving=leaving, reason=reason)
    changed = before is not None and before.release != after.release
    session.result(
        {**after.document(), "left": before.release if before and changed else None},
        _named(after) + (f", no longer {before.release}" if before and changed else ", as before"),
    )


@click.command(
    epilog="""\b
Example:
  hyperpod-rl retire maze-grpo-s160-0a1b2c3d"""
)
@click.argument("release")
@click.option("--dry-run", is_flag=True, help="Say whether it could be removed.")
@common
def retire(session: Session, release: str, dry_run: bool) -> None:
    """Remove a release that no alias names.

    The bucket keeps its versions for 90 days; replicas that have loaded it keep it until they end.
    """
    from config.problems import Problem, Refused
    from serving import aliases, releases
    from serving.store import open_store

    releases.check_name(release)
    store = open_store(session.environment())
    aliases.check_unnamed(store, release)
    there = bool(store.list(_folder(release)))
    if not there:
        raise Refused(Problem("release", release, "there is no such release", "hyperpod-rl releases lists them"))
    if not dry_run:
        aliases.retire(store, release)
    session.result({"release": release, "retired": not dry_run, "dry_run": dry_run},
                   f"release {release} {'would be' if dry_run else 'is'} retired")  # fmt: skip


def _check_text(option: str, text: str | None) -> None:
    """What is recorded and shown again is one line of text: no bytes that are none, nothing that a terminal obeys. Raises Refused."""
    from config.problems import Problem, Refused

    if text is not None and not text.isprintable():
        raise Refused(Problem(option, text, "it is recorded as one line of text, and this holds other characters", "write one line"))


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _folder(release: str) -> str:
    from config import names

    return names.release_key(release)


def _named(alias: Any) -> str:
    share = f" for {alias.share:.0%} of the requests" if alias.share is not None else ""
    return f"{alias.name} names {alias.release}{share}"


@contextmanager
def _uploading(session: Session, size: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere only what takes long is told."""
    import sys
    import threading

    lock, sent, told = threading.Lock(), 0, 0
    if session.json or not sys.stderr.isatty():

        def line(more: int) -> None:
            nonlocal sent, told
            with lock:
                sent += more
                if sent - told >= 256 << 20:
                    told = sent
                    session.note(f"{sent / 1e6:.0f} of {size / 1e6:.0f} MB uploaded")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("upload"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        number = bar.add_task("upload", total=size)
        yield lambda more: bar.advance(number, more)
