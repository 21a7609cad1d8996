"""Ray Data: rows, tasks and memory of datasets."""

from __future__ import annotations

from stacks.dashboards.boards.filters import RAY, rate, ray_board, summed
from stacks.dashboards.panel import Panel, Query, Row

BOARD = ray_board(
    "Data",
    "Datasets of Ray Data. The trainer reads a Parquet file without it, so this stays empty unless your own jobs use it.",
    Row("Throughput", (
        Panel("Rows written", (
            rate("ray_data_output_rows", "{{dataset}} {{operator}}", "dataset", "operator"),
        ), "rowsps"),
        Panel("Bytes written", (
            rate("ray_data_output_bytes", "{{dataset}} {{operator}}", "dataset", "operator"),
        ), "Bps"),
        Panel("Tasks", (
            summed("ray_data_num_tasks_running", "running {{dataset}}", "dataset"),
            summed("ray_data_num_tasks_finished", "finished {{dataset}}", "dataset"),
            summed("ray_data_num_tasks_failed", "failed {{dataset}}", "dataset"),
        )),
    )),
    Row("Pressure", (
        Panel("Bytes in the object store", (
            summed("ray_data_current_bytes", "now {{dataset}}", "dataset"),
            summed("ray_data_spilled_bytes", "spilled {{dataset}}", "dataset"),
            summed("ray_data_freed_bytes", "freed {{dataset}}", "dataset"),
        ), "bytes"),
        Panel("Blocks that wait", (
            summed("ray_data_num_external_inqueue_blocks", "in {{dataset}} {{operator}}", "dataset", "operator"),
            summed("ray_data_num_external_outqueue_blocks", "out {{dataset}} {{operator}}", "dataset", "operator"),
        )),
        Panel("Held back", (
            rate("ray_data_task_submission_backpressure_time", "{{dataset}}", "dataset"),
        ), "percentunit"),
        Panel("CPUs and GPUs", (
            summed("ray_data_cpu_usage_cores", "CPU {{dataset}}", "dataset"),
            summed("ray_data_gpu_usage_cores", "GPU {{dataset}}", "dataset"),
        )),
        Panel("Reader: time blocked and time in user code", (
            rate("ray_data_iter_total_blocked_seconds", "blocked {{dataset}}", "dataset"),
            rate("ray_data_iter_user_seconds", "user {{dataset}}", "dataset"),
        ), "percentunit"),
        Panel("Time to the first batch", (Query(f"ray_data_iter_time_to_first_batch_seconds{{{RAY}}}", "{{dataset}}"),), "s"),
    )),
)  # fmt: skip
