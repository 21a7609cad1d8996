"""Bring a run to its end over faults: watch its attempt, and start the next one when it failed, hung or was lost.

Each decision is told, and becomes an event of the record where the shared file system is visible. Supervising can be ended and
begun again at any moment: the run goes on without it, and what it needs to know is on the cluster and in the record.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from config.problems import Failed, Problem, Refused, Unreachable
from training import follow, jobs, record
from training.cluster import State
from training.connection import Connection, Missing
from training.follow import Beat, Changed, Ended, Seen, StepSeen
from training.jobs import Attempt
from training.keeping import Keeper, kept
from training.run import Specification
from training.waiting import Clock

LOOK_SECONDS: Final = 10.0
STOP_TRIES: Final = 3
SUBMIT_TRIES: Final = 3
Kind: TypeAlias = Literal["succeeded", "failed", "stopped", "hung", "lost", "unreachable"]
Watch: TypeAlias = Callable[[Connection, Attempt], Iterator[Seen | Beat]]


@dataclass(frozen=True)
class Limits:
    """When to give up waiting, and how often to try. Times in seconds.

    An attempt hangs if no step came for `hang_factor` median step times, though never less than `hang_minimum` (evaluations and
    checkpoints come between steps); before its first step, which needs models to be loaded, if none came for `first_step`.
    """

    attempts: int = 3
    hang_factor: float = 10.0
    hang_minimum: float = 900.0
    first_step: float = 3600.0
    ready: float = 7200.0
    backoff: float = 30.0
    longest_backoff: float = 600.0


@dataclass(frozen=True)
class Decision:
    """Something that the supervisor decided or found, and why."""

    kind: str
    text: str
    attempt: int | None = None

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {"event": self.kind, "attempt": self.attempt, "text": self.text}


@dataclass(frozen=True)
class Verdict:
    """How it ended."""

    run_id: str
    succeeded: bool
    attempts: int
    reason: str

    def document(self) -> dict[str, Any]:
        """For programs."""
        code = 0 if self.succeeded else 1
        return {"event": "end", "exit_code": code, "run_id": self.run_id, "attempts": self.attempts, "reason": self.reason}


@dataclass(frozen=True)
class Outcome:
    """How one attempt went, as far as it was watched."""

    kind: Kind
    reason: str
    last_step: int | None = None
    exit_code: int | None = None

    @property
    def error(self) -> tuple[int | None, int | None, str]:
        """What makes two failures the same: step, exit code, and the reason without what changes from time to time."""
        plain = re.sub(r"[0-9a-f]{8,}|0x[0-9a-f]+|\d+", "#", self.reason.lower())
        return self.last_step, self.exit_code, " ".join(plain.split())


@dataclass
class Supervisor:
    """Watches over one run.

    Args:
        specification: what to submit as the next attempt; asked for when one is due. May raise Refused.
        cluster: how the RayCluster stands.
        watch: events of an attempt, with beats.
        hang: HyperPod's own word on a hang since a time in seconds since the epoch; None if it has none.
    """

    connection: Connection
    run_id: str
    specification: Callable[[], Specification]
    cluster: Callable[[], State]
    keeper: Keeper
    limits: Limits = Limits()
    clock: Clock = field(default_factory=Clock)
    watch: Watch = follow.watch
    hang: Callable[[float], str | None] | None = None
    _durations: list[float] = field(default_factory=list)
    # The first attempt of this budget: the one that somebody submitted, and from which supervisors went on.
    _since: int = 0

    def run(self) -> Iterator[Seen | Decision | Verdict]:
        """Steps, decisions, and at last the verdict. Raises Refused if there is no such run, Unreachable if nothing comes back."""
        attempt, outcome, number, before = self._begin()
        used = max(1, number - self._since + 1)
        while True:
            if attempt is not None:
                number, outcome = attempt.number, (yield from self._watched(attempt))
                self.keeper.catch_up(attempt)
            if outcome.kind == "succeeded":
                yield Verdict(self.run_id, True, used, f"attempt {number} succeeded")
                return
            yield self._decided(outcome.kind, self._told(number, outcome), number)
            if (reason := self._hopeless(outcome, before)) is not None:
                yield self._decided("given-up", reason, number)
                yield Verdict(self.run_id, False, used, reason)
                return
            if outcome.kind == "hung" and not (yield from self._stopped(number)):
                yield Verdict(self.run_id, False, used, f"attempt {number} hangs and could not be stopped")
                return
            if outcome.kind != "unreachable" and used >= self.limits.attempts:
                reason = (
                    f"{used} attempts were made since attempt {self._since} was submitted, and the limit is {self.limits.attempts}; the"
                    f" last one: {outcome.reason or outcome.kind}. Submit it again, or raise --attempts, to go on"
                )
                yield self._decided("given-up", reason, number)
                yield Verdict(self.run_id, False, used, reason)
                return
            yield from self._backed_off(used, number)
            yield from self._ready(number)
            try:
                attempt, new = yield from self._next(number, outcome)
            except Refused as refused:
                reason = f"the next attempt is refused: {'; '.join(str(problem) for problem in refused.problems)}"
                yield self._decided("given-up", reason, number)
                yield Verdict(self.run_id, False, used, reason)
                return
            used += new
            before = outcome if outcome.kind == "failed" else None

    # --- one attempt ---

    def _begin(self) -> tuple[Attempt | None, Outcome, int, Outcome | None]:
        """Where to begin: the newest attempt, or None where only the record knows of one; what that means; its number; and the
        failure before it, which the record tells, so that a supervisor that was begun again knows it too."""
        known = record.read(self.keeper.folder) if self.keeper.folder is not None else None
        recorded = known.attempts if known is not None else ()
        lost = Outcome("lost", "the Ray cluster does not know it; its head was restarted")
        its = jobs.attempts(self.connection, self.run_id)
        if not its and recorded:
            self._since = next((each.supervised_since or each.number for each in reversed(recorded) if each.submission_id), 1)
            return None, lost, recorded[-1].number, None
        attempt = jobs.newest(self.connection, self.run_id)
        told = (attempt.metadata or {}).get(jobs.SUPERVISED_SINCE, "")
        self._since = int(told) if told.isdecimal() else attempt.number
        before = next((each for each in recorded if each.number == attempt.number - 1 and each.status == "FAILED"), None)
        failure = Outcome("failed", before.reason, before.last_step, before.driver_exit_code) if before is not None else None
        return attempt, lost, attempt.number, failure

    def _watched(self, attempt: Attempt) -> Generator[Seen | Decision | Verdict, None, Outcome]:
        """Pass on what comes of an attempt until it has ended, hangs, or is out of reach."""
        last: int | None = None
        # A supervisor that is begun again has not missed what HyperPod said of this attempt before.
        since, begun = self.clock.now(), attempt.start if attempt.start is not None else time.time()
        try:
            for event in kept(self.watch(self.connection, attempt), self.keeper):
                if isinstance(event, Beat):
                    limit = self._limit(last)
                    if self.clock.now() - since > limit:
                        return Outcome("hung", f"no step came for {limit / 60:.0f} min", last)
                    if self.hang is not None and (word := self.hang(begun)) is not None:
                        return Outcome("hung", f"HyperPod says so: {word}", last)
                    continue
                if isinstance(event, Ended):
                    return _ended(event, last)
                if isinstance(event, StepSeen):
                    last, since = event.step, self.clock.now()
                    if event.step_seconds is not None:
                        self._durations.append(event.step_seconds)
                yield event
        except (jobs.Gone, Missing) as error:
            return Outcome("lost", str(error), last)
        except Unreachable as error:
            return Outcome("unreachable", str(error), last)
        raise AssertionError("a stream of events ends with the verdict")

    def _limit(self, last: int | None) -> float:
        if last is None or not self._durations:
            return self.limits.first_step
        return max(self.limits.hang_minimum, self.limits.hang_factor * statistics.median(self._durations))

    # --- what to do about it ---

    def _told(self, number: int, outcome: Outcome) -> str:
        at = f" after step {outcome.last_step}" if outcome.last_step is not None else " before its first step"
        word = {
            "failed": f"failed{at}", "stopped": f"was stopped{at}", "hung": f"hangs{at}",
            "lost": "is lost", "unreachable": "is out of reach",
        }  # fmt: skip
        return f"attempt {number} {word[outcome.kind]}" + (f": {outcome.reason}" if outcome.reason else "")

    def _hopeless(self, outcome: Outcome, before: Outcome | None) -> str | None:
        """Why no further attempt would help; None if one may."""
        if outcome.kind == "stopped":
            return "somebody stopped it, so it is not started again"
        if outcome.kind == "failed" and before is not None and before.error == outcome.error:
            at = f"at step {outcome.last_step}" if outcome.last_step is not None else "before the first step"
            return f"the same error came twice {at}, so it will come again: {outcome.reason}"
        return None

    def _stopped(self, number: int) -> Generator[Decision, None, bool]:
        for _ in range(STOP_TRIES):
            try:
                jobs.stop(self.connection, self.run_id, sleep=self.clock.sleep, now=self.clock.now)
            except Unreachable as error:
                yield self._decided("stop-failed", str(error), number)
                self.clock.sleep(LOOK_SECONDS)
                continue
            except Refused:  # the head was restarted meanwhile, and knows no attempt that could still run
                yield self._decided("stopped", f"attempt {number} is gone from the Ray cluster", number)
                return True
            yield self._decided("stopped", f"attempt {number} was stopped, since it hangs", number)
            return True
        return False

    def _backed_off(self, used: int, number: int) -> Iterator[Decision]:
        # A node that just went away is Ready in Kubernetes' eyes for some 40 s more (node-monitor-grace-period).
        seconds = min(self.limits.longest_backoff, self.limits.backoff * 2 ** (used - 1))
        yield self._decided("waiting", f"waiting {seconds:.0f} s, then for all GPUs to be ready", number)
        self.clock.sleep(seconds)

    def _ready(self, number: int) -> Iterator[Decision]:
        """Wait until head and workers are ready with all their GPUs. Raises Unreachable after the limit."""
        start, said = self.clock.now(), ""
        while True:
            try:
                state = self.cluster()
                ready, line = state.ready, state.sentence()
            except (Unreachable, Failed) as error:
                ready, line = False, str(error)
            if ready:
                yield self._decided("ready", line, number)
                return
            if line != said:
                yield self._decided("waiting", line, number)
                said = line
            if self.clock.now() - start > self.limits.ready:
                text = f"the cluster did not come back within {self.limits.ready / 60:.0f} min: {line}"
                self._decided("given-up", text, number)
                raise Unreachable(f"{text}; run `hyperpod-rl supervise {self.run_id}` again later")
            self.clock.sleep(LOOK_SECONDS)

    def _next(self, number: int, outcome: Outcome) -> Generator[Decision, None, tuple[Attempt, int]]:
        """The next attempt, and 1; or the old one, and 0, if it turns out to run still. Raises Refused, Unreachable."""
        start, refused = self.clock.now(), 0
        while True:
            try:
                if outcome.kind == "unreachable" and (its := jobs.attempts(self.connection, self.run_id)) and its[-1].number == number:
                    yield self._decided("reached", f"attempt {number} is {its[-1].status.lower()}", number)
                    return its[-1], 0
                done = jobs.submit(self.connection, self.specification(), after=number, supervised_since=self._since)
                break
            except Unreachable as error:
                if self.clock.now() - start > self.limits.ready:
                    raise
                yield self._decided("submit-failed", str(error), number)
                self.clock.sleep(LOOK_SECONDS)
            except Failed as error:
                # Ray said no. A head that has just come back may say so for a moment, and says yes to the same job after it.
                refused += 1
                if refused == SUBMIT_TRIES:
                    raise Refused(Problem("next attempt", "", f"{refused} times {str(error).rstrip('.')}")) from None
                yield self._decided("submit-failed", str(error), number)
                self.clock.sleep(LOOK_SECONDS)
        yield self._decided(done.action, done.sentence, done.attempt.number)
        return done.attempt, int(done.attempt.number != number)

    def _decided(self, kind: str, text: str, number: int) -> Decision:
        self.keeper.refresh(record.event(kind, text, attempt=number or None))
        return Decision(kind, text, number or None)


def _ended(event: Ended, last: int | None) -> Outcome:
    attempt = event.attempt
    step = event.last_step if event.last_step is not None else last
    kind: Kind = "succeeded" if event.succeeded else "stopped" if attempt.status == "STOPPED" else "failed"
    return Outcome(kind, attempt.message, step, attempt.exit_code)


def sentence(event: Seen | Decision | Verdict) -> str:
    """An event for people, on one line."""
    if isinstance(event, StepSeen):
        return event.sentence()
    if isinstance(event, Verdict):
        return f"run {event.run_id} {'succeeded' if event.succeeded else 'did not succeed'}: {event.reason}"
    if isinstance(event, Decision | Changed):
        return f"-- {event.text}"
    return ""


def document(event: Seen | Decision | Verdict) -> dict[str, Any]:
    """An event for programs."""
    if isinstance(event, Changed):
        return {"event": event.kind, "text": event.text}
    if isinstance(event, Ended):
        raise TypeError("the end of an attempt is told as a decision")
    return event.document()
