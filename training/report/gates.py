"""What came after training: verdicts of the gate, and evaluations over an endpoint."""

from __future__ import annotations

from html import escape

from training.record import Record
from training.report.tables import UNKNOWN, moment, number, table
from training.results import Result
from training.verdicts import Measured, Verdict


def verdicts(record: Record) -> str:
    """Every verdict: what was measured, and each rule with its numbers."""
    return "".join(_verdict(each) for each in record.verdicts)


def _verdict(each: Verdict) -> str:
    word = '<span class="good">passed</span>' if each.passed else '<span class="bad">did not pass</span>'
    chosen = "the best export" if each.selected == "best" else "chosen by hand"
    against = f", current release {escape(each.current_release)}" if each.current_release else ""
    title = f"<p><strong>Step {number(each.step)} {word}</strong> {moment(each.at)} ({chosen}, {escape(each.trainer)}{against})</p>"
    headers = ("Who", "Mazes", "Solve rate", "95 % interval", "Solved", "Of bound", "Format", "SkyRL’s pass_at_1")
    measured = table(f"Step {each.step}: measured", headers, [_measured(one) for one in each.measured])
    rules = [
        (escape(rule.name), '<span class="good">yes</span>' if rule.passed else '<span class="bad">no</span>', escape(rule.said))
        for rule in each.rules
    ]  # fmt: skip
    return title + measured + table(f"Step {each.step}: rules", ("Rule", "Holds", "Numbers"), rules, texts=(2,))


def _measured(one: Measured) -> tuple[str, ...]:
    bound = number(one.of_bound) if one.of_bound is not None else UNKNOWN
    return (
        escape(one.who), escape(one.maze_set), number(one.rate), f"{number(one.low)} to {number(one.high)}",
        f"{number(one.solved)} of {number(one.mazes)}", bound, number(one.format_rate), number(one.skyrl_pass_at_1),
    )  # fmt: skip


def results(record: Record) -> str:
    """Evaluations over an endpoint, with latency in seconds an answer."""
    headers = ("Step", "Model", "Mazes", "Solve rate", "95 % interval", "Solved", "Of bound", "Requests", "p50", "p90", "p99", "Endpoint")
    hint = "Played by hyperpod-rl evaluate; p50, p90 and p99 are seconds an answer took."
    return table("Evaluations over an endpoint", headers, [_result(each) for each in record.results], hint=hint)


def _result(each: Result) -> tuple[str, ...]:
    low, high = each.interval
    bound = number(each.rate / each.oracle_bound) if each.oracle_bound else UNKNOWN
    return (
        number(each.step), escape(each.model), escape(each.maze_set), number(each.rate), f"{number(low)} to {number(high)}",
        f"{number(each.solved)} of {number(len(each.mazes))}", bound, number(each.latency.requests), number(each.latency.p50),
        number(each.latency.p90), number(each.latency.p99), escape(each.endpoint),
    )  # fmt: skip
