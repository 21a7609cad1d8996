"""Grafana's alert rules, as `POST /api/v1/provisioning/alert-rules` takes them: each fires where its PromQL expression has a value.

What CloudWatch knows (a full file system, cost) is alarmed there (stacks/alarms.py), so that it works without Grafana.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from config import series
from stacks.handlers.grafana_uids import FOLDER_UID, PROMETHEUS_UID

GROUP = "hyperpod-rl"
# A run stands still when it has made no step for so many times the median time of its steps; Prometheus looks back by whole windows.
STALLED_STEPS, STALLED_WINDOWS_SECONDS = 5, (900, 3600, 14400)
# A checkpoint older than so many steps' time (the reference environment writes one every 10 to 20 steps).
CHECKPOINT_STEPS, CHECKPOINT_LEAST_SECONDS = 60, 3600
IDLE_GPU_PERCENT = 5


@dataclass(frozen=True)
class Alert:
    """One rule. `hold` is how long the expression must stay above 0, in Prometheus' notation."""

    uid: str
    title: str
    expression: str
    hold: str
    severity: str
    summary: str


AND = "and on (environment, run_id)"


def stalled(window: int) -> str:
    """Running, and no step within a window that is longer than the steps' medians together."""
    median = f"quantile_over_time(0.5, {series.STEP_SECONDS.name}[6h])"
    return (
        f"(({series.RUNNING.name} == 1) {AND} (changes({series.STEP.name}[{window}s]) == 0) {AND} ({median} * {STALLED_STEPS} < {window}))"
    )


ALERTS: tuple[Alert, ...] = (
    Alert(
        "hyperpod-rl-step-stalled", "No step",
        " or ".join(stalled(window) for window in STALLED_WINDOWS_SECONDS),
        "5m", "critical",
        f"Run {{{{ $labels.run_id }}}} has made no step for {STALLED_STEPS} times the median of its steps' times. "
        "`hyperpod-rl status` says what it waits for.",
    ),
    Alert(
        "hyperpod-rl-checkpoint-old", "Checkpoint too old",
        f"({series.CHECKPOINT_AGE.name} > {CHECKPOINT_LEAST_SECONDS}) {AND} "
        f"({series.CHECKPOINT_AGE.name} > {CHECKPOINT_STEPS} * {series.STEP_SECONDS.name}) {AND} "
        f"({series.RUNNING.name} == 1)",
        "10m", "warning",
        "A fault now would throw away more than an hour of run {{ $labels.run_id }}.",
    ),
    Alert(
        "hyperpod-rl-gpu-idle", "GPU idle while a run is running",
        f"(max_over_time(DCGM_FI_DEV_GPU_UTIL[15m]) < {IDLE_GPU_PERCENT}) and on () (max({series.RUNNING.name}) == 1)",
        "15m", "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} has done nothing for 15 minutes while a run is running.",
    ),
    Alert(
        "hyperpod-rl-node-unhealthy", "Node unhealthy",
        'kubelet_node_name{sagemaker_amazonaws_com_node_health_status=~"Unschedulable.*"} > 0',
        "5m", "critical",
        "HyperPod has taken node {{ $labels.instance }} out of use; it repairs or replaces it.",
    ),
    Alert(
        "hyperpod-rl-gpu-error", "GPU error",
        "DCGM_FI_DEV_XID_ERRORS > 0",
        "1m", "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} reports an XID error; the dashboard GPU and EFA says which.",
    ),
    Alert(
        "hyperpod-rl-idle-cost", "Cluster idle while it costs",
        f"(count(max_over_time(DCGM_FI_DEV_GPU_UTIL[1h]) < {IDLE_GPU_PERCENT}) == count(DCGM_FI_DEV_GPU_UTIL)) "
        f"unless on () (max({series.RUNNING.name}) == 1)",
        "1h", "warning",
        "Every GPU has been idle for an hour and no run is running. Set the groups' `count` to 0, or take the cluster down.",
    ),
)  # fmt: skip


def documents() -> list[dict[str, Any]]:
    """The rules. Query A asks Prometheus, B takes its newest value, C asks whether that is above 0; no data is no alarm."""
    return [_document(alert) for alert in ALERTS]


def _document(alert: Alert) -> dict[str, Any]:
    window = {"from": 600, "to": 0}
    constant = {"type": "__expr__", "uid": "__expr__"}
    evaluator = {"type": "gt", "params": [0]}
    return {
        "uid": alert.uid, "title": alert.title, "ruleGroup": GROUP, "folderUID": FOLDER_UID, "orgID": 1, "for": alert.hold,
        "condition": "C", "noDataState": "OK", "execErrState": "Error",
        "labels": {"severity": alert.severity, "project": "hyperpod-rl"},
        "annotations": {"summary": alert.summary},
        "data": [
            {"refId": "A", "datasourceUid": PROMETHEUS_UID, "relativeTimeRange": window, "queryType": "",
             "model": {"refId": "A", "expr": f"count by (environment, run_id, Hostname, gpu, instance) ({alert.expression})",
                       "instant": True, "intervalMs": 1000, "maxDataPoints": 43200}},
            {"refId": "B", "datasourceUid": "__expr__", "relativeTimeRange": window, "queryType": "",
             "model": {"refId": "B", "type": "reduce", "reducer": "last", "expression": "A", "datasource": constant}},
            {"refId": "C", "datasourceUid": "__expr__", "relativeTimeRange": window, "queryType": "",
             "model": {"refId": "C", "type": "threshold", "expression": "B", "datasource": constant,
                       "conditions": [{"type": "query", "evaluator": evaluator, "query": {"params": ["C"]}}]}},
        ],
    }  # fmt: skip
