"""The live view of `follow` on a terminal: the newest steps, the best solve rate, what the connection does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from config.series import Part
from training.follow import Changed, Ended, Seen, StepSeen, remaining_seconds, total_steps
from training.series import step_parts

if TYPE_CHECKING:
    from config.environment import Environment
    from training.jobs import Attempt

ROWS = 15


def show(
    events: Iterator[Seen], attempt: Attempt, console: Console | None = None, *, environment: Environment | None = None
) -> Ended:  # fmt: skip
    """Draw events until the verdict, which is returned. With the environment, the time that is left is estimated."""
    steps: deque[StepSeen] = deque(maxlen=ROWS)
    total = total_steps(environment, attempt) if environment is not None else None
    best: StepSeen | None = None
    note = f"attempt {attempt.number} is {attempt.status.lower()}"
    console = console or Console()
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        for event in events:
            if isinstance(event, Ended):
                live.update(_view(attempt, steps, best, note, total, console.width))
                return event
            if isinstance(event, Changed):
                note = event.text
            else:
                steps.append(event)
                if event.solve_rate and (best is None or best.solve_rate is None or event.solve_rate.rate > best.solve_rate.rate):
                    best = event
            live.update(_view(attempt, steps, best, note, total, console.width))
    raise AssertionError("a stream of events ends with the verdict")


def _view(attempt: Attempt, steps: deque[StepSeen], best: StepSeen | None, note: str, total: int | None, width: int) -> Group:
    table = Table(title=f"run {attempt.run_id}, attempt {attempt.number}", title_justify="left")
    columns = _fitting({name: [cell(step) for step in steps] for name, cell in _COLUMNS.items()}, width)
    for name in columns:
        table.add_column(name, justify="left" if name == "source" else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    lines = [Text(line)] if (line := _left(steps, total)) else []
    lines += [Text(f"best so far, step {best.step}: {best.solve_rate.sentence()}")] if best and best.solve_rate else []
    return Group(table, *lines, Text(note, style="dim"))


def _fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """The columns that a terminal of this width can show whole: a step or a reward cut short would be worse than a column less."""
    chosen = dict(columns)
    for name in _FIRST_TO_GO:
        # Each column has a blank on either side and a line behind it.
        if sum(max(map(len, (title, *cells))) + 3 for title, cells in chosen.items()) + 1 <= width:
            break
        del chosen[name]
    return chosen


def _interval(step: StepSeen) -> str:
    if step.solve_rate is None:
        return ""
    low, high = step.solve_rate.interval
    return f"{low:.3f} to {high:.3f}"


def _of_bound(step: StepSeen) -> str:
    if step.solve_rate is None:
        return ""
    return f"{step.solve_rate.of_bound:.0%}" if step.solve_rate.of_bound is not None else "unknown"


def _tokens(step: StepSeen) -> str:
    found = step.metrics.get("trainer/tokens_per_second_per_gpu")
    return f"{found:.0f}" if isinstance(found, float) else "-"


def _split(step: StepSeen) -> str:
    """Seconds of a step in rollout, training and sync."""
    parts = step_parts(step.metrics, step.step_seconds)
    return "/".join(f"{parts[part]:.1f}" if part in parts else "-" for part in (Part.ROLLOUT, Part.TRAINING, Part.SYNC)) if parts else "-"


def _left(steps: deque[StepSeen], total: int | None) -> str:
    """How far the run is, and how long it still takes at the pace of the steps that are shown."""
    if not steps or total is None:
        return ""
    seconds = remaining_seconds(steps[-1].step, total, [step.step_seconds for step in steps if step.step_seconds is not None])
    return f"step {steps[-1].step} of {total}{f', {_lasting(seconds)} left' if seconds is not None else ''}"


def _lasting(seconds: float) -> str:
    if seconds < 60:
        return "less than a minute"
    hours = f"{seconds // 3600:.0f} h " if seconds >= 3600 else ""
    return f"about {hours}{seconds % 3600 // 60:.0f} min"


_COLUMNS: Mapping[str, Callable[[StepSeen], str]] = {
    "step": lambda step: str(step.step),
    "reward": lambda step: f"{step.reward:.3f}" if step.reward is not None else "-",
    "s/step": lambda step: f"{step.step_seconds:.1f}" if step.step_seconds is not None else "-",
    "rollout/train/sync": _split,
    "tok/s/GPU": _tokens,
    "solve rate": lambda step: f"{step.solve_rate.rate:.3f}" if step.solve_rate else "",
    "95 % interval": _interval,
    "of bound": _of_bound,
    "source": lambda step: step.solve_rate.source if step.solve_rate else "",
}
_FIRST_TO_GO = ("source", "rollout/train/sync", "tok/s/GPU", "s/step", "of bound", "95 % interval")
