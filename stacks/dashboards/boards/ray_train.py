"""Ray Train: controller, worker groups and checkpoints of jobs that use it."""

from __future__ import annotations

from stacks.dashboards.boards.filters import RAY, ray_board, summed
from stacks.dashboards.panel import Panel, Query, Row

RUN, RANK = "ray_train_run_name", "ray_train_worker_world_rank"


def by_rank(metric: str) -> Query:
    """A metric of each worker of a run."""
    return summed(metric, f"{{{{{RUN}}}}} rank {{{{{RANK}}}}}", RUN, RANK)


BOARD = ray_board(
    "Train",
    "Runs of Ray Train. SkyRL has its own trainer and exports none of these: its runs are on the dashboard Training.",
    Row("Controller", (
        Panel("State", (summed("ray_train_controller_state", "{{ray_train_run_name}} {{ray_train_controller_state}}", RUN,
                                    "ray_train_controller_state"),), width=12),
        Panel("Time to start and end worker groups", (
            summed("ray_train_worker_group_start_total_time_s", "start {{ray_train_run_name}}", RUN),
            summed("ray_train_worker_group_shutdown_total_time_s", "end {{ray_train_run_name}}", RUN),
        ), "s", width=12),
    )),
    Row("Workers", (
        Panel("Time blocked in report()", (by_rank("ray_train_report_total_blocked_time_s"),), "s"),
        Panel("Time to meet for a checkpoint", (by_rank("ray_train_checkpoint_sync_total_time_s"),), "s"),
        Panel("Time to write a checkpoint", (by_rank("ray_train_checkpoint_transfer_total_time_s"),), "s"),
        Panel("GPU", (Query(f"ray_node_gpus_utilization{{{RAY}}}", "{{instance}} GPU {{GpuIndex}}"),), "percent", maximum=100),
        Panel("GPU memory", (
            Query(f"ray_node_gram_used{{{RAY}}}", "{{instance}} GPU {{GpuIndex}}"),
            Query(f"sum(ray_node_gram_used{{{RAY}}}) + sum(ray_node_gram_available{{{RAY}}})", "all there is"),
        ), "decmbytes"),
        Panel("Memory", (Query(f"ray_node_mem_used{{{RAY}}}", "{{instance}}"),), "bytes"),
    )),
)  # fmt: skip
