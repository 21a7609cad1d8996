"""`hyperpod-rl cost`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.session import Session, common, table

if TYPE_CHECKING:
    from config.environment import Environment
    from config.prices import Price
    from operations.cost import Bill, PriceList


@click.command(
    epilog="""\b
Example:
  hyperpod-rl cost
  hyperpod-rl --env production cost --run-hours 12
  hyperpod-rl cost --run maze-grpo-1
  hyperpod-rl cost --offline --json | jq .total.usd_per_hour"""
)
@click.option("--run-hours", type=click.FloatRange(min=0, max=24 * 365), metavar="HOURS", help="Also what a run of this length costs.")
@click.option("--run", "run_id", metavar="RUN", help="Also what this run has cost: the hours of its attempts.")
@click.option("--offline", is_flag=True, help="Ask no price list and no Ray cluster; the table in config/prices.py alone.")
@common
def cost(session: Session, run_hours: float | None, run_id: str | None, offline: bool) -> None:
    """Say what an environment costs by the hour, the day and the run.

    Everything that costs by being there, by resource: with its nodes, whether they train or idle, and at 0 nodes. Prices come from
    AWS's Price List where it answers, else from a dated table; what no public document shows is marked.
    """
    from config.names import check_run_id
    from config.problems import Problem, Refused
    from operations import cost as costs
    from operations import footprint

    if run_id is not None:
        check_run_id(run_id)
        if run_hours is not None:
            raise Refused(Problem("--run-hours", str(run_hours), "it does not go with --run, whose hours are known", "leave one out"))
    env = session.environment()
    if run_id is not None:
        run_hours = _hours(session, env, run_id, offline=offline)
    known = costs.PriceList(missing="not asked") if offline else _price_list(env)
    bill = costs.bill(footprint.of_environment(env), known)
    document = {"environment": env.name, "price_list": known.missing or "answered", **costs.document(bill, run_hours=run_hours)}
    session.result(document, *_lines(env, bill, known, run_hours))


def _price_list(env: Environment) -> PriceList:
    from config.problems import Refused, Unreachable
    from operations import cost as costs
    from training import deployed

    try:
        aws = deployed.session(env)
        with deployed.reaching("the Price List"):
            if aws.get_credentials() is None:
                return costs.PriceList(missing="there are no credentials to ask it with")
            return costs.price_list(env, _client(aws))
    except Refused as error:
        return costs.PriceList(missing="; ".join(problem.rule for problem in error.problems))
    except Unreachable as error:
        return costs.PriceList(missing=str(error).rstrip("."))


def _client(aws: object) -> object:
    from botocore.config import Config

    from operations.cost import API_REGION

    limits = Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1})
    return aws.client("pricing", region_name=API_REGION, config=limits)  # type: ignore[attr-defined]


def _hours(session: Session, env: Environment, run_id: str, *, offline: bool) -> float:
    """Hours from each attempt's start to its end. Raises Failed if the record has no times."""
    from cli.report import gather
    from config.problems import Failed
    from operations import cost as costs

    (history,) = gather(session, env, (run_id,), offline=offline, address=None)
    hours = costs.run_hours([(attempt.started, attempt.ended) for attempt in history.record.attempts])
    if hours is None:
        raise Failed(f"run {run_id} has no attempt whose start is known, so nobody can say how long it ran; give --run-hours")
    return hours


def _date(price: Price | None) -> str:
    return "" if price is None else price.date + ("" if price.certainty == "seen" else f" {price.certainty}")


def _lines(env: Environment, bill: Bill, known: PriceList, run_hours: float | None) -> list[str]:
    from config import prices

    def money(usd: float | None) -> list[str]:
        if usd is None:
            return ["no price", "", *([""] if run_hours is not None else [])]
        return [f"{usd:.3f}", f"{usd * 24:.2f}", *([f"{usd * run_hours:.2f}"] if run_hours is not None else [])]

    least = "at least " if bill.unpriced else ""
    rows = [[line.resource, line.quantity, *money(line.usd_per_hour), _date(line.price)] for line in bill.lines]
    rows += [
        [f"{least}all, training or idle", "", *money(bill.hourly), ""],
        ["of it the nodes", "", *money(bill.hourly - bill.at_zero_nodes), ""],
        [f"{least}at 0 nodes", "", *money(bill.at_zero_nodes), ""],
    ]
    headers = ["resource", "quantity", "USD/h", "USD/day", *(["USD/run"] if run_hours is not None else []), "price"]
    made = table(rows, headers)
    if run_hours is not None:
        made.append(f"a run of {run_hours:.2f} hours")
    if env.local:
        made.append("this environment is the local cloud's and costs nothing: these are the prices of its like in AWS")
    made.append(
        f"Price List API: {known.missing or 'answered'}; the rest is the table of {prices.TABLE_DATE} for {prices.TABLE_REGION}"
        + ("" if env.region == prices.TABLE_REGION else f", which is not {env.region}: take it as an estimate")
    )
    if bill.unpriced:
        made.append(f"no price is known of: {', '.join(bill.unpriced)}")
    sources = {line.price.source: line.resource for line in reversed(bill.lines) if line.price is not None}
    made += ["sources:", *(f"  {resource}: {source}" for source, resource in reversed(sources.items()))]
    return [*made, "by use, in no sum:", *(f"  {what}" for what in prices.BY_USE)]
