"""Which changes need somebody's word: each has a name, and a line of the pull request that accepts that name.

    Accept: replace:Data/FileSystem
    Accept: widen:Network/NodesGroup, cost:+30%

A line inside an HTML comment, a code block, a quotation or a heading accepts nothing: templates and other people's words stand there.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from operations.cost import Bill
from operations.review.access import Widening
from operations.review.effects import EKS, FSX, HYPERPOD, Effect, lost_nodes, of_resource
from operations.review.kubernetes import ObjectChange, refusal
from operations.review.protection import lessened
from operations.review.resources import StackChange
from operations.review.values import plain

# Of a line: not raw HTML, not what a picture is called.
_SHOWN = ("text", "text_special", "code_inline", "softbreak", "hardbreak")
NEVER_REPLACED = (HYPERPOD, EKS, FSX)
_COST = re.compile(r"cost:\+(\d+)\s*%")
_ACCEPTS = re.compile(r"^\s*accepts?\s*:\s*(.+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Risk:
    """A change that fails the review unless a line accepts it. `id` is what such a line names."""

    id: str
    sentence: str
    accepted: bool = False


def risks(stacks: tuple[StackChange, ...], widened: tuple[Widening, ...], before: Bill, after: Bill, *, percent: float) -> list[Risk]:
    """All of them, none accepted yet. A new environment has none: there is nothing yet that it could harm."""
    found = [risk for stack in stacks for risk in _of_stack(stack)]
    found += [Risk(f"widen:{each.subject}", _wider(each)) for each in widened]
    found += _cost(before, after, percent)
    return found


def _wider(widening: Widening) -> str:
    first, more = widening.sentences[:2], len(widening.sentences) - 2
    return f"wider access: {'; '.join(first)}" + (f"; and {more} more" if more > 0 else "")


def _of_stack(stack: StackChange) -> Iterator[Risk]:
    if stack.action == "removed":
        yield Risk(f"orphan:{stack.stack_name}", f"`cdk deploy` does not delete stack {stack.stack_name}: what is in it stays and costs, "
                   "and this revision cannot destroy it any more")  # fmt: skip
        return
    for each in stack.differences:
        if each.path == "TerminationProtection" and each.after == "false":
            yield Risk(f"unprotect:{stack.name}", f"stack {stack.stack_name} loses its termination protection")
    for change in stack.resources:
        effect, note = of_resource(change)
        if change.type == HYPERPOD and change.action == "changed":
            sides = (plain((side or {}).get("Properties", {})) for side in (change.before, change.after))
            yield from (Risk(f"nodes:{stack.name}/{group}", said) for group, said in lost_nodes(*sides))
        if change.action == "replaced" and (change.type in NEVER_REPLACED or effect >= Effect.NODE_REPLACEMENT):
            replaced = "would be replaced" if change.refusal else "is replaced"
            by = f"{change.type} {replaced} because {', '.join(change.forced_by)} changes"
            kind = "refused" if change.type == FSX and change.refusal else "replace"
            yield Risk(f"{kind}:{change.id}", "; ".join(part for part in (by, note, change.refusal) if part))
        elif change.action == "removed" and (change.type in NEVER_REPLACED or effect >= Effect.NODE_REPLACEMENT):
            yield Risk(f"remove:{change.id}", f"{change.type} is removed; {note}")
        elif change.action == "changed" and " refuses " in note:
            yield Risk(f"refused:{change.id}", note)
        if less := lessened(change):
            yield Risk(f"unprotect:{change.id}", "; ".join(less))


def of_objects(objects: tuple[ObjectChange, ...]) -> list[Risk]:
    """Kubernetes objects whose change the API server refuses."""
    return [Risk(f"refused:{each.key.replace(' ', ':')}", why) for each in objects if (why := refusal(each))]


def _cost(before: Bill, after: Bill, percent: float) -> Iterator[Risk]:
    had = {line.resource: _number(line.quantity) for line in before.lines if line.usd_per_hour is None}
    more = [line for line in after.lines if line.usd_per_hour is None and _number(line.quantity) > had.get(line.resource, 0)]
    if more:
        what = "; ".join(f"{line.resource}: {line.quantity}" for line in more)
        yield Risk("cost:unpriced", f"no price is known of what comes ({what}): how much more an hour costs is not known")
    if before.hourly <= 0 or after.hourly <= before.hourly:
        return
    rise_percent = round((after.hourly / before.hourly - 1) * 100, 6)
    if rise_percent > percent:
        rise = f"{before.hourly:.2f} -> {after.hourly:.2f} USD an hour"
        yield Risk(f"cost:+{math.ceil(rise_percent)}%", f"it costs {rise_percent:.0f} % more: {rise}")


def _number(quantity: str) -> float:
    found = re.match(r"\d+(\.\d+)?", quantity)
    return float(found[0]) if found else 1.0


def accepted(found: list[Risk], text: str) -> list[Risk]:
    """The risks, with those accepted that a line of the text names. A cost is accepted up to the percentage named."""
    names = set(_named(text))
    return [Risk(risk.id, risk.sentence, _accepts(names, risk.id)) for risk in found]


def hints(found: list[Risk], text: str) -> tuple[str, ...]:
    """For each name in the text that is no risk's but nearly an open one's: which one may be meant. Others may be another environment's."""
    names, every = list(_named(text)), {risk.id for risk in found}
    still = {risk.id.lower(): risk.id for risk in found if not risk.accepted and risk.id != "uncompared:head"}
    said = []
    for name in dict.fromkeys(names):
        if name in every or (_COST.fullmatch(name) and not any(_COST.fullmatch(each) for each in still)):
            continue
        near = difflib.get_close_matches(name.lower(), still, n=1, cutoff=0.75)
        said += [f"the text accepts {name}, which is no risk here: did you mean {still[near[0]]}?"] if near else []
    return tuple(said)


def _named(text: str) -> Iterator[str]:
    for line in _own_lines(text):
        if match := _ACCEPTS.match(line):
            yield from (name.strip().strip("`").rstrip(".").strip("`") for name in match[1].split(","))


def _own_lines(text: str) -> Iterator[str]:
    """Lines of the paragraphs and list items, as GitHub shows them: what only looks like one (a comment, code, a quotation) is none."""
    from markdown_it import MarkdownIt

    inside: list[str] = []
    for token in MarkdownIt("commonmark").parse(text.replace("\0", "")):
        inside = [*inside, token.type] if token.nesting > 0 else inside[:-1] if token.nesting < 0 else inside
        if token.type == "inline" and "blockquote_open" not in inside and "paragraph_open" in inside:
            parts = [each for each in token.children or () if each.type in _SHOWN]
            yield from "".join("\n" if each.type.endswith("break") else each.content for each in parts).splitlines()


def _accepts(names: set[str], risk: str) -> bool:
    if risk in names:
        return True
    wanted = _COST.fullmatch(risk)
    given = [int(match[1]) for name in names if (match := _COST.fullmatch(name))]
    return wanted is not None and any(percent >= int(wanted[1]) for percent in given)
