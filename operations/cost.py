"""What an environment costs for each hour by being there: nodes, control plane, file system, network, workspaces.

Prices come from the Price List API where it answers, else from the dated table in config/prices.py; each line says which. What has
no price is a line without one, and then every sum is `at least`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from config import prices
from config.environment import Environment
from config.prices import Price
from operations.footprint import Footprint, Nodes

HOURS_PER_DAY = 24
# The Price List answers in a few regions only; prices of all regions are in each.
# https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-list-query-api.html
API_REGION = "us-east-1"
PLAN = Price(0.0, "paid in advance by its training plan", prices.TABLE_DATE, "inferred")


@dataclass(frozen=True)
class PriceList:
    """Prices that the API gave, by instance type, and EKS; what is missing is taken from the table."""

    instances: Mapping[str, Price] = field(default_factory=dict)
    eks: Price | None = None
    # Why the table stands in for the API, as a sentence; empty where the API answered.
    missing: str = ""

    def instance(self, instance_type: str) -> Price | None:
        """Price of one node for an hour, or None if nobody knows it."""
        return self.instances.get(instance_type) or prices.INSTANCES.get(instance_type)


@dataclass(frozen=True)
class Line:
    """One resource. `usd_per_hour` is of all of them together, None where there is no price; `node`: gone at 0 nodes."""

    resource: str
    quantity: str
    usd_per_hour: float | None
    price: Price | None
    node: bool = False

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "resource": self.resource, "quantity": self.quantity, "usd_per_hour": _rounded(self.usd_per_hour),
            "usd_per_day": _rounded(None if self.usd_per_hour is None else self.usd_per_hour * HOURS_PER_DAY),
            "at_zero_nodes": not self.node, "source": self.price.source if self.price else None,
            "date": self.price.date if self.price else None, "certainty": self.price.certainty if self.price else "unknown",
        }  # fmt: skip


@dataclass(frozen=True)
class Bill:
    """All lines of one environment."""

    lines: tuple[Line, ...]

    @property
    def hourly(self) -> float:
        """USD an hour with all nodes, training or idle: HyperPod charges nodes, not jobs."""
        return sum(line.usd_per_hour or 0.0 for line in self.lines)

    @property
    def at_zero_nodes(self) -> float:
        """USD an hour with every group at `count: 0`."""
        return sum(line.usd_per_hour or 0.0 for line in self.lines if not line.node)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Resources whose price nobody knows; the sums leave them out."""
        return tuple(line.resource for line in self.lines if line.usd_per_hour is None)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Resources whose price was not read from a public document."""
        return tuple(line.resource for line in self.lines if line.price is not None and line.price.certainty == "unverified")


def bill(footprint: Footprint, known: PriceList = PriceList()) -> Bill:
    """Put a price to everything that a footprint counts; what is not there has no line."""
    lines = [line for nodes in footprint.nodes for line in _nodes(nodes, known)]
    lines += _times("EKS control plane", footprint.eks_clusters, known.eks or prices.EKS)
    for capacity, throughput in footprint.file_systems:
        price = prices.FILE_SYSTEM_GIB.get(throughput)
        lines.append(
            Line(
                "FSx for Lustre",
                f"{capacity} GiB at {throughput} MB/s/TiB",
                None if price is None else capacity * price.usd_per_hour,
                price,
            )
        )
    lines += _times("NAT gateway", footprint.nat_gateways, prices.NAT_GATEWAY)
    lines += _times("public IPv4 address", footprint.public_addresses, prices.PUBLIC_ADDRESS)
    lines += _times("interface endpoints", footprint.interface_endpoint_zones, prices.INTERFACE_ENDPOINT, "endpoint x AZ")
    lines += _times("Managed Grafana", footprint.grafana_workspaces, prices.GRAFANA_EDITOR, "editor")
    lines += _times("KMS keys", footprint.keys, prices.KMS_KEY)
    lines += _times("CloudWatch alarms", footprint.alarms, prices.ALARM)
    return Bill(tuple(lines))


def _nodes(nodes: Nodes, known: PriceList) -> Iterable[Line]:
    price = PLAN if nodes.training_plan else known.instance(nodes.instance_type)
    paid = " (spot; the on-demand price is the most it can be)" if nodes.spot else ""
    hourly = None if price is None and nodes.count else nodes.count * (price.usd_per_hour if price else 0.0)
    yield Line(f"nodes {nodes.group}", f"{nodes.count} x {nodes.instance_type}{paid}", hourly, price, node=True)
    if nodes.volume_gib:
        volume = prices.NODE_VOLUME_GIB
        usd = nodes.count * nodes.volume_gib * volume.usd_per_hour
        yield Line(f"EBS of {nodes.group}", f"{nodes.count} x {nodes.volume_gib} GiB", usd, volume, node=True)


def _times(resource: str, count: int, price: Price, unit: str = "") -> list[Line]:
    return [Line(resource, f"{count}{' ' + unit if unit else ''}", count * price.usd_per_hour, price)] if count else []


def price_list(env: Environment, client: Any, *, today: datetime | None = None) -> PriceList:
    """Ask the Price List API for the nodes' types and EKS; what it does not know is left out.

    `client` is a boto3 client of `pricing`. Raises whatever boto3 raises.
    """
    date = f"{(today or datetime.now(UTC)):%Y-%m-%d}"
    found = {}
    for instance_type in sorted({group.instance_type for group in env.instance_groups}):
        products = _products(client, "AmazonSageMaker", {"instanceName": instance_type, "regionCode": env.region})
        usd = _of_component(products)
        if usd is not None:
            found[instance_type] = Price(usd, f"Price List API, {env.region}", date, "seen")
    eks = _of_component(_products(client, "AmazonEKS", {"operation": "CreateOperation", "regionCode": env.region}))
    return PriceList(found, None if eks is None else Price(eks, f"Price List API, {env.region}", date, "seen"))


def _products(client: Any, service: str, attributes: Mapping[str, str]) -> list[tuple[str, float]]:
    """(component, USD an hour) of every on-demand price that the attributes match."""
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in attributes.items()]
    found, more = [], dict[str, str]()
    while True:
        answer = client.get_products(ServiceCode=service, Filters=filters, FormatVersion="aws_v1", **more)
        found += [price for text in answer.get("PriceList", ()) for price in _hourly(json.loads(text) if isinstance(text, str) else text)]
        if not answer.get("NextToken"):
            return found
        more = {"NextToken": answer["NextToken"]}


def _hourly(product: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    component = str(product.get("product", {}).get("attributes", {}).get("component", ""))
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = float(dimension.get("pricePerUnit", {}).get("USD", "nan"))
            if usd > 0 and str(dimension.get("unit", "")).lower() in ("hrs", "hours"):
                yield component, usd


def _of_component(products: Sequence[tuple[str, float]]) -> float | None:
    """HyperPod's own price where it is named; else the one that all components share; else None: nobody should guess among several."""
    own = {usd for component, usd in products if component.lower() in ("cluster", "hyperpod", "hyperpod-cluster")}
    shared = own or {usd for _, usd in products}
    return shared.pop() if len(shared) == 1 else None


