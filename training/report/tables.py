"""Tables and lists of the page. Every number that is shown stands in a `<data>` element with its exact value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from training.keeping import History
from training.record import AttemptRecord, Evaluation, Record
from training.series import Row

UNKNOWN = "unknown"


def number(value: float | int | None, digits: int = 3, *, unknown: str = "–") -> str:
    """A number, rounded for the eye and exact for programs."""
    if value is None:
        return unknown
    text = f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"
    return f'<data value="{escape(json.dumps(value))}">{text}</data>'


def moment(time: str | None) -> str:
    """A UTC time, to the minute."""
    if time is None:
        return "–"
    return f'<time datetime="{escape(time)}">{escape(time[:16].replace("T", " "))}</time>'


def status(word: str) -> str:
    """A status, colored and in words."""
    kind = {"SUCCEEDED": "good", "FAILED": "bad", "LOST": "bad"}.get(word, "")
    return f'<span class="{kind}">{escape(word.lower())}</span>'


def table(
    name: str, headers: Sequence[str], rows: Iterable[Sequence[str]], *, hint: str = "", texts: Sequence[int] = (), kind: str = ""
) -> str:
    """A table in a box that scrolls sideways by itself; cells are HTML, columns in `texts` are prose. The first column heads its row."""
    classes = [' class="text"' if column in texts else "" for column in range(len(headers))]
    head = "".join(f'<th scope="col"{classes[i]}>{text}</th>' for i, text in enumerate(headers))
    body = []
    for row in rows:
        cells = [f'<th scope="row">{row[0]}</th>']
        cells += [text if text.startswith("<td") else f"<td{classes[i]}>{text}</td>" for i, text in enumerate(row[1:], 1)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    said = f'<p class="hint">{escape(hint)}</p>' if hint else ""
    return (
        f'<div class="card">{said}<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f'<table class="{kind}" aria-label="{escape(name)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></div>"
    )


def attempts(record: Record) -> str:
    """Attempts of a run with their reasons."""
    headers = ("Attempt", "Status", "Started (UTC)", "Ended (UTC)", "Steps", "Trained in vain", "Submitted by", "Why it ended")
    hint = "A later attempt goes on from the last checkpoint; steps after it were trained in vain."
    return table("Attempts", headers, [_attempt(each) for each in record.attempts], hint=hint, texts=(6, 7))


def _attempt(each: AttemptRecord) -> tuple[str, ...]:
    steps = "–" if each.first_step is None else f"{number(each.first_step)} to {number(each.last_step)}"
    return (
        number(each.number), status(each.status), moment(each.started), moment(each.ended), steps, number(each.steps_lost),
        escape(each.submitted_by), escape(each.reason) or "–",
    )  # fmt: skip


def evaluations(record: Record) -> str:
    """Evaluations of a run with interval and bound."""
    headers = ("Step", "Solve rate", "95 % interval", "Solved", "Of bound", "Attempt", "Source", "SkyRL’s pass_at_1")
    hint = "Solve rate: mazes really solved of mazes tried, with Wilson’s interval. SkyRL’s pass_at_1 also counts unsolved mazes."
    return table("Evaluations", headers, [_evaluation(each) for each in record.evaluations], hint=hint)


def _evaluation(each: Evaluation) -> tuple[str, ...]:
    whole = each.source == "eval dump"
    solved = f"{number(int(each.solved) if whole else each.solved, 1)} of {number(each.mazes)}"
    bound = number(each.rate / each.oracle_bound, 3) if each.oracle_bound else UNKNOWN
    return (
        number(each.step), number(each.rate), f"{number(each.low)} to {number(each.high)}", solved if whole else f"about {solved}", bound,
        number(each.attempt), escape(each.source), number(each.skyrl_pass_at_1),
    )  # fmt: skip


def mazes(record: Record) -> str:
    """Each maze over the evaluations whose dump was read; a sentence if none was."""
    rated = [each for each in record.evaluations if each.results]
    if not rated:
        return '<p class="none">No eval dump was visible, so nothing is known maze by maze.</p>'
    keys = sorted({_key(maze.seed, maze.row) for each in rated for maze in each.results})
    found = [{_key(maze.seed, maze.row): maze for maze in each.results} for each in rated]
    rows = []
    for unseeded, name in keys:
        cells = []
        for each, results in zip(rated, found, strict=True):
            maze = results.get((unseeded, name))
            if maze is None:
                cells.append("<td>–</td>")
                continue
            kind, word = ("yes", "✓") if maze.solved else ("cutoff", "cut") if maze.stop_reason == "length" else ("no", "no")
            title = f"step {each.step}: {'solved' if maze.solved else 'not solved'}, ended by {maze.stop_reason or 'unknown'}"
            cells.append(f'<td class="{kind}" title="{escape(title)}">{word}</td>')
        rows.append((f"{'row ' if unseeded else ''}{name}", *cells))
    rows.append(("solved", *(number(sum(maze.solved for maze in each.results)) for each in rated)))
    headers = ("Seed", *(f"step {each.step}" for each in rated))
    hint = "✓ solved; no: not solved; cut: not solved, ended by its length."
    return table("Maze by maze", headers, rows, hint=hint, kind="mazes")


def _key(seed: int | None, row: int) -> tuple[bool, int]:
    return (True, row) if seed is None else (False, seed)


def steps(series: Sequence[Row]) -> str:
    """Every step with its numbers."""
    rows = [
        (number(row.step), number(row.attempt), number(row.reward, 4), number(row.step_seconds, 2),
         number(row.solve_rate.rate) if row.solve_rate else "–")
        for row in series
    ]  # fmt: skip
    return table("Every step", ("Step", "Attempt", "Reward", "Seconds", "Solve rate"), rows)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values (HTML)."""
    return f'<dl class="facts card">{"".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in pairs)}</dl>'


