"""What a dashboard is, before the library makes Grafana's JSON of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Query:
    """PromQL and the legend of its lines."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class FileSystemQuery:
    """One CloudWatch metric of the file system (namespace AWS/FSx)."""

    metric: str
    statistic: Literal["Sum", "Average", "Minimum", "Maximum"] = "Sum"


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's; `width` of 24 columns; `red_above` and `red_below` colour the value."""

    title: str
    queries: tuple[Query | FileSystemQuery, ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    description: str = ""
    width: int = 8
    minimum: float | None = 0
    maximum: float | None = None
    stacked: bool = False
    red_above: float | None = None
    red_below: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A filter above the dashboard: the values of a Prometheus label, or the file systems that CloudWatch knows."""

    name: str
    label: str
    query: str
    cloudwatch: bool = False
    multiple: bool = True


@dataclass(frozen=True)
class Board:
    """One dashboard. Its uid is its address: links and bookmarks hold it, so it never changes."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    tags: tuple[str, ...] = field(default=("hyperpod-rl",))


def of_label(name: str, label: str, metric: str, *, within: str = "", multiple: bool = True) -> Variable:
    """A filter over the values that a label has on a metric."""
    return Variable(name, label, f"label_values({metric}{{{within}}}, {name})" if within else f"label_values({metric}, {name})",
                    multiple=multiple)  # fmt: skip
