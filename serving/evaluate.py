"""The same held-out evaluation against any OpenAI-compatible endpoint with images: mazes played side by side, turn by turn."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from config.problems import Problem, Refused
from serving.openai_client import Client, Endpoint, TooLong, connected
from serving.tasks import Task
from training.results import Latency, MazeSet, Played, Result

if TYPE_CHECKING:
    from config.environment import Environment

CONCURRENCY: Final = 16
MAX_TOKENS: Final = 1024

Progress = Callable[[int, int, int], None]
"""Told after each maze: how many are played, how many there are, how many of those played were solved."""


@dataclass(frozen=True)
class Plan:
    """What to play and how. Temperature 0 is greedy, as in SkyRL's own evaluation; `max_tokens` bounds one answer."""

    seeds: Sequence[int]
    maze_set: MazeSet
    max_turns: int
    temperature: float = 0.0
    max_tokens: int = MAX_TOKENS
    concurrency: int = CONCURRENCY
    run_id: str | None = None
    step: int | None = None
    export_digest: str | None = None


def plan(
    env: Environment, *, maze_set: MazeSet = "held-out", mazes: int | None = None, max_turns: int | None = None,
    concurrency: int = CONCURRENCY, temperature: float = 0.0, max_tokens: int | None = None, run_id: str | None = None,
    step: int | None = None,
) -> Plan:  # fmt: skip
    """A plan with what the environment trains and evaluates with. Raises Refused with every problem."""
    from training.maze_task import SETS

    overrides = env.training.overrides
    turns = max_turns if max_turns is not None else overrides.get("generator.max_turns", 1)
    tokens = max_tokens if max_tokens is not None else overrides.get("generator.sampling_params.max_generate_length", MAX_TOKENS)
    seeds = SETS[maze_set]
    wanted = len(seeds) if mazes is None else mazes
    found = []
    if not 0 < wanted <= len(seeds):
        found.append(Problem("--mazes", str(wanted), f"the {maze_set} set has {len(seeds)} mazes", f"use 1 to {len(seeds)}"))
    if not isinstance(turns, int) or not 0 < turns <= 1000:
        found.append(Problem("--max-turns", str(turns), "an episode has 1 to 1000 turns", "leave it out to play as in training"))
    if not 0 < concurrency <= 1024:
        found.append(Problem("--concurrency", str(concurrency), "1 to 1024 mazes are played at once", f"for example {CONCURRENCY}"))
    if not 0 <= temperature <= 2:
        found.append(Problem("--temperature", str(temperature), "a temperature is 0 to 2", "0 plays greedily, as SkyRL evaluates"))
    if not isinstance(tokens, int) or tokens <= 0:
        found.append(Problem("--max-tokens", str(tokens), "an answer has at least one token", f"for example {MAX_TOKENS}"))
    if found:
        raise Refused(found)
    return Plan(
        tuple(seeds[:wanted]), maze_set, int(turns), temperature, int(tokens), concurrency, run_id, step  # type: ignore[arg-type]
    )  # fmt: skip


def run(endpoint: Endpoint, wanted: Plan, task: Task, *, progress: Progress = lambda played, all_, solved: None) -> Result:
    """Play all mazes and return the result.

    Raises Refused where the endpoint refuses for good (no such model, no key), Unreachable where it stops answering. There is no
    result of a part: every maze was played to its end.
    """
    return asyncio.run(played(endpoint, wanted, task, progress=progress))


async def played(endpoint: Endpoint, wanted: Plan, task: Task, *, progress: Progress = lambda played, all_, solved: None) -> Result:
    """As `run`, for callers in an event loop."""
    started, began = datetime.now(UTC), time.perf_counter()
    async with connected(endpoint, connections=wanted.concurrency) as client:
        mazes = await _all(client, wanted, task, progress)
        return Result(
            model=endpoint.model, endpoint=endpoint.shown, task=task.name, maze_set=wanted.maze_set, max_turns=wanted.max_turns,
            temperature=wanted.temperature, max_tokens=wanted.max_tokens, run_id=wanted.run_id, step=wanted.step,
            export_digest=wanted.export_digest, started=started.isoformat(timespec="seconds"),
            seconds=round(time.perf_counter() - began, 3),
            concurrency=wanted.concurrency, retries=client.retries, latency=latency(client.seconds),
            oracle_bound=task.bound(wanted.seeds), mazes=mazes,
        )  # fmt: skip


async def _all(client: Client, wanted: Plan, task: Task, progress: Progress) -> tuple[Played, ...]:
    waiting, done, found = iter(wanted.seeds), 0, {}

    async def worker() -> None:
        nonlocal done
        for seed in waiting:
            found[seed] = await play(client, wanted, task, seed)
            done += 1
            progress(done, len(wanted.seeds), sum(maze.solved for maze in found.values()))

    async with _Together() as together:
        for _ in range(min(wanted.concurrency, len(wanted.seeds))):
            together.start(worker())
    return tuple(found[seed] for seed in wanted.seeds)


async def play(
    client: Client, wanted: Plan, task: Task, seed: int, *, seen: Callable[[dict[str, Any], str], None] = lambda message, text: None
) -> Played:  # fmt: skip
    """Play one maze. `seen` is told each message with its picture, and what the model said to it."""
    episode = task.start(seed)
    message: dict[str, Any] | None = episode.begin()
    messages: list[dict[str, Any]] = []
    releases: dict[str, None] = {}
    reason = "turns"
    while message is not None:
        messages.append(message)
        try:
            answer = await client.chat(
                messages, temperature=wanted.temperature, max_tokens=wanted.max_tokens, user=f"evaluation-{seed}"
            )  # fmt: skip
        except TooLong as refused:
            if len(messages) == 1:
                # Else a model that takes no pictures would be told to solve nothing, as if it had played.
                rule = f"{client.endpoint.shown} does not take even the first prompt of a maze ({refused})"
                fix = "serve it with room for a picture a turn (vLLM: --limit-mm-per-prompt, --max-model-len)"
                raise Refused(Problem("--model", client.endpoint.model, rule, fix)) from None
            reason = "context"
            break
        if answer.release:
            releases[answer.release] = None
        seen(message, answer.text)
        messages.append({"role": "assistant", "content": answer.text})
        message = episode.step(answer.text)
    if episode.stopped:
        reason = "stop"
    formed = episode.formed / episode.turns if episode.turns else 0.0
    return Played(
        seed=seed, solved=episode.solved, turns=episode.turns, format_rate=formed,
        stop_reason=reason, releases=tuple(releases),  # type: ignore[arg-type]
    )  # fmt: skip


def latency(seconds: Sequence[float]) -> Latency:
    """Percentiles by the nearest rank: each of them is a latency that was really seen."""
    if not seconds:
        return Latency()
    ranked = sorted(seconds)

    def at(share: float) -> float:
        return round(ranked[max(0, math.ceil(share * len(ranked)) - 1)], 4)

    mean = round(sum(ranked) / len(ranked), 4)
    return Latency(requests=len(ranked), mean=mean, p50=at(0.5), p90=at(0.9), p99=at(0.99), longest=round(ranked[-1], 4))


class _Together:
    """Tasks that end together: the first error cancels the others and is raised as it is, not in a group."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> _Together:
        return self

    def start(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def __aexit__(self, *error: object) -> None:
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for each in self._tasks:
                each.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
