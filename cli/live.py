"""The live view of `follow` on a terminal: the newest steps, the best solve rate, what the connection does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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
    with Live(console=console or Console(), refresh_per_second=4, transient=False) as live:
        for event in events:
            if isinstance(event, Ended):
                live.update(_view(attempt, steps, best, note, total))
                return event
            if isinstance(event, Changed):
                note = event.text
            else:
                steps.append(event)
                if event.solve_rate and (best is None or best.solve_rate is None or event.solve_rate.rate > best.solve_rate.rate):
                    best = event
            live.update(_view(attempt, steps, best, note, total))
    raise AssertionError("a stream of events ends with the verdict")


def _view(attempt: Attempt, steps: deque[StepSeen], best: StepSeen | None, note: str, total: int | None) -> Group:
    table = Table(title=f"run {attempt.run_id}, attempt {attempt.number}", title_justify="left")
    for name in ("step", "reward", "s/step", "rollout/train/sync", "tok/s/GPU", "solve rate", "95 % interval", "of bound", "source"):
        table.add_column(name, justify="left" if name == "source" else "right", no_wrap=name != "source")
    for step in steps:
        rate = step.solve_rate
        low, high = rate.interval if rate else (0.0, 0.0)
        of_bound = rate.of_bound if rate else None
        table.add_row(
            str(step.step), f"{step.reward:.3f}" if step.reward is not None else "-",
            f"{step.step_seconds:.1f}" if step.step_seconds is not None else "-",
            _split(step), f"{tokens:.0f}" if isinstance(tokens := step.metrics.get("trainer/tokens_per_second_per_gpu"), float) else "-",
            f"{rate.rate:.3f}" if rate else "", f"{low:.3f} to {high:.3f}" if rate else "",
            f"{of_bound:.0%}" if of_bound is not None else "unknown" if rate else "", rate.source if rate else "",
        )  # fmt: skip
    lines = [Text(line)] if (line := _left(steps, total)) else []
    lines += [Text(f"best so far, step {best.step}: {best.solve_rate.sentence()}")] if best and best.solve_rate else []
    return Group(table, *lines, Text(note, style="dim"))


def _split(step: StepSeen) -> str:
    """Seconds of a step in rollout, training and sync."""
    parts = step_parts(step.metrics, step.step_seconds)
    return "/".join(f"{parts[part]:.1f}" if part in parts else "-" for part in (Part.ROLLOUT, Part.TRAINING, Part.SYNC)) if parts else "-"


def _left(steps: deque[StepSeen], total: int | None) -> str:
    """How far the run is, and how long it still takes at the pace of the steps that are shown."""
    if not steps or total is None:
        return ""
    seconds = remaining_seconds(steps[-1].step, total, [step.step_seconds for step in steps if step.step_seconds is not None])
    eta = f", about {seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min left" if seconds is not None else ""
    return f"step {steps[-1].step} of {total}{eta}"
