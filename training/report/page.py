"""The page as a whole. The same runs give the same bytes: it holds no time but the record's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape

from training.keeping import History
from training.record import Evaluation, Record
from training.report import charts, gates, tables
from training.report.charts import Chart, Curve, Point
from training.report.style import CSS
from training.report.tables import number

# No script, no font, no picture from anywhere: a browser refuses what the page does not carry itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(histories: Sequence[History]) -> str:
    """One HTML document about one or several runs."""
    names = ", ".join(each.record.run_id for each in histories)
    body = "".join(_one(histories[0]) if len(histories) == 1 else _several(histories))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(names)}: training report</title><style>{CSS}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _one(history: History) -> Iterator[str]:
    record = history.record
    yield f"<header><h1>Run {escape(record.run_id)}</h1><p class='lead'>{_sentence(history)}</p></header>"
    yield _tiles(history)
    yield f"<h2>Curves</h2>{_charts([history])}"
    yield from _parts(history, "h2")


def _several(histories: Sequence[History]) -> Iterator[str]:
    yield f"<header><h1>{len(histories)} runs compared</h1></header>"
    yield f"<h2>Side by side</h2>{tables.comparison(histories)}"
    yield f"<h2>Curves</h2>{_charts(histories)}"
    yield f"<h2>What differs</h2>{tables.differences(histories)}"
    for each in histories:
        yield f"<details><summary>Run {escape(each.record.run_id)}</summary><p class='lead'>{_sentence(each)}</p>"
        yield from _parts(each, "h3")
        yield "</details>"


def _parts(history: History, h: str) -> Iterator[str]:
    record = history.record
    yield f"<{h}>Attempts</{h}>{tables.attempts(record)}"
    yield f"<{h}>Evaluations</{h}>"
    yield tables.evaluations(record) if record.evaluations else '<p class="none">No evaluation yet.</p>'
    yield f"<{h}>Mazes</{h}>{tables.mazes(record)}"
    if record.verdicts:
        yield f"<{h}>Gate</{h}>{gates.verdicts(record)}"
    if record.results:
        yield f"<{h}>Over an endpoint</{h}>{gates.results(record)}"
    yield f"<{h}>Record</{h}>{tables.identity(record)}"
    yield f"<details><summary>Settings ({len(record.overrides)})</summary>"
    yield tables.facts((key, f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>") for key, value in record.overrides.items())
    yield "</details><details><summary>Versions</summary>"
    yield tables.facts((key, f"<code>{escape(value)}</code>") for key, value in record.versions.items())
    yield f"</details><details><summary>Checkpoints ({len(record.checkpoints)})</summary>{tables.checkpoints(record)}</details>"
    yield f"<details><summary>Events ({len(record.events)})</summary>{tables.events(record)}</details>"
    yield f"<details><summary>Every step ({len(history.series)})</summary>{tables.steps(history.series)}</details>"
    text = escape(record.text())
    yield f"<details><summary>record.json</summary><pre class='card' data-run='{escape(record.run_id)}'>{text}</pre></details>"


def _sentence(history: History) -> str:
    record = history.record
    text = f"{tables.status(record.status)} on environment {escape(record.environment)}, {number(len(record.attempts))} attempt"
    text += ("" if len(record.attempts) == 1 else "s") + f". From: {escape(history.source)}."
    if record.missing_steps:
        missing = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in record.missing_steps)
        text += f" <strong class='bad'>No log tells of step {missing}.</strong>"
    return text


def _tiles(history: History) -> str:
    record = history.record
    last = record.evaluations[-1] if record.evaluations else None
    trained = [row for row in history.series if row.reward is not None]
    reward = f"reward {number(trained[-1].reward if trained else None)}"
    incomplete = "" if record.usage.complete else "<small>at least: the end of an attempt was not seen</small>"
    tiles = [
        ("Best solve rate", _rate(record.best)),
        ("Last solve rate", _rate(last)),
        ("Baseline, before training", _rate(record.baseline)),
        ("Oracle bound", _bound(record)),
        ("Last step", f"{number(record.last_step)}<small>{reward}, {number(record.median_step_seconds, 2)} s a step (median)</small>"),
        ("GPU hours", f"{number(record.usage.gpu_hours)}{incomplete}<small>{_cost(record)}</small>"),
    ]
    return f'<dl class="tiles">{"".join(f"<div class=card><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)}</dl>'


def _rate(each: Evaluation | None) -> str:
    if each is None:
        return "unknown"
    about = "" if each.source == "eval dump" else "about "
    solved = number(int(each.solved) if not about else each.solved, 1)
    of = f", {number(100 * each.rate / each.oracle_bound, 0)} % of the bound" if each.oracle_bound else ""
    return (
        f"{number(each.rate)}<small>[{number(each.low)}, {number(each.high)}], {about}{solved} of {number(each.mazes)}, "
        f"step {number(each.step)}{of}</small>"
    )


def _bound(record: Record) -> str:
    told = next((each for each in reversed(record.evaluations) if each.oracle_bound is not None), None)
    return f"{number(told.oracle_bound)}<small>{escape(told.bound_source or '')}</small>" if told else "unknown"


def _cost(record: Record) -> str:
    usage = record.usage
    if usage.cost_usd == 0:
        return escape(usage.cost_note)  # why it is nothing
    return "cost " + (f"{number(usage.cost_usd, 2)} USD" if usage.cost_usd is not None else escape(usage.cost_note))


def _charts(histories: Sequence[History]) -> str:
    solve = Chart("solve", "Solve rate", "share of mazes", [_solve(each) for each in histories], limits=(0.0, 1.0))
    reward = Chart("reward", "Reward", "mean of a step", [_curve(each, "reward") for each in histories])
    time = Chart("time", "Step time", "seconds", [_curve(each, "step_seconds") for each in histories], from_zero=True)
    figures = (
        _figure(solve, "Share of held-out mazes really solved, with Wilson’s 95 % interval."),
        _figure(reward, "Mean reward of the step’s rollouts."),
        _figure(time, "Time of one training step, without evaluation."),
    )
    return f'<div class="charts">{"".join(figures)}</div>{_legend(histories, solve)}'


def _figure(chart: Chart, said: str) -> str:
    kind = "card many" if len(chart.curves) > 1 else "card"
    title = f"<h3>{chart.title} <span>{chart.unit}</span></h3>"
    return f'<figure class="{kind}">{title}{charts.draw(chart)}<figcaption>{said}</figcaption></figure>'


def _legend(histories: Sequence[History], solve: Chart) -> str:
    items = []
    for index, curve in enumerate(solve.curves):
        if len(histories) > 1:
            items.append(f"{charts.key(index)}{escape(curve.label)}")
    if any(curve.bound is not None for curve in solve.curves):
        items.append(f"{charts.key(0, kind='bound')}oracle bound")
    if any(curve.baseline is not None for curve in solve.curves):
        items.append(f"{charts.key(0, kind='baseline')}baseline")
    if any(len(each.record.attempts) > 1 for each in histories):
        items.append("a2, a3, …: a later attempt goes on here" if len(histories) == 1 else "▲ a later attempt goes on here")
    return f'<ul class="legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>' if items else ""


def _solve(history: History) -> Curve:
    record = history.record
    points = [Point(each.step, each.rate, each.low, each.high) for each in record.evaluations]
    bound = next((each.oracle_bound for each in reversed(record.evaluations) if each.oracle_bound is not None), None)
    return Curve(record.run_id, points, _later(record), bound, record.baseline.rate if record.baseline else None)


def _curve(history: History, name: str) -> Curve:
    points = [Point(row.step, value) for row in history.series if (value := getattr(row, name)) is not None]
    return Curve(history.record.run_id, points, _later(history.record))


def _later(record: Record) -> list[tuple[int, int]]:
    return [(each.first_step, each.number) for each in record.attempts[1:] if each.first_step is not None]
