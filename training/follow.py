"""Follow an attempt: its log as a stream that survives lost connections, its verdict from the job's status alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import queue
import statistics
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from config.environment import Environment
from config.problems import Unreachable
from training import frameworks, jobs, solve_rate
from training.connection import Connection, Lost, translated
from training.console import Step, TrainingDone
from training.jobs import Attempt

STATUS_SECONDS: Final = 3.0
# A websocket that was cut without a word (a laptop that slept) looks like a quiet one; after this long it is opened anew.
SILENCE_SECONDS: Final = 300.0
# Give up when nothing at all was reached for this long; the job goes on, and `follow` can be called again.
PATIENCE_SECONDS: Final = 1800.0
_REWARD: Final = ("reward/avg_raw_reward", "reward/mean_positive_reward")
_SECONDS: Final = ("timing/step",)


@dataclass(frozen=True)
class StepSeen:
    """One step of the run, with what the person wants to know first."""

    run_id: str
    attempt: int
    step: int
    solve_rate: solve_rate.SolveRate | None
    reward: float | None
    step_seconds: float | None
    metrics: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "event": "step", "run_id": self.run_id, "attempt": self.attempt, "step": self.step, "reward": self.reward,
            "step_seconds": self.step_seconds, "solve_rate": self.solve_rate.document() if self.solve_rate else None,
            "metrics": {key: _finite(value) for key, value in self.metrics.items()},
        }  # fmt: skip

    def sentence(self) -> str:
        """For people, on one line."""
        parts = [f"attempt {self.attempt}  step {self.step:>4}"]
        parts.append(f"reward {self.reward:.3f}" if self.reward is not None else "reward     -")
        parts.append(f"{self.step_seconds:.1f} s" if self.step_seconds is not None else "-")
        if self.solve_rate is not None:
            parts.append(self.solve_rate.sentence())
        return "  ".join(parts)


@dataclass(frozen=True)
class Changed:
    """The attempt's status, or the connection's: something to tell."""

    text: str
    kind: str = "connection"


@dataclass(frozen=True)
class Ended:
    """The job's own verdict."""

    attempt: Attempt
    last_step: int | None

    @property
    def succeeded(self) -> bool:
        """Whether Ray says SUCCEEDED."""
        return self.attempt.status == "SUCCEEDED"


@dataclass(frozen=True)
class Beat:
    """The attempt goes on: its status was asked just now."""

    attempt: Attempt


Seen: TypeAlias = StepSeen | Changed | Ended


@dataclass(frozen=True)
class _Closed:
    """The websocket's end, and why."""

    error: BaseException | None


@dataclass
class _Tail:
    """One websocket in a thread of its own: pieces of the log, then how it ended."""

    connection: Connection
    submission_id: str
    pieces: queue.Queue[str | _Closed] = field(default_factory=lambda: queue.Queue(maxsize=256))
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> _Tail:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._read(self.connection.client().tail_job_logs(self.submission_id)))
        except BaseException as raised:  # noqa: BLE001 - carried to the reader
            error = raised
        self._put(_Closed(error))

    async def _read(self, stream: AsyncGenerator[str, None]) -> None:
        async with contextlib.aclosing(stream):
            async for piece in stream:
                if not self._put(piece):
                    return

    def _put(self, piece: str | _Closed) -> bool:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self.pieces.put(piece, timeout=0.5)
                return True
        return False


@dataclass
class Log:
    """The log of one attempt as a stream: after a lost connection it goes on where it was.

    Ray sends the whole log anew on every connection, from its first character (ray/dashboard/modules/job/utils.py,
    `file_tail_iterator`), so what was read before is left out by counting.
    """

    connection: Connection
    attempt: Attempt
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    read: int = 0

    def stream(self) -> Iterator[str | Changed | Attempt]:
        """Pieces of the log, remarks about the connection, and the attempt whenever its status was asked, at last a terminal one.

        Raises jobs.Gone if the cluster no longer knows the job, Unreachable if nothing answers for PATIENCE_SECONDS.
        """
        delay, reached, lost = 0.5, self.now(), False
        while True:
            before, error = self.read, None
            tail = _Tail(self.connection, self.attempt.submission_id).start()
            try:
                error = yield from self._one(tail)
            finally:
                tail.stop()
            state = self._state()
            if state is not None:
                if not state.running:
                    yield from self._rest()
                    yield state
                    return
                yield state
                reached = self.now()
            if self.read > before:
                delay, reached = 0.5, self.now()
                if lost:
                    yield Changed("connected again")
                lost = False
            if error is not None and not lost:
                lost = True
                yield Changed(f"connection lost: {translated(error, 'the log')}; trying again")
            if self.now() - reached > PATIENCE_SECONDS:
                raise Unreachable(f"nothing answered for {PATIENCE_SECONDS / 60:.0f} min; the job goes on, so follow it again later")
            self.sleep(delay)
            delay = min(delay * 2, 15.0)
            with contextlib.suppress(Lost):
                self.connection.renew()

    def _one(self, tail: _Tail) -> Generator[str | Changed | Attempt, None, BaseException | None]:
        """One connection to its end; returns what ended it (None: the other side closed it, or the job is over)."""
        skip, asked, heard = self.read, self.now(), self.now()
        while True:
            try:
                piece = tail.pieces.get(timeout=STATUS_SECONDS)
            except queue.Empty:
                piece = ""
            if isinstance(piece, _Closed):
                return piece.error
            heard = self.now() if piece else heard
            new, skip = piece[skip:], max(0, skip - len(piece))
            if new:
                self.read += len(new)
                yield new
            if self.now() - asked >= STATUS_SECONDS:
                asked = self.now()
                state = self._state()
                if state is not None and state.running:
                    yield state
                over = state is not None and not state.running
                # Ray ends the stream itself once the job is over and all is sent; that it is quiet then means that it was cut.
                if (over and not piece) or self.now() - heard > SILENCE_SECONDS:
                    return None

    def _state(self) -> Attempt | None:
        try:
            return jobs.details(self.connection, self.attempt)
        except Lost:
            return None

    def _rest(self) -> Iterator[str]:
        """What a cut stream has not brought: read once more by plain HTTP, when the job has ended and its log is final."""
        try:
            text = jobs.log(self.connection, self.attempt)
        except Unreachable:
            return
        if len(text) > self.read:
            rest, self.read = text[self.read :], len(text)
            yield rest


