"""Ray Train: controller, worker groups and checkpoints of jobs that use it."""

from __future__ import annotations

from stacks.dashboards.boards import filters
from stacks.dashboards.boards.filters import RAY
from stacks.dashboards.panel import Board, Panel, Query, Row

RUN = "ray_train_run_name"

BOARD = Board(
    uid="hyperpod-rl-ray-train",
    title="Ray Train",
    description="Runs of Ray Train. SkyRL has its own trainer and exports none of these: its runs are on the dashboard Training.",
    variables=filters.ray("ray_node_cpu_count"),
    rows=(
        Row("Controller", (
            Panel("State", (Query(f"sum by ({RUN}, ray_train_controller_state) (ray_train_controller_state{{{RAY}}})",
                                  "{{ray_train_run_name}} {{ray_train_controller_state}}"),), width=12),
            Panel("Time to start and end worker groups", (
                Query(f"sum by ({RUN}) (ray_train_worker_group_start_total_time_s{{{RAY}}})", "start {{ray_train_run_name}}"),
                Query(f"sum by ({RUN}) (ray_train_worker_group_shutdown_total_time_s{{{RAY}}})", "end {{ray_train_run_name}}"),
            ), "s", width=12),
        )),
        Row("Workers", (
            Panel("Time blocked in report()", (
                Query(f"sum by ({RUN}, ray_train_worker_world_rank) (ray_train_report_total_blocked_time_s{{{RAY}}})",
                      "{{ray_train_run_name}} rank {{ray_train_worker_world_rank}}"),
            ), "s"),
            Panel("Time to meet for a checkpoint", (
                Query(f"sum by ({RUN}, ray_train_worker_world_rank) (ray_train_checkpoint_sync_total_time_s{{{RAY}}})",
                      "{{ray_train_run_name}} rank {{ray_train_worker_world_rank}}"),
            ), "s"),
            Panel("Time to write a checkpoint", (
                Query(f"sum by ({RUN}, ray_train_worker_world_rank) (ray_train_checkpoint_transfer_total_time_s{{{RAY}}})",
                      "{{ray_train_run_name}} rank {{ray_train_worker_world_rank}}"),
            ), "s"),
            Panel("GPU", (Query(f"ray_node_gpus_utilization{{{RAY}}}", "{{instance}} GPU {{GpuIndex}}"),), "percent", maximum=100),
            Panel("GPU memory", (
                Query(f"ray_node_gram_used{{{RAY}}}", "{{instance}} GPU {{GpuIndex}}"),
                Query(f"sum(ray_node_gram_used{{{RAY}}}) + sum(ray_node_gram_available{{{RAY}}})", "all there is"),
            ), "decmbytes"),
            Panel("Memory", (Query(f"ray_node_mem_used{{{RAY}}}", "{{instance}}"),), "bytes"),
        )),
    ),
)  # fmt: skip
