"""Proof that the endpoint answers with the release that it names: not the base model, not another adapter, not a worse one.

An endpoint can list an adapter and ignore it (an engine without LoRA, keys that its loader passes over), and nothing in its
answers says so. So what is looked at is what it does: the same prompts at temperature 0 with and without the adapter, and the
mazes that the gate judged, played through the same door as users come in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from config import names
from config.problems import Problem, Refused
from serving import aliases, evaluate, releases
from serving.evaluate import Plan, Progress
from serving.openai_client import Client, Endpoint, TooLong, connected
from serving.releases import Release
from serving.store import Store
from serving.tasks import Message, Task
from training.results import Result
from training.solve_rate import wilson

PROMPTS: Final = 64
AGAIN: Final = 16  # prompts of those that differ, asked twice more
_TURNS: Final = 8
APPLIED: Final = "applied"
_SEED_OF_PROMPTS: Final = 2_000_000  # mazes of their own: neither held-out nor fresh


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `passed` None: it could not be judged, and why is in `said`."""

    name: str
    passed: bool | None
    said: str

    def line(self) -> str:
        """For people."""
        word = {True: "ok", False: "FAILED", None: "not judged"}[self.passed]
        return f"{word:10}  {self.name}: {self.said}"


@dataclass(frozen=True)
class Report:
    """All checks of one release."""

    release: str
    model: str
    checks: tuple[Check, ...]
    result: Result | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Nothing failed, and that the adapter is applied was seen."""
        seen = any(check.name == APPLIED and check.passed for check in self.checks)
        return seen and all(check.passed is not False for check in self.checks)

    def document(self) -> dict[str, Any]:
        """For programs."""
        served = {"served": self.result.model_dump(mode="json")} if self.result is not None else {}
        checks = [{"name": check.name, "passed": check.passed, "said": check.said} for check in self.checks]
        return {"release": self.release, "model": self.model, "passed": self.passed, "checks": checks, **served}


def chosen(store: Store, model: str) -> tuple[str, str, str]:
    """(base, release, alias) that a model id means; '' where no alias is in it. Raises Refused for a base model or an unknown alias."""
    base, _, adapter = model.partition(":")
    if not adapter:
        rule = "verify looks at a release, and this is the base model alone"
        raise Refused(Problem("--model", model, rule, f"for example {base}:current, or {base}:RELEASE"))
    if adapter in aliases.ALIASES:
        alias = aliases.read(store, adapter)
        if alias is None:
            raise Refused(Problem("--model", model, f"the alias {adapter} names no release", "hyperpod-rl promote RUN"))
        return base, alias.release, adapter
    return base, releases.check_name(adapter), ""


def verify(
    endpoint: Endpoint, store: Store, wanted: Plan, task: Task, *, progress: Progress = lambda played, total, solved: None,
    note: Callable[[str], None] = lambda text: None,
) -> Report:  # fmt: skip
    """Look at everything, whatever fails on the way.

    Args:
        endpoint: its model is `<base>:<release>` or `<base>:<alias>`.
        wanted: what to play; for the comparison with the gate, at the gate's settings.

    Raises Refused where the model is none that could be verified, Unreachable where bucket or endpoint do not answer.
    """
    base, release, alias = chosen(store, endpoint.model)
    direct = replace(endpoint, model=f"{base}:{release}")
    record = releases.read(store, release)
    beside = aliases.read(store, aliases.CANARY) if alias == aliases.CURRENT else None
    canary = beside.release if beside is not None and beside.share and beside.release != release else None
    checks = [stored(store, release, record)]
    note(checks[-1].line())

    async def look() -> None:
        async with connected(direct, connections=wanted.concurrency) as client:
            looks: list[tuple[str, Callable[[], Awaitable[Check]]]] = [
                ("listed", lambda: _listed(client, base, release)),
                (APPLIED, lambda: _applied(client, base, release, task, wanted)),
            ]
            if alias:
                looks.append((f"alias {alias}", lambda: _answering(client, base, release, alias, task, wanted, canary=canary)))
            for name, one in looks:
                try:
                    checks.append(await one())
                except TooLong as refused:
                    said = f"it does not take a maze of {_TURNS} turns ({refused}): serve it with room for a picture a turn"
                    checks.append(Check(name, False, said))
                except Refused as refused:
                    checks.append(Check(name, False, str(refused)))
                note(checks[-1].line())

    asyncio.run(look())
    result: Result | None = None
    try:
        result = evaluate.run(direct, wanted, task, progress=progress)
        checks.append(_as_judged(result, record, wanted))
    except Refused as refused:
        checks.append(Check("solve rate", False, f"it could not be played: {refused}"))
    note(checks[-1].line())
    return Report(release, endpoint.model, tuple(checks), result)


def stored(store: Store, release: str, record: Release | None) -> Check:
    """The bucket holds under this name the very bytes that were released under it."""
    name = "bytes"
    if record is None:
        return Check(name, False, f"there is no release {release}")
    named = names.release(record.adapter, step=record.step, digest=releases.content_digest(record.files))
    if record.name != release or named != release:
        other = record.name if record.name != release else named
        return Check(name, False, f"{names.RELEASE_RECORD} is that of {other}, not of {release}")
    if sorted(file.name for file in record.files) != sorted((names.ADAPTER_CONFIG, names.ADAPTER_WEIGHTS)):
        return Check(name, False, f"{names.RELEASE_RECORD} does not tell the digests of weights and configuration")
    wrong = [
        file.name for file in record.files
        if store.sha256(names.release_key(release, file.name)) != file.sha256.removeprefix("sha256:")
    ]  # fmt: skip
    if wrong:
        return Check(name, False, f"{' and '.join(wrong)} {'are' if len(wrong) > 1 else 'is'} not what was released under this name")
    size = sum(file.size_bytes for file in record.files)
    return Check(name, True, f"{len(record.files)} files, {size:,} bytes, as {names.RELEASE_RECORD} says")


async def _listed(client: Client, base: str, release: str) -> Check:
    found = await client.models()
    missing = [model for model in (base, f"{base}:{release}") if model not in found]
    if missing:
        return Check("listed", False, f"/v1/models does not list {' and '.join(missing)}")
    return Check("listed", True, f"/v1/models lists {base} and {base}:{release}")


async def _applied(client: Client, base: str, release: str, task: Task, wanted: Plan) -> Check:
    """Base model and adapter differ on fixed prompts each time they are asked, where neither differs from itself."""
    name = APPLIED
    prompts = _prompts(task)
    first = await _answers(client, base, prompts, wanted)
    adapted = await _answers(client, f"{base}:{release}", prompts, wanted)
    again = await _answers(client, base, prompts, wanted)
    steady = [index for index in range(len(prompts)) if first[index] == again[index]]
    different = [index for index in steady if first[index] != adapted[index]]
    said = f"on {len(different)} of {len(steady)} prompts the adapter answers otherwise than the base model at temperature 0"
    if not steady:
        return Check(name, None, "the base model answers no prompt twice in the same way, so nothing can be compared")
    if not different:
        return Check(name, False, f"{said}: it is not applied, or it changes nothing")
    # An engine whose answers waver (batching changes sums in their last bits) now and then answers one prompt otherwise. It does
    # not do so three times with the same prompt for one model, and never for the other.
    lasting = different[:AGAIN]
    for _ in range(2):
        some = [prompts[index] for index in lasting]
        bases, others = await _answers(client, base, some, wanted), await _answers(client, f"{base}:{release}", some, wanted)
        lasting = [
            index for index, one, other in zip(lasting, bases, others, strict=True) if (one, other) == (first[index], adapted[index])
        ]
    if not lasting:
        return Check(name, False, f"{said}, but on none of them each time: the endpoint wavers, and nothing shows that it is applied")
    return Check(name, True, said)


async def _answering(
    client: Client, base: str, release: str, alias: str, task: Task, wanted: Plan, *, canary: str | None
) -> Check:  # fmt: skip
    """The alias leads to its release, a canary's share aside, and the endpoint says so.

    Args:
        canary: the release that may answer, too.
    """
    name = f"alias {alias}"
    asking = Client(replace(client.endpoint, model=f"{base}:{alias}"), client.session, client.sleep)
    prompts = _prompts(task)[:8]
    found = [
        (await asking.chat(prompt, temperature=0.0, max_tokens=wanted.max_tokens, user=f"verify-{number}")).release
        for number, prompt in enumerate(prompts)
    ]
    if None in found:
        return Check(name, False, "the endpoint does not say which release answers: its ingress is not this product's")
    others = sorted({str(each) for each in found} - {release, canary})
    if others:
        return Check(name, False, f"{' and '.join(others)} answers, not {release}")
    if release not in found:
        return Check(name, None, f"the canary {canary} got all {len(found)} requests; without it, {release} would be seen")
    return Check(name, True, f"{release} answers" + (f", and the canary {canary} some of the time" if canary in found else ""))


def _as_judged(result: Result, record: Release | None, wanted: Plan) -> Check:
    """The served solve rate lies within the interval of the gate's, where both played with the same number of turns."""
    name, gate = "solve rate", record.gate if record is not None else None
    rate = gate.candidate_rate if gate is not None else None
    if gate is None or rate is None:
        return Check(name, None, f"{result.sentence()}; the release carries no verdict of the gate to compare with")
    if gate.max_turns not in (None, wanted.max_turns):
        said = f"{result.sentence()} with {wanted.max_turns} turns; the gate saw {rate:.3f} with {gate.max_turns}"
        return Check(name, None, f"{said}: --max-turns {gate.max_turns} compares them")
    low, high = wilson(round(rate * len(result.mazes)), len(result.mazes))
    said = f"{result.sentence()}; the gate saw {rate:.3f} [{low:.3f}, {high:.3f}]"
    return Check(name, low <= result.rate <= high, said)


def _prompts(task: Task) -> list[list[Message]]:
    """Conversations of up to eight turns, in which the moves so far are given: the same for every model."""
    made = []
    for number in range(PROMPTS):
        episode = task.start(_SEED_OF_PROMPTS + number)
        messages = [episode.begin()]
        for turn in range(number % _TURNS):
            said = f"<observation>a maze</observation><action>('move', {(number // 4 + turn // 2) % 4})</action>"
            following = episode.step(said)
            if following is None:
                break
            messages += [{"role": "assistant", "content": said}, following]
        made.append(messages)
    return made


async def _answers(client: Client, model: str, prompts: Sequence[list[Message]], wanted: Plan) -> list[str]:
    asking = Client(replace(client.endpoint, model=model), client.session, client.sleep)
    limit = asyncio.Semaphore(wanted.concurrency)

    async def one(number: int, prompt: list[Message]) -> str:
        async with limit:
            return (await asking.chat(prompt, temperature=0.0, max_tokens=wanted.max_tokens, user=f"verify-{number}")).text

    work: list[Awaitable[str]] = [one(number, prompt) for number, prompt in enumerate(prompts)]
    return list(await asyncio.gather(*work))