def follow(connection: Connection, attempt: Attempt, *, log: Log | None = None) -> Iterator[Seen]:
    """Steps of an attempt as they come, each once, and at last its verdict. Raises as `Log.stream` does."""
    return (event for event in watch(connection, attempt, log=log) if not isinstance(event, Beat))


def watch(connection: Connection, attempt: Attempt, *, log: Log | None = None) -> Iterator[Seen | Beat]:
    """As `follow`, and a beat every few seconds while nothing else comes: who waits for too long can tell."""
    env, status = connection.environment, ""
    parser, last = frameworks.parser(env), -1
    turns = max_turns(attempt, env.training.overrides)
    for piece in (log or Log(connection, attempt)).stream():
        if isinstance(piece, Changed):
            yield piece
            continue
        events: list[Any] = []
        if isinstance(piece, Attempt):
            if piece.running:
                if piece.status != status:
                    status = piece.status
                    yield Changed(f"attempt {piece.number} is {status.lower()}", kind="status")
                yield Beat(piece)
                continue
            events = parser.finish()
        else:
            events = parser.feed(piece.encode("utf-8", "replace"))
        for event in events:
            if isinstance(event, TrainingDone):
                yield Changed("the trainer says that it is done", kind="trainer")
            elif isinstance(event, Step) and event.number > last:
                last = event.number
                yield seen(env, attempt, event, turns=turns)
        if isinstance(piece, Attempt):
            yield Ended(piece, last_step=last if last >= 0 else None)


def seen(env: Environment, attempt: Attempt, step: Step, *, turns: object) -> StepSeen:
    """One logged step with its solve rate, reward and time."""
    other = frameworks.of(env)
    reward, seconds = (other.reward, other.seconds) if other is not None else (_REWARD, _SECONDS)
    rate = solve_rate.of_step(env, attempt.run_id, step=step.number, metrics=step.metrics, max_turns=turns)
    return StepSeen(
        run_id=attempt.run_id, attempt=attempt.number, step=step.number, solve_rate=rate, metrics=step.metrics,
        reward=next((value for key in reward if (value := _number(step.metrics.get(key))) is not None), None),
        step_seconds=next((value for key in seconds if (value := _number(step.metrics.get(key))) is not None), None),
    )  # fmt: skip


def remaining_seconds(step: int, total: int | None, durations: Sequence[float]) -> float | None:
    """Estimated time to the last step, from the median of the newest steps; None while that is not known."""
    if total is None or not durations:
        return None
    return max(0, total - step) * statistics.median(durations[-20:])


def total_steps(env: Environment, attempt: Attempt) -> int | None:
    """Steps that the run makes in all, as SkyRL counts them; None where that does not follow from its overrides."""
    try:
        told = dict(json.loads((attempt.metadata or {}).get("overrides", "{}")))
        per_epoch = env.training.train_rows // int(told["trainer.train_batch_size"])
        total = per_epoch * int(told["trainer.epochs"])
        limit = told.get("trainer.max_training_steps")
        return min(total, int(limit)) if limit is not None else total
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def max_turns(attempt: Attempt, overrides: Mapping[str, object]) -> object:
    """`generator.max_turns` of an attempt: from its metadata, else from the environment's overrides, else SkyRL's default 1."""
    try:
        told = json.loads((attempt.metadata or {}).get("overrides", "{}"))
    except ValueError:
        told = {}
    return (told if isinstance(told, dict) else {}).get("generator.max_turns", overrides.get("generator.max_turns", 1))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
