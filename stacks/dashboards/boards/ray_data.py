"""Ray Data: rows, tasks and memory of datasets."""

from __future__ import annotations

from stacks.dashboards.boards import filters
from stacks.dashboards.boards.filters import RAY
from stacks.dashboards.panel import Board, Panel, Query, Row

RATE = "[$__rate_interval]"

BOARD = Board(
    uid="hyperpod-rl-ray-data",
    title="Ray Data",
    description="Datasets of Ray Data. The trainer reads a Parquet file without it, so this stays empty unless your own jobs use it.",
    variables=filters.ray("ray_node_cpu_count"),
    rows=(
        Row("Throughput", (
            Panel("Rows written", (
                Query(f"sum by (dataset, operator) (rate(ray_data_output_rows{{{RAY}}}{RATE}))", "{{dataset}} {{operator}}"),
            ), "rowsps"),
            Panel("Bytes written", (
                Query(f"sum by (dataset, operator) (rate(ray_data_output_bytes{{{RAY}}}{RATE}))", "{{dataset}} {{operator}}"),
            ), "Bps"),
            Panel("Tasks", (
                Query(f"sum by (dataset) (ray_data_num_tasks_running{{{RAY}}})", "running {{dataset}}"),
                Query(f"sum by (dataset) (ray_data_num_tasks_finished{{{RAY}}})", "finished {{dataset}}"),
                Query(f"sum by (dataset) (ray_data_num_tasks_failed{{{RAY}}})", "failed {{dataset}}"),
            )),
        )),
        Row("Pressure", (
            Panel("Bytes in the object store", (
                Query(f"sum by (dataset) (ray_data_current_bytes{{{RAY}}})", "now {{dataset}}"),
                Query(f"sum by (dataset) (ray_data_spilled_bytes{{{RAY}}})", "spilled {{dataset}}"),
                Query(f"sum by (dataset) (ray_data_freed_bytes{{{RAY}}})", "freed {{dataset}}"),
            ), "bytes"),
            Panel("Blocks that wait", (
                Query(f"sum by (dataset, operator) (ray_data_num_external_inqueue_blocks{{{RAY}}})", "in {{dataset}} {{operator}}"),
                Query(f"sum by (dataset, operator) (ray_data_num_external_outqueue_blocks{{{RAY}}})", "out {{dataset}} {{operator}}"),
            )),
            Panel("Held back", (
                Query(f"sum by (dataset) (rate(ray_data_task_submission_backpressure_time{{{RAY}}}{RATE}))", "{{dataset}}"),
            ), "percentunit"),
            Panel("CPUs and GPUs", (
                Query(f"sum by (dataset) (ray_data_cpu_usage_cores{{{RAY}}})", "CPU {{dataset}}"),
                Query(f"sum by (dataset) (ray_data_gpu_usage_cores{{{RAY}}})", "GPU {{dataset}}"),
            )),
            Panel("Reader: time blocked and time in user code", (
                Query(f"sum by (dataset) (rate(ray_data_iter_total_blocked_seconds{{{RAY}}}{RATE}))", "blocked {{dataset}}"),
                Query(f"sum by (dataset) (rate(ray_data_iter_user_seconds{{{RAY}}}{RATE}))", "user {{dataset}}"),
            ), "percentunit"),
            Panel("Time to the first batch", (Query(f"ray_data_iter_time_to_first_batch_seconds{{{RAY}}}", "{{dataset}}"),), "s"),
        )),
    ),
)  # fmt: skip
