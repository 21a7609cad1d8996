"""Which changes need somebody's word: each has a name, and a line of the pull request that accepts that name.

    Accept: replace:Data/FileSystem
    Accept: widen:Network/NodesGroup, cost:+30%

A line inside an HTML comment or a code block accepts nothing: templates and quotations stand there.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from operations.cost import Bill
from operations.review.access import Widening
from operations.review.effects import DATA, EKS, FSX, HYPERPOD, Effect, lost_nodes, of_resource
from operations.review.resources import StackChange
from operations.review.values import plain

NEVER_REPLACED = (HYPERPOD, EKS, FSX)
_COST = re.compile(r"cost:\+(\d+)\s*%")
_ACCEPTS = re.compile(r"^\s*(?:[-*]\s*)?accepts?\s*:\s*(.+)$", re.IGNORECASE)


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
        if change.type in DATA and change.before and change.after:
            was, now = (str(side.get("DeletionPolicy", "Delete")) for side in (change.before, change.after))
            if was.startswith("Retain") and not now.startswith("Retain"):
                yield Risk(
                    f"unprotect:{change.id}", f"{DATA[change.type]} is deleted with the stack from now on (DeletionPolicy {was} -> {now})"
                )


def _cost(before: Bill, after: Bill, percent: float) -> Iterator[Risk]:
    if before.hourly <= 0 or after.hourly <= before.hourly:
        return
    more = round((after.hourly / before.hourly - 1) * 100, 6)
    if more > percent:
        rise = f"{before.hourly:.2f} -> {after.hourly:.2f} USD an hour"
        yield Risk(f"cost:+{math.ceil(more)}%", f"it costs {more:.0f} % more: {rise}")


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
    text = re.sub(r"<!--.*?(-->|\Z)", "", text, flags=re.DOTALL)
    text = re.sub(r"^ {0,3}(```|~~~).*?(^ {0,3}\1|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
    for line in text.splitlines():
        if match := _ACCEPTS.match(line):
            yield from (name.strip().strip("`").rstrip(".") for name in match[1].split(","))


def _accepts(names: set[str], risk: str) -> bool:
    if risk in names:
        return True
    wanted = _COST.fullmatch(risk)
    given = [int(match[1]) for name in names if (match := _COST.fullmatch(name))]
    return wanted is not None and any(percent >= int(wanted[1]) for percent in given)
