"""Two sides of one environment beside each other: everything that differs, what it does to a running job, what needs a word."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from operations import cost, footprint
from operations.cost import Bill
from operations.review import access, effects, kubernetes, resources, risks, rules, settings
from operations.review.access import Widening
from operations.review.effects import Effect
from operations.review.kubernetes import ObjectChange
from operations.review.resources import StackChange
from operations.review.risks import Risk
from operations.review.settings import Settings
from operations.review.sides import Side

COST_PERCENT = 10.0
NO_BILL = Bill(())


@dataclass(frozen=True)
class EffectLine:
    """What one change does to a running job, worst first in a list."""

    what: str
    effect: Effect
    note: str


@dataclass(frozen=True)
class Review:
    """The whole of it. `existed`: the base has this environment, `exists`: the head has it.

    `hints`: names in `Accept:` lines that are nearly a
    risk's, `unseen`: what the account did not say; `failure`: why the two could not be compared at all, empty where they were.
    """

    environment: str
    base: str
    head: str
    existed: bool = True
    exists: bool = True
    stacks: tuple[StackChange, ...] = ()
    objects: tuple[ObjectChange, ...] = ()
    settings: Settings = field(default_factory=Settings)
    access: tuple[Widening, ...] = ()
    effects: tuple[EffectLine, ...] = ()
    before: Bill = NO_BILL
    after: Bill = NO_BILL
    risks: tuple[Risk, ...] = ()
    hints: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    failure: str = ""

    @property
    def changed(self) -> bool:
        """Whether anything differs that a cluster, a run or a bill would notice."""
        settings = self.settings
        return bool(self.stacks or self.objects or settings.environment or settings.overrides or settings.versions)

    @property
    def worst(self) -> Effect:
        """The worst that happens to a running job."""
        return max((line.effect for line in self.effects), default=Effect.NOTHING)

    @property
    def open_risks(self) -> tuple[Risk, ...]:
        """Risks that nobody has accepted: the review fails."""
        return tuple(risk for risk in self.risks if not risk.accepted)

    @property
    def exit_code(self) -> int:
        """1 if something needs a word or could not be synthesized, else 3 if the account did not say everything, else 0."""
        return 1 if self.open_risks else 3 if self.unseen else 0


def uncompared(environment: str, base: str, *, side: str, said: str, text: str = "") -> Review:
    """A review that could not be made. A broken base is a risk like others, since a change may mend it; a broken head stays one."""
    if side == "base":
        failure = f"the base cannot be synthesized, so nothing is compared: {said}"
        found = risks.accepted([risks.Risk("uncompared:base", failure)], text)
    else:
        failure = f"this change cannot be synthesized: {said}"
        found = [risks.Risk("uncompared:head", failure)]
    return Review(environment, base[:10], "this checkout", risks=tuple(found), failure=failure)


def compare(
    environment: str, base: Side, head: Side, *, percent: float = COST_PERCENT, text: str = "", remarks: tuple[str, ...] = ()
) -> Review:
    """Review head against base. `percent` is how much more it may cost without a word, `text` the pull request's."""
    stacks = resources.changes(base, head)
    # Where a replacement is refused the deploy ends, and no object ever names what would have come.
    refused = any(change.refusal for stack in stacks for change in stack.resources)
    objects = kubernetes.changes(base, head, {} if refused else resources.moved_objects(base, head))
    before, after = (cost.bill(footprint.of_templates(side.templates)) for side in (base, head))
    existed, exists = bool(base.stacks), bool(head.stacks)
    # Under another name, in another account or region nothing is changed: everything is made beside the old, which stays.
    both = bool({(stack.stack_name, stack.place) for stack in base.stacks} & {(stack.stack_name, stack.place) for stack in head.stacks})
    if existed and exists and not both:
        objects, remarks = (), (*remarks, "every stack is a new one: the environment moves, and nothing of the old one is compared")
    if existed and not exists:
        # Nobody applies or destroys anything of an environment that is only gone from the project: it is there, and costs what it did.
        objects, after = (), before
        remarks = (
            *remarks,
            f"what is deployed of {environment} stays: `cdk destroy --all` from {base.revision}, or from before this change",
        )
    if existed and exists:
        after = _with_orphans(after, stacks, base)
    opened = _widened(base, head) if both else ()
    found = risks.risks(stacks, opened, before, after, percent=percent) if existed else []
    fixed = tuple(settings.stops_resuming(base, head)) if both else ()
    found += risks.of_objects(objects) if both else []
    found = risks.accepted([*found, *(risks.Risk(f"resume:{key}", said) for key, said in fixed)], text)
    return Review(
        environment=environment, base=base.revision, head=head.revision, existed=existed, exists=exists, stacks=stacks, objects=objects,
        settings=settings.changes(base, head) if existed and exists else Settings(), access=opened,
        effects=_effects(base, head, stacks, objects, compared=both) if existed else (), before=before, after=after,
        risks=tuple(found), hints=risks.hints(found, text), remarks=remarks,
    )  # fmt: skip


def _with_orphans(after: Bill, stacks: tuple[StackChange, ...], base: Side) -> Bill:
    """The bill with what no deploy takes away: stacks that the app has no more cost on."""
    gone = {stack.stack_name for stack in stacks if stack.action == "removed"}
    left = {stack.stack_name: stack.template for stack in base.stacks if stack.stack_name in gone}
    stay = (replace(line, resource=f"left behind: {line.resource}") for line in cost.bill(footprint.of_templates(left)).lines)
    return Bill((*after.lines, *stay))


def _widened(base: Side, head: Side) -> tuple[Widening, ...]:
    found = {each.subject: list(each.sentences) for each in access.widenings(base, head)}
    for subject, sentence in (*kubernetes.widened(base, head), *settings.widened(base, head)):
        found.setdefault(subject.replace(" ", ":"), []).append(sentence)
    return tuple(Widening(subject, tuple(sentences)) for subject, sentences in found.items())


def _effects(
    base: Side, head: Side, stacks: tuple[StackChange, ...], objects: tuple[ObjectChange, ...], *, compared: bool
) -> tuple[EffectLine, ...]:
    lines = []
    for stack in stacks:
        if stack.action == "removed":
            lines.append(EffectLine(stack.name, Effect.NOTHING, "the stack stays as it is until somebody destroys it"))
            continue
        for change in stack.resources:
            effect, note = effects.of_resource(change)
            if effect or note:
                lines.append(EffectLine(change.id, effect, "; ".join(part for part in (note, change.refusal) if part)))
    for changed in objects:
        effect, note = effects.of_object(changed)
        if effect or note:
            lines.append(EffectLine(changed.key, effect, note))
    there = {f"{stack.name}/{logical}" for stack in head.stacks for logical in stack.resources} if compared else set()
    lines += [
        EffectLine(subject, Effect.NOTHING, "it allows less: whoever used what is gone is refused from the deploy on")
        for subject in access.narrowed(base, head)
        if subject in there
    ]
    lines += [
        EffectLine(group, Effect.POD_RESTART, "it lets less through: connections that need what is gone end")
        for group in rules.gone(base, head)
        if group in there and not any(line.what.startswith(group) for line in lines)
    ]
    return tuple(sorted(lines, key=lambda line: -line.effect))