def identity(record: Record) -> str:
    """What the run was made of."""
    code = f"<code>{escape(record.code.commit)}</code>" + (" with uncommitted changes" if record.code.dirty else "")
    image = f"<code>{escape(record.image.uri or UNKNOWN)}</code>" + (
        "" if record.image.digest else " (a tag: it may have been moved since)"
    )
    model = record.model
    origin = (
        f", {escape('/'.join(filter(None, (model.repository, model.subfolder))))} at {escape(model.revision)}" if model.repository else ""
    )
    if model.commit and model.commit != model.revision:
        origin += f" (commit <code>{escape(model.commit)}</code>)"
    nodes = record.nodes
    machines = f"{nodes.workers} x {escape(nodes.worker_type)} ({nodes.gpus} GPUs), head {escape(nodes.head_type)}, {escape(nodes.region)}"
    machines = machines if nodes.worker_type else UNKNOWN
    environment = escape(record.environment)
    if not record.environment_matches:
        environment += " (its file has changed since)"
    pairs = [
        ("Run", escape(record.run_id)), ("Environment", environment), ("Commit", code), ("Image", image),
        ("Base model", f"<code>{escape(model.path or UNKNOWN)}</code>{origin}"),
        *((f"Dataset, {each.purpose}", f"<code>{escape(each.path)}</code>" + (f" sha256 <code>{each.sha256}</code>" if each.sha256 else ""))
          for each in record.datasets),
        ("Nodes", machines),
        ("Specification", f"<code>{escape(record.specification or UNKNOWN)}</code>"),
        ("Configuration", f"<code>{escape(record.config or UNKNOWN)}</code>"),
        ("GPU hours", number(record.usage.gpu_hours) + ("" if record.usage.complete else " at least: the end of an attempt was not seen")),
        ("Cost", f"{number(record.usage.cost_usd, 2)} USD" if record.usage.cost_usd else escape(record.usage.cost_note)),
        ("Record of", moment(record.updated)),
    ]  # fmt: skip
    return facts(pairs)


def checkpoints(record: Record) -> str:
    """Checkpoints and exports."""
    exported = {each.step for each in record.exports}
    rows = [
        (number(each.step), number(each.size_bytes), "yes" if each.on_disk else "removed", "yes" if each.latest else "",
         "yes" if each.step in exported else "")
        for each in record.checkpoints
    ]  # fmt: skip
    if not rows:
        return '<p class="none">No checkpoint was seen.</p>'
    hint = "The latest is the one that a new attempt resumes from."
    return table("Checkpoints", ("Step", "Bytes", "On disk", "Latest", "Exported"), rows, hint=hint)


def events(record: Record) -> str:
    """What was decided, and when."""
    if not record.events:
        return '<p class="none">No event was recorded.</p>'
    rows = [(moment(each.time), number(each.attempt), escape(each.kind), escape(each.text)) for each in record.events]
    return table("Events", ("Time (UTC)", "Attempt", "Kind", "What"), rows, texts=(2, 3))


def comparison(histories: Sequence[History]) -> str:
    """Several runs, a row each."""
    headers = ("Run", "Status", "Steps", "Baseline", "Best solve rate", "At step", "95 % interval", "Last solve rate", "Oracle bound",
               "Median s/step", "Attempts", "GPU hours", "Commit")  # fmt: skip
    wider = '<p class="hint narrow">The table is wider than this window: scroll it sideways.</p>'
    return wider + table("Comparison", headers, [_compared(each.record) for each in histories], kind="runs")


def _compared(record: Record) -> tuple[str, ...]:
    best, baseline = record.best, record.baseline
    last = record.evaluations[-1] if record.evaluations else None
    commit = f"<code>{escape(record.code.commit[:12])}</code>" + (" dirty" if record.code.dirty else "")
    return (
        escape(record.run_id), status(record.status), number(record.last_step), number(baseline.rate if baseline else None),
        number(best.rate if best else None), number(best.step if best else None),
        f"{number(best.low)} to {number(best.high)}" if best else "–", number(last.rate if last else None),
        number(last.oracle_bound if last else None, unknown=UNKNOWN), number(record.median_step_seconds, 2),
        number(len(record.attempts)), number(record.usage.gpu_hours), commit,
    )  # fmt: skip


def differences(histories: Sequence[History]) -> str:
    """Settings in which the runs differ; paths that follow from the run id are left out."""

    def shown(record: Record, key: str) -> str:
        value: Any = record.overrides.get(key, None)
        text = json.dumps(value, ensure_ascii=False) if key in record.overrides else "–"
        return text.replace(f"/runs/{record.run_id}/", "/runs/…/").replace(f'"{record.run_id}"', "…")

    keys = sorted({key for each in histories for key in each.record.overrides})
    rows = [(f"<code>{escape(key)}</code>", *(escape(shown(each.record, key)) for each in histories)) for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if not rows:
        return '<p class="none">The runs have the same settings.</p>'
    return table("Settings that differ", ("Setting", *(escape(each.record.run_id) for each in histories)), rows)
