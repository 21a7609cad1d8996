"""`hyperpod-rl review`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.session import Session, common, harmless

if TYPE_CHECKING:
    from operations.review.compare import Review
    from operations.review.sides import Side

FAILED = 1
STYLES = {"title": "bold", "risk": "bold red", "accepted": "yellow", "added": "green", "removed": "red", "changed": "yellow", "plain": ""}


@click.command(
    epilog="""\b
Example:
  hyperpod-rl review
  hyperpod-rl --env production review --base origin/main --pull-request-text body.md
  hyperpod-rl review --all-environments --base v1.2 --markdown > review.md
  hyperpod-rl review --json | jq '.risks[] | select(.accepted | not) | .id'

\b
A line of the pull request's text accepts risks by their names:
  Accept: replace:Data/FileSystem, cost:+30%
Exit codes: 0 nothing needs a word or all is accepted, 1 a risk that no line accepts, 2 the input was refused,
3 something could not be reached (with --live: AWS did not say everything)."""
)
@click.option("--base", metavar="REV", help="Revision to compare with. Default: where this branch left the main one.")
@click.option("--markdown", is_flag=True, help="As Markdown, for a comment.")
@click.option("--max-cost-increase", "percent", type=click.FloatRange(min=0), default=10.0, show_default=True, metavar="PERCENT",
              help="How much more an hour may cost without a word.")  # fmt: skip
@click.option("--pull-request-text", "text_file", metavar="FILE", type=click.Path(allow_dash=True, dir_okay=False, path_type=Path),
              help="The pull request's text, whose `Accept:` lines accept risks; - is standard input.")  # fmt: skip
@click.option("--live", is_flag=True, help="With credentials: also drift, and a change set of each stack, which is shown and deleted.")
@click.option("--all-environments", is_flag=True, help="Each environment that either side has, but the local cloud's.")
@common
def review(
    session: Session, base: str | None, markdown: bool, percent: float, text_file: Path | None, live: bool, all_environments: bool
) -> int:
    """Show what a change does to an environment, before it is deployed.

    Synthesizes the base and this checkout, without an account: what is added, changed, removed and replaced in each stack, wider
    access, Kubernetes objects, SkyRL overrides, versions, cost, and what each change does to a running job.
    """
    from config.problems import Problem, Refused
    from operations.review import synthesis

    if markdown and session.json:
        raise Refused(Problem("--markdown", "", "it does not go with --json", "leave one out"))
    if live and all_environments:
        raise Refused(Problem("--live", "", "it does not go with --all-environments, which may lie in several accounts", "leave one out"))
    text = _text(text_file)
    older = synthesis.commit(base) if base is not None else synthesis.default_base()
    client = _cloudformation(session) if live else None  # refused before anything is synthesized
    wanted = synthesis.environments(older) if all_environments else [session.environment_name]
    if not wanted:
        session.note(f"neither {older[:10]} nor this checkout has an environment to review")
    found = [_review(session, environment, older, percent=percent, text=text, client=client) for environment in wanted]
    _say(session, found, markdown=markdown, several=all_environments)
    codes = {each.exit_code for each in found}
    return FAILED if FAILED in codes else max(codes, default=0)


def _review(session: Session, environment: str, base: str, *, percent: float, text: str, client: Any) -> Review:
    from operations.review import synthesis
    from operations.review.compare import compare, uncompared

    with tempfile.TemporaryDirectory(prefix="hyperpod-rl-review-") as folder:
        assembly = Path(folder) / "head.out"
        session.note(f"synthesizing {environment} at {base[:10]} and in this checkout")
        try:
            one, two, remarks = synthesis.sides(environment, base, keep=assembly)
        except synthesis.Broken as error:
            return uncompared(environment, base, side=error.side, said=error.said, text=text)
        found = compare(environment, one, two, percent=percent, text=text, remarks=remarks)
        return found if client is None else _live(session, found, two, client, assembly, text)


def _cloudformation(session: Session) -> Any:
    from training import deployed

    env = session.environment()
    aws = deployed.session(env)
    with deployed.reaching("AWS"):
        deployed.check_account(env, str(deployed.client(env, "sts", aws).get_caller_identity()["Account"]))
        return deployed.client(env, "cloudformation", aws)


def _live(session: Session, found: Review, head: Side, client: Any, assembly: Path, text: str) -> Review:
    from operations.review import live

    session.note("asking CloudFormation for drift and change sets")
    return live.look(found, head, client, prepare=lambda stacks: live.prepare(assembly, stacks), text=text)


def _text(file: Path | None) -> str:
    from config.problems import Problem, Refused

    if file is None:
        return ""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8", "replace")
    except OSError as error:
        raise Refused(Problem("--pull-request-text", str(file), f"it cannot be read ({error.strerror})", "name a file")) from None


def _say(session: Session, found: Sequence[Review], *, markdown: bool, several: bool) -> None:
    from operations.review import show

    if session.json:
        documents = [show.document(each) for each in found]
        codes = {document["exit_code"] for document in documents}
        code = FAILED if FAILED in codes else max(codes, default=0)
        session.result({"reviews": documents, "exit_code": code} if several else documents[0])
    elif markdown:
        session.result({}, show.joined([show.markdown(each, longest=show.LONGEST_COMMENT // len(found)) for each in found]))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
        for each in found:
            for style, line in show.lines(each):
                console.print(Text(harmless(line), style=STYLES[style]))
