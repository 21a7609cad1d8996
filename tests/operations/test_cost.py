"""What an environment costs: by the table, by the Price List, with nodes and without."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from config import prices
from config.instances import INSTANCES
from config.load import ENVIRONMENTS, load, parse
from operations import cost, footprint
from operations.footprint import Footprint, Nodes


def test_every_type_of_the_instance_table_has_a_price_or_is_said_to_have_none() -> None:
    unpriced = {name for name in INSTANCES if name not in prices.INSTANCES}
    assert {name.split(".")[1] for name in unpriced} == {"g7e", "p4d", "p5", "p5en"}
    assert all(price.date and price.source and price.usd_per_hour > 0 for price in prices.INSTANCES.values())
    assert not set(prices.INSTANCES) - set(INSTANCES)


def test_sums_with_nodes_and_without() -> None:
    bill = cost.bill(Footprint(nodes=(Nodes("w", "ml.g7e.12xlarge", 3, 500),), eks_clusters=1, file_systems=((4800, 125),), nat_gateways=1))
    disks = 3 * 500 * 0.08 / 730
    standing = 0.10 + 4800 * 0.145 / 730 + 0.045
    assert bill.hourly == pytest.approx(3 * 10.3576 + disks + standing)
    assert bill.at_zero_nodes == pytest.approx(standing)
    assert not bill.unpriced


def test_at_count_zero_only_what_stands_there_is_paid() -> None:
    text = (ENVIRONMENTS / "reference.yaml").read_text()
    for count in ("count: 3", "count: 2", "count: 1"):
        text = text.replace(count, "count: 0")
    empty, full = (cost.bill(footprint.of_environment(env)) for env in (parse(text), load("reference")))
    assert empty.hourly == pytest.approx(empty.at_zero_nodes) == pytest.approx(full.at_zero_nodes)


def test_a_type_without_a_price_is_named_and_left_out() -> None:
    bill = cost.bill(Footprint(nodes=(Nodes("w", "ml.p5.48xlarge", 1),), eks_clusters=1))
    assert bill.unpriced == ("nodes w",)
    assert bill.hourly == pytest.approx(0.10)
    assert cost.document(bill)["lines"][0]["certainty"] == "unknown"


def test_a_training_plan_is_paid_already_and_spot_costs_at_most_the_full_price() -> None:
    plan, spot = cost.bill(
        Footprint(nodes=(Nodes("a", "ml.m5.xlarge", 2, training_plan=True), Nodes("b", "ml.m5.xlarge", 1, spot=True)))
    ).lines
    assert plan.usd_per_hour == 0
    assert spot.usd_per_hour == prices.INSTANCES["ml.m5.xlarge"].usd_per_hour
    assert "spot" in spot.quantity


class PriceList:
    """As `pricing:GetProducts` answers, one product a page, for what the table here holds."""

    def __init__(self, *products: tuple[str, str, float, str]) -> None:
        self.products = products

    def get_products(self, *, ServiceCode: str, Filters: list[dict[str, str]], FormatVersion: str, NextToken: str = "0") -> dict[str, Any]:
        wanted = {each["Field"]: each["Value"] for each in Filters}
        found = [
            json.dumps(
                {
                    "product": {"attributes": {"instanceName": name, "component": component}},
                    "terms": {"OnDemand": {"t": {"priceDimensions": {"d": {"unit": unit, "pricePerUnit": {"USD": str(usd)}}}}}},
                }
            )
            for name, component, usd, unit in self.products
            if ServiceCode == "AmazonSageMaker" and wanted.get("instanceName") == name
        ]
        page = int(NextToken)
        return {"PriceList": found[page : page + 1], **({"NextToken": str(page + 1)} if page + 1 < len(found) else {})}


@pytest.mark.parametrize(
    ("products", "usd"),
    [
        ([("Studio", 12.0), ("Cluster", 11.0)], 11.0),
        ([("Training", 12.0), ("Studio", 12.0)], 12.0),
        ([("Training", 12.0), ("Studio", 13.0)], None),
        ([], None),
        ([("Cluster", 0.0)], None),
    ],
)
def test_hyperpods_own_price_else_the_one_that_all_share_else_the_table(products: list[tuple[str, float]], usd: float | None) -> None:
    client = PriceList(*(("ml.g7e.12xlarge", component, price, "Hrs") for component, price in products))
    known = cost.price_list(load("reference"), client, today=datetime(2026, 12, 1, tzinfo=UTC))
    price = known.instance("ml.g7e.12xlarge")
    assert price is not None
    assert price.usd_per_hour == (usd or 10.3576)
    assert price.date == ("2026-12-01" if usd else "2026-09-01")


def test_a_price_by_the_month_is_not_taken_for_one_by_the_hour() -> None:
    known = cost.price_list(load("reference"), PriceList(("ml.g7e.12xlarge", "Cluster", 900.0, "GB-Mo")))
    assert not known.instances


def test_hours_of_a_run_are_those_of_its_attempts() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    attempts = [("2026-01-01T08:00:00+00:00", "2026-01-01T09:30:00+00:00"), ("2026-01-01T11:00:00+00:00", None), (None, None)]
    assert cost.run_hours(attempts, now=now) == pytest.approx(2.5)
    assert cost.run_hours([(None, None)], now=now) is None


def test_the_command_says_where_each_price_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "--offline", "--run-hours", "10"]) == 0
    out = capsys.readouterr().out
    assert "2026-09-01 inferred" in out
    assert "unverified" in out
    assert "at 0 nodes" in out
    assert "a run of 10.00 hours" in out


def test_the_command_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "--offline", "--json", "--run-hours", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"]["usd_per_run"] == pytest.approx(2 * document["total"]["usd_per_hour"], rel=1e-3)
    assert document["total"]["usd_per_hour"] == pytest.approx(sum(line["usd_per_hour"] for line in document["lines"]), rel=1e-3)
    assert document["price_list"] == "not asked"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--run-hours", "-1"], "--run-hours"),
        (["--run-hours", "1", "--run", "r"], "--run-hours"),
        (["--run", "a b"], "run id"),
    ],
)
def test_bad_words_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "--offline", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_credentials_the_table_stands_in(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert run(["cost"]) == 0
    assert "there are no credentials" in capsys.readouterr().out


@pytest.mark.parametrize(("started", "code"), [("2026-01-01T08:00:00+00:00", 0), (None, 1)])
def test_a_run_costs_the_hours_of_its_attempts(
    started: str | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from training.record import AttemptRecord, Record, write

    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    attempt = AttemptRecord(number=1, submission_id="r-a1", status="SUCCEEDED", started=started, ended="2026-01-01T10:00:00+00:00")
    write(tmp_path / "runs" / "r", Record(run_id="r", environment="reference", attempts=(attempt,)))
    assert run(["cost", "--offline", "--run", "r", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document.get("run_hours") == (2.0 if started else None)
