"""Grafana's JSON of a dashboard, by Grafana Labs' own library."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from stacks.dashboards.panel import Board, FileSystemQuery, Panel, Variable
from stacks.handlers.grafana_uids import CLOUDWATCH_UID, PROMETHEUS_UID

LIBRARY = "grafana_foundation_sdk"


def _builders(name: str) -> Any:
    return import_module(f"{LIBRARY}.builders.{name}")


def _models(name: str) -> Any:
    return import_module(f"{LIBRARY}.models.{name}")


def document(board: Board) -> dict[str, Any]:
    """The dashboard as `POST /api/dashboards/db` takes it. Raises ModuleNotFoundError without the library."""
    dashboards, models = _builders("dashboard"), _models("dashboard")
    made = (
        dashboards.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(list(board.tags))
        .readonly()
        .refresh("1m")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
    )
    for variable in board.variables:
        made = made.with_variable(_variable(variable))
    for row in board.rows:
        made = made.with_row(dashboards.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(_panel(panel))
    encoder = import_module(f"{LIBRARY}.cog.encoder").JSONEncoder(sort_keys=True)
    found: dict[str, Any] = json.loads(encoder.encode(made.build()))
    for number, panel in enumerate(found["panels"], start=1):
        panel["id"] = number  # links to a panel hold it; without one Grafana would choose at each load
    return found


def _source(kind: str, uid: str) -> Any:
    return _models("dashboard").DataSourceRef(type_val=kind, uid=uid)


def _variable(variable: Variable) -> Any:
    models = _models("dashboard")
    source = _source("cloudwatch", CLOUDWATCH_UID) if variable.cloudwatch else _source("prometheus", PROMETHEUS_UID)
    made = (
        _builders("dashboard")
        .QueryVariable(variable.name)
        .label(variable.label)
        .query(variable.query)
        .datasource(source)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(variable.multiple)
    )
    if variable.multiple:
        made = made.include_all(True).all_value(".*").current(models.VariableOption(selected=True, text="All", value="$__all"))
    return made


def _panel(panel: Panel) -> Any:
    cloudwatch = any(isinstance(query, FileSystemQuery) for query in panel.queries)
    source = _source("cloudwatch", CLOUDWATCH_UID) if cloudwatch else _source("prometheus", PROMETHEUS_UID)
    made = _builders("stat" if panel.kind == "stat" else "timeseries").Panel()
    made = made.title(panel.title).unit(panel.unit).datasource(source).span(panel.width).height(4 if panel.kind == "stat" else 8)
    if panel.description:
        made = made.description(panel.description)
    if panel.minimum is not None:
        made = made.min(panel.minimum)
    if panel.maximum is not None:
        made = made.max(panel.maximum)
    if panel.red_above is not None or panel.red_below is not None:
        made = made.thresholds(_thresholds(panel))
    if panel.kind == "timeseries":
        made = made.fill_opacity(20 if panel.stacked else 0).span_nulls(False)
        if panel.stacked:
            common, kinds = _builders("common"), _models("common")
            made = made.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
    for index, query in enumerate(panel.queries):
        made = made.with_target(_target(query, chr(ord("A") + index), source))
    return made


def _thresholds(panel: Panel) -> Any:
    models = _models("dashboard")
    steps = [(None, "green"), (panel.red_above, "red")]
    if panel.red_above is None:
        steps = [(None, "red"), (panel.red_below, "green")]
    config = _builders("dashboard").ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return config.steps([models.Threshold(value=value, color=color) for value, color in steps])


def _target(query: Any, ref: str, source: Any) -> Any:
    if isinstance(query, FileSystemQuery):
        return (
            _builders("cloudwatch")
            .CloudWatchMetricsQuery()
            .ref_id(ref)
            .datasource(source)
            .namespace("AWS/FSx")
            .metric_name(query.metric)
            .statistic(query.statistic)
            .dimensions({"FileSystemId": ["$file_system"]})
            .region("default")
            .match_exact(True)
            .query_mode(_models("cloudwatch").CloudWatchQueryMode.METRICS)
        )
    return _builders("prometheus").Dataquery().ref_id(ref).datasource(source).expr(query.expression).legend_format(query.legend or "__auto")