def run_hours(attempts: Iterable[tuple[str | None, str | None]], *, now: datetime | None = None) -> float | None:
    """Hours of all attempts together, from (start, end) in ISO 8601; one without an end still runs. None if no start is known."""
    moment = now or datetime.now(UTC)
    spans = [
        (datetime.fromisoformat(ended) if ended else moment) - datetime.fromisoformat(started) for started, ended in attempts if started
    ]
    return sum(span.total_seconds() for span in spans) / 3600 if spans else None


def document(bill: Bill, *, run_hours: float | None = None) -> dict[str, Any]:
    """A bill for programs. USD; `run_hours` adds what these hours cost."""

    def sums(hourly: float) -> dict[str, Any]:
        made = {"usd_per_hour": _rounded(hourly), "usd_per_day": _rounded(hourly * HOURS_PER_DAY)}
        return made | ({"usd_per_run": _rounded(hourly * run_hours)} if run_hours is not None else {})

    return {
        "currency": "USD", "lines": [line.document() for line in bill.lines], "total": sums(bill.hourly),
        "nodes": sums(bill.hourly - bill.at_zero_nodes), "at_zero_nodes": sums(bill.at_zero_nodes), "run_hours": run_hours,
        "unpriced": list(bill.unpriced), "unverified": list(bill.unverified), "by_use": list(prices.BY_USE),
        "table": {"date": prices.TABLE_DATE, "region": prices.TABLE_REGION},
    }  # fmt: skip


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)
