"""A review as lines for a terminal, as Markdown for a comment, and as a document for a gate."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from config.problems import printable
from operations import cost
from operations.review.compare import Review
from operations.review.effects import of_object, of_resource
from operations.review.resources import ITS_FUNCTION, ResourceChange
from operations.review.values import Difference

Style = Literal["title", "risk", "accepted", "added", "removed", "changed", "plain"]
SIGNS = {"added": "+", "removed": "-", "changed": "~", "replaced": "!"}
# GitHub takes 65,536 characters in a comment.
LONGEST_COMMENT = 60_000
CUT = "…cut here; `hyperpod-rl review` prints all of it."
RISKS = "Needs a word"
MOST_DIFFERENCES, MOST_NAMES = 12, 4


@dataclass(frozen=True)
class Section:
    """A heading and its lines, each with a level of indentation."""

    title: str
    lines: tuple[tuple[int, Style, str], ...]


def sections(review: Review) -> list[Section]:
    """Everything that differs, most important first. Empty if nothing does."""
    made = [
        Section(RISKS, (*_risks(review), *((0, "risk", hint) for hint in review.hints))),
        Section("On a running job", tuple(_effects(review))),
        Section("Wider access", tuple(_access(review))),
        Section("Stacks", tuple(_stacks(review))),
        Section("Kubernetes objects", tuple(_objects(review))),
        Section("SkyRL overrides", tuple(_differences(review.settings.overrides))),
        Section("Versions", tuple(_differences(review.settings.versions))),
        Section("Environment", tuple(_differences(review.settings.environment))),
        Section("Cost", tuple(_cost(review)) if review.changed else ()),
        Section("Live", tuple((0, "plain", line) for line in review.live)),
        Section("Not known", tuple((0, "risk", line) for line in review.unseen)),
        Section("Remarks", tuple((0, "plain", line) for line in (*review.remarks, *review.settings.remarks))),
    ]
    return [section for section in made if section.lines]


def headline(review: Review) -> str:
    """One line: the verdict."""
    between = f"{review.environment}: {review.base} -> {review.head}"
    if review.failure:
        return f"{between}: {'not compared; accepted' if not review.open_risks else 'not compared'}"
    if not review.existed and not review.exists:
        return f"{between}: neither has this environment"
    if not review.existed:
        return f"{between}: a new environment, {len(review.stacks)} stacks, {review.after.hourly:.2f} USD an hour once it is deployed"
    if not review.changed:
        return f"{between}: no change"
    count = len(review.open_risks)
    verdict = (
        "nothing needs a word" if not review.risks else f"{count} of {len(review.risks)} risks need a word" if count else "risks accepted"
    )
    return f"{between}: a running job: {review.worst.word}; {verdict}"


def lines(review: Review) -> Iterator[tuple[Style, str]]:
    """For a terminal: style and text."""
    yield "title", headline(review)
    for section in sections(review):
        yield "plain", ""
        yield "title", section.title
        for level, style, text in section.lines:
            yield style, "  " * (level + 1) + text
        if section.title == RISKS and (names := _acceptable(review)):
            yield "plain", f"  To accept, a line of the pull request's text (--pull-request-text FILE): Accept: {', '.join(names)}"


def joined(reviews: Sequence[str]) -> str:
    """Markdown of several environments as one comment."""
    return "\n\n".join(text.rstrip("\n") for text in reviews)


def markdown(review: Review, *, longest: int = LONGEST_COMMENT) -> str:
    """For a comment of at most so many characters. The first line marks it, for whoever looks for it."""
    mark = re.sub(r"[^\w./-]|--", "_", review.environment)
    parts = [f"<!-- hyperpod-rl review {mark} -->", f"### Review of {_code(headline(review))}", ""]
    left = longest - sum(len(part) + 1 for part in parts) - len(CUT) - 4
    for section in sections(review):
        folded = section.title in ("Stacks", "Kubernetes objects", "Environment")
        begin = [f"<details><summary>{section.title}</summary>", ""] if folded else [f"**{section.title}**", ""]
        end = ["", *(["</details>", ""] if folded else [])]
        if section.title == RISKS and (names := _acceptable(review)):
            how = "To accept a risk, write a line of its own into the pull request's text:"
            end += [how, "", *_fenced(f"Accept: {', '.join(names)}"), ""]
        lines = ["  " * level + f"- {_code(text)}" for level, _, text in section.lines]
        left -= sum(len(part) + 1 for part in (*begin, *end))
        sizes = list(itertools.accumulate(len(line) + 1 for line in lines))
        fit = sum(used <= left for used in sizes)
        left -= sizes[fit - 1] if fit else 0
        # What begins also ends: nothing of another environment's review may disappear in what is folded here.
        parts += [*begin, *lines[:fit], *end] if fit or section.title == RISKS else []
        if fit == len(lines):
            continue
        parts += [CUT, ""]
        break
    return "\n".join(parts)


def _fenced(text: str) -> list[str]:
    fence = "`" * max(3, _longest_run(text) + 1)
    return [fence, text, fence]


def _acceptable(review: Review) -> list[str]:
    return [risk.id for risk in review.open_risks if risk.id != "uncompared:head"]


def document(review: Review) -> dict[str, Any]:
    """For a gate. Its keys stay."""
    return {
        "environment": review.environment, "base": review.base, "head": review.head, "existed": review.existed, "exists": review.exists,
        "changed": review.changed, "effect": review.worst.word, "headline": headline(review),
        "stacks": [
            {"name": stack.name, "stack_name": stack.stack_name, "action": stack.action, "differences": _texts(stack.differences),
             "resources": [_resource(change) for change in stack.resources]}
            for stack in review.stacks
        ],
        "kubernetes": [
            {"object": each.key, "action": each.action, "applied_by": each.applied_by, "differences": _texts(each.differences),
             "effect": of_object(each)[0].word}
            for each in review.objects
        ],
        "overrides": _texts(review.settings.overrides), "versions": _texts(review.settings.versions),
        "environment_differences": _texts(review.settings.environment),
        "access": [{"subject": each.subject, "sentences": list(each.sentences)} for each in review.access],
        "effects": [{"what": each.what, "effect": each.effect.word, "note": each.note} for each in review.effects],
        "cost": {"before": cost.document(review.before), "after": cost.document(review.after)},
        "risks": [{"id": risk.id, "sentence": risk.sentence, "accepted": risk.accepted} for risk in review.risks],
        "hints": list(review.hints), "live": list(review.live), "not_known": list(review.unseen), "failure": review.failure,
        "remarks": [*review.remarks, *review.settings.remarks], "exit_code": review.exit_code,
    }  # fmt: skip


def _texts(found: Iterable[Difference]) -> list[dict[str, str]]:
    return [{"path": each.path, "before": each.before, "after": each.after} for each in found]


def _resource(change: ResourceChange) -> dict[str, Any]:
    effect, note = of_resource(change)
    return {
        "id": change.id, "type": change.type, "action": change.action, "forced_by": list(change.forced_by), "perhaps": change.perhaps,
        "kept": change.kept, "refusal": change.refusal, "differences": _texts(change.differences), "effect": effect.word, "note": note,
    }  # fmt: skip


Lines = Iterator[tuple[int, Style, str]]


def _risks(review: Review) -> Lines:
    for risk in review.risks:
        yield 0, "accepted" if risk.accepted else "risk", f"{'accepted' if risk.accepted else 'RISK'} {risk.id}: {risk.sentence}"


def _effects(review: Review) -> Lines:
    for effect, members in groupby(review.effects, key=lambda line: line.effect):
        yield 0, "risk" if effect >= 2 else "changed" if effect else "plain", effect.word
        by_note: dict[str, list[str]] = {}
        for line in members:
            by_note.setdefault(line.note, []).append(line.what)
        for note, what in by_note.items():
            more = f" and {len(what) - MOST_NAMES} more" if len(what) > MOST_NAMES else ""
            yield 1, "plain", f"{', '.join(what[:MOST_NAMES])}{more}: {note}"


def _access(review: Review) -> Lines:
    for each in review.access:
        yield 0, "risk", each.subject
        for sentence in each.sentences:
            yield 1, "plain", sentence


def _stacks(review: Review) -> Lines:
    for stack in review.stacks:
        yield 0, stack.action, f"{SIGNS[stack.action]} {stack.name} ({stack.stack_name}), {stack.action}"
        yield from _differences(stack.differences, level=1)
        if stack.action == "added":
            yield 1, "plain", ", ".join(sorted({change.type for change in stack.resources}))
        if stack.action != "changed":
            continue
        for _, members in groupby(stack.resources, key=_alike):
            alike = list(members)
            yield from _resources(alike)


def _alike(change: ResourceChange) -> object:
    """Resources whose only change is the same one (a tag of all) are shown together."""
    return (change.action, change.differences) if change.action == "changed" else change.id


def _resources(alike: list[ResourceChange]) -> Lines:
    first = alike[0]
    style: Style = "risk" if first.action == "replaced" else first.action
    names = first.logical_id if len(alike) == 1 else f"{len(alike)} resources ({alike[0].logical_id} to {alike[-1].logical_id})"
    kind = f" {first.type}" if len(alike) == 1 else ""
    forced = ""
    if first.perhaps:
        own = first.forced_by == (ITS_FUNCTION,)
        forced = ", replaced if its own function says so" if own else f", perhaps replaced because {', '.join(first.forced_by)} changes"
    if first.action == "replaced":
        would = "REFUSED, it would be replaced" if first.refusal else "REPLACED"
        forced = f", {would} because {', '.join(first.forced_by)} changes"
    if first.action == "removed" and first.kept:
        forced = ", stays in the account"
    yield 1, style, f"{SIGNS[first.action]} {names}{kind}{forced}"
    yield from _differences(first.differences, level=2)


def _objects(review: Review) -> Lines:
    for each in review.objects:
        yield 0, each.action, f"{SIGNS[each.action]} {each.key} ({each.applied_by})"
        yield from _differences(each.differences, level=1)


def _differences(found: Iterable[Difference], *, level: int = 0) -> Lines:
    every = list(found)
    for each in every[:MOST_DIFFERENCES]:
        yield level, "plain", each.sentence()
    if len(every) > MOST_DIFFERENCES:
        yield level, "plain", f"and {len(every) - MOST_DIFFERENCES} more (--json has them)"


def _cost(review: Review) -> Lines:
    before, after = review.before, review.after
    more = f", {(after.hourly / before.hourly - 1) * 100:+.1f} %" if before.hourly and after.hourly else ""
    known = ["at least " if bill.unpriced else "" for bill in (before, after)]
    yield 0, "plain", f"{known[0]}{before.hourly:.2f} -> {known[1]}{after.hourly:.2f} USD an hour with all nodes{more}"
    yield 0, "plain", f"{before.at_zero_nodes:.2f} -> {after.at_zero_nodes:.2f} USD an hour at 0 nodes"
    olds = {line.resource: line for line in before.lines}
    news = {line.resource: line for line in after.lines}
    for name in dict.fromkeys((*olds, *news)):
        old, new = olds.get(name), news.get(name)
        if (old and old.quantity) != (new and new.quantity):
            yield 1, "plain", f"{name}: {_priced(old)} -> {_priced(new)}"
    if after.unpriced:
        yield 0, "plain", f"no price is known of: {', '.join(after.unpriced)}"


def _priced(line: cost.Line | None) -> str:
    if line is None:
        return "none"
    return f"{line.quantity}, " + ("no price" if line.usd_per_hour is None else f"{line.usd_per_hour:.2f} USD/h")


def _code(text: str) -> str:
    """Text of a template is data: nothing in it may become a link, a mention or markup."""
    text = " ".join(printable(text).split())
    fence = "`" * (_longest_run(text) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def _longest_run(text: str) -> int:
    return max((len(list(run)) for mark, run in groupby(text) if mark == "`"), default=0)
