"""Dashboards and alert rules: only metrics that exist, addresses that stay, files that are what the Python makes."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.series import SERIES
from stacks.dashboards import alerts, metrics
from stacks.dashboards.boards import BOARDS
from stacks.dashboards.documents import files
from stacks.dashboards.panel import FileSystemQuery, Query
from stacks.handlers.grafana_uids import ALERTS, CLOUDWATCH_UID, FOLDER_UID, PROMETHEUS_UID

# Bookmarks hold these; a new dashboard adds a line, no line changes.
UIDS = {
    "hyperpod-rl-training", "hyperpod-rl-ray-core", "hyperpod-rl-ray-data", "hyperpod-rl-ray-train", "hyperpod-rl-ray-serve",
    "hyperpod-rl-gpu-efa", "hyperpod-rl-file-system",
}  # fmt: skip
_METRIC = re.compile(r"(?<![\w$.\"])([A-Za-z_:][\w:]*)\s*(?=[{\[])")
_BARE = re.compile(
    r"\b(hyperpod_rl_\w+|ray_(?!io_|train_run|train_controller_state\b|train_worker_world)\w+|DCGM_\w+|node_\w+|kubelet_\w+)\b"
)
_LABELS = {"node_health_status"}


def named(expression: str) -> set[str]:
    """Metrics that a PromQL expression names: what stands before a selector or range, and bare names of the known families."""
    without = re.sub(r"\{[^}]*\}", "{}", re.sub(r'"[^"]*"', '""', expression))
    without = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", "", without)
    functions = {"vector", "time"}
    return (set(_METRIC.findall(without)) | set(_BARE.findall(without))) - functions - _LABELS


def expressions() -> Iterator[tuple[str, str]]:
    for board in BOARDS:
        for row in board.rows:
            for panel in row.panels:
                for query in panel.queries:
                    if isinstance(query, Query):
                        yield f"{board.uid}: {panel.title}", query.expression
        for variable in board.variables:
            if not variable.cloudwatch:
                yield f"{board.uid}: ${variable.name}", re.sub(r"label_values\((.*), \w+\)", r"\1", variable.query)
    for alert in alerts.ALERTS:
        yield alert.uid, alert.expression


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_is_in_the_reference(where: str, expression: str) -> None:
    found = named(expression)
    assert found, f"{where} names no metric: {expression}"
    assert not found - metrics.PROMETHEUS.keys(), f"{where}: {sorted(found - metrics.PROMETHEUS.keys())}"


def test_a_misspelt_metric_would_be_found() -> None:
    assert named('sum by (x) (rate(ray_serve_num_htp_requests{a="b"}[5m])) / on () hyperpod_rl_stp') == {
        "ray_serve_num_htp_requests", "hyperpod_rl_stp",
    }  # fmt: skip


def test_every_metric_of_the_reference_is_used_and_has_a_source() -> None:
    used = set().union(*(named(expression) for _, expression in expressions()))
    assert not {name for name in metrics.PROMETHEUS if name not in used} - {"autoscaler_cluster_resources"} - UNDRAWN
    assert all("https://" in source or source == metrics.OURS for source in metrics.PROMETHEUS.values())
    assert {series.name for series in SERIES} <= used, "a series that we publish and nobody draws"


UNDRAWN = {
    "ray_vllm_request_success_total", "ray_node_gpu_temperature_celsius", "ray_node_gpu_power_milliwatts", "node_cpu_seconds_total",
}  # fmt: skip


def test_rays_metrics_are_those_of_rays_own_dashboards() -> None:
    """The Ray that is installed carries its Grafana dashboards: a name that none of them knows is a guess."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    text = "".join(path.read_text() for path in folder.glob("*_panels.py"))
    rays = [name for name in metrics.PROMETHEUS if name.startswith(("ray_", "autoscaler_"))]
    assert len(rays) > 60
    unknown = [name for name in rays if not re.search(rf"\b{name.removesuffix('_bucket')}\b|\b{name}\b", text)]
    assert unknown == []


def test_every_expression_is_promql() -> None:
    promql = pytest.importorskip("promql_parser", reason="promql-parser reads PromQL and is not installed here")
    for where, expression in expressions():
        assert promql.parse(expression.replace("$__rate_interval", "5m")), where


def test_file_system_metrics_are_those_of_fsx() -> None:
    used = {query.metric for board in BOARDS for row in board.rows for panel in row.panels for query in panel.queries
            if isinstance(query, FileSystemQuery)}  # fmt: skip
    assert used == set(metrics.CLOUDWATCH)


def test_addresses_stay() -> None:
    assert {board.uid for board in BOARDS} == UIDS
    rules = [alert.uid for alert in alerts.ALERTS]
    assert len(set(rules)) == len(rules)
    assert all(len(uid) <= 40 for uid in (*UIDS, *rules)), "Grafana's limit"


def documents() -> dict[str, Any]:
    return {name: json.loads(text) for name, text in files().items()}


def test_built_files_are_complete_and_point_to_our_data_sources() -> None:
    found = documents()
    assert set(found) == {f"{uid}.json" for uid in UIDS} | {ALERTS}
    for name, document in found.items():
        if name == ALERTS:
            continue
        assert name == f"{document['uid']}.json"
        assert "id" not in document, "Grafana gives a dashboard's number"
        assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
        for panel in document["panels"]:
            if panel["type"] != "row":
                assert panel["targets"]
                assert {panel["datasource"]["uid"], *(t["datasource"]["uid"] for t in panel["targets"])} <= {PROMETHEUS_UID, CLOUDWATCH_UID}
                grid = panel["gridPos"]
                assert 0 <= grid["x"] <= grid["x"] + grid["w"] <= 24


def test_built_files_hold_what_the_boards_say() -> None:
    """Every expression of the Python is in the JSON, and no other."""
    found = documents()
    for board in BOARDS:
        wanted = [query.expression for row in board.rows for panel in row.panels for query in panel.queries if isinstance(query, Query)]
        there = [t["expr"] for panel in found[f"{board.uid}.json"]["panels"] for t in panel.get("targets", ()) if "expr" in t]
        assert there == wanted
        assert found[f"{board.uid}.json"]["title"] == board.title
    assert found[ALERTS] == json.loads(json.dumps(alerts.documents()))


def test_the_same_bytes_every_time() -> None:
    assert files() == files()


def test_rules_ask_a_threshold_of_the_newest_value_and_are_quiet_without_data() -> None:
    for rule in documents()[ALERTS]:
        assert [query["refId"] for query in rule["data"]] == ["A", "B", "C"]
        assert rule["condition"] == "C"
        assert (rule["noDataState"], rule["execErrState"], rule["folderUID"]) == ("OK", "Error", FOLDER_UID)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
