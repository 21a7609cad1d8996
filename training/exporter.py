"""The training series for Prometheus, from what the supervisor sees. Names, labels and units: config/series.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from config import series
from config.environment import Environment
from config.problems import Problem, Refused
from training import checkpoints, follow, layout
from training.series import step_parts
from training.supervise import Verdict

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# How an attempt can end, as the supervisor says it.
ENDINGS: Final = frozenset({"failed", "stopped", "hung", "lost"})


@dataclass
class Exporter:
    """The series of one run. A value that is not known is not published, so that no graph shows a 0 that nobody measured."""

    environment: Environment
    run_id: str
    total_steps: int | None = None
    now: Callable[[], float] = time.time
    registry: CollectorRegistry = field(init=False)
    _made: dict[str, Any] = field(default_factory=dict)
    _durations: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = CollectorRegistry()

    def serve(self, port: int, *, address: str = "127.0.0.1") -> Callable[[], None]:
        """Answer scrapes from a thread; returns what ends it. Raises Refused if the port cannot be had."""
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, addr=address, registry=self.registry)
        except OSError as error:
            raise Refused(Problem("--metrics-port", str(port), f"it cannot be had: {error.strerror or error}", "choose another")) from None

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join(5)

        return end

    def observe(self, event: object) -> None:
        """Take in one event of the supervisor: a step, a decision, or anything else, which changes nothing."""
        if isinstance(event, follow.StepSeen):
            self._step(event)
        kind, attempt = getattr(event, "kind", None), getattr(event, "attempt", None)
        if isinstance(event, Verdict):
            self.set(series.RUNNING, 0)
            if event.succeeded:
                self._counter(series.ATTEMPTS_ENDED, outcome="succeeded")
        elif kind in ENDINGS:
            self._counter(series.ATTEMPTS_ENDED, outcome=str(kind))
            self.set(series.RUNNING, 0)
        elif kind in ("submitted", "attached", "reached"):
            self.set(series.RUNNING, 1)
        if isinstance(attempt, int):
            self.set(series.ATTEMPT, attempt)
        self._checkpoint()

    def set(self, what: series.Series, value: float | None, **labels: str) -> None:
        """Publish one value; None leaves the series as it is."""
        if value is not None:
            self._child(what, labels).set(value)

    def _step(self, seen: follow.StepSeen) -> None:
        self.set(series.RUNNING, 1)
        self.set(series.STEP, seen.step)
        self.set(series.REWARD, seen.reward)
        self.set(series.STEP_SECONDS, seen.step_seconds)
        self.set(series.TOKENS_PER_SECOND, _number(seen.metrics, "trainer/tokens_per_second_per_gpu"))
        for part, seconds in step_parts(seen.metrics, seen.step_seconds).items():
            self.set(series.PART_SECONDS, seconds, part=part)
        if (rate := seen.solve_rate) is not None:
            low, high = rate.interval
            for what, value in ((series.SOLVE_RATE, rate.rate), (series.SOLVE_RATE_LOW, low), (series.SOLVE_RATE_HIGH, high)):
                self.set(what, value, source=rate.source)
            self.set(series.EVALUATED_STEP, seen.step)
            self.set(series.ORACLE_BOUND, rate.bound.rate if rate.bound is not None else None)
        if seen.step_seconds is not None:
            self._durations = [*self._durations[-49:], seen.step_seconds]
        self.set(series.ETA_SECONDS, follow.remaining_seconds(seen.step, self.total_steps, self._durations))

    def _checkpoint(self) -> None:
        folder = layout.here(self.environment, layout.run_folder(self.environment, self.run_id).checkpoints)
        step = checkpoints.marked(folder) if folder is not None else None
        if folder is None or step is None:
            return
        self.set(series.CHECKPOINT_STEP, step)
        # Asked at each scrape: an age grows while nothing happens, which is just when it matters.
        self._child(series.CHECKPOINT_AGE, {}).set_function(lambda: max(0.0, self.now() - (checkpoints.written_at(folder) or self.now())))

    def _counter(self, what: series.Series, **labels: str) -> None:
        self._child(what, labels).inc()

    def _child(self, what: series.Series, labels: Mapping[str, str]) -> Any:
        from prometheus_client import Counter, Gauge

        if what.name not in self._made:
            names = (*series.COMMON_LABELS, *what.labels)
            kind = Counter if what.kind == "counter" else Gauge
            self._made[what.name] = kind(what.name, what.help, names, registry=self.registry)
        return self._made[what.name].labels(environment=self.environment.name, run_id=self.run_id, **labels)


def exported(events: Iterator[Any], exporter: Exporter | None) -> Iterator[Any]:
    """The same events, each taken in before it is passed on."""
    for event in events:
        if exporter is not None:
            exporter.observe(event)
        yield event


def _number(metrics: Mapping[str, Any], key: str) -> float | None:
    value = metrics.get(key)
    return float(value) if isinstance(value, (int, float)) else None
