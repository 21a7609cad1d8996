"""Ray Core: tasks, actors, placement groups, the object store and the nodes of a Ray cluster."""

from __future__ import annotations

from stacks.dashboards.boards.filters import RAY, ray_board, summed
from stacks.dashboards.panel import Panel, Query, Row

BOARD = ray_board(
    "Core",
    "State of the Ray clusters, as Ray itself exports it.",
    Row("Work", (
        Panel("Tasks by state", (summed("ray_tasks", "{{State}}", "State"),), stacked=True),
        Panel("Actors by state", (summed("ray_actors", "{{State}}", "State"),), stacked=True),
        Panel("Placement groups by state", (summed("ray_placement_groups", "{{State}}", "State"),), stacked=True),
        Panel("Logical resources in use", (
            Query(f'sum by (Name) (ray_resources{{{RAY}, State="USED", Name=~"CPU|GPU"}})', "{{Name}} used"),
            Query(f'sum by (Name) (ray_resources{{{RAY}, Name=~"CPU|GPU"}})', "{{Name}} there"),
        )),
        Panel("Object store by location", (summed("ray_object_store_memory", "{{Location}}", "Location"),), "bytes",
              stacked=True),
        Panel("Workers that died", (
            Query(f"sum by (Type) (increase(ray_memory_manager_worker_eviction_total{{{RAY}}}[$__rate_interval]))", "out of memory"),
            Query(f"sum(increase(ray_node_manager_unexpected_worker_failure_total{{{RAY}}}[$__rate_interval]))", "unexpected"),
        ), red_above=1),
    )),
    Row("Nodes", (
        Panel("CPU", (Query(f"ray_node_cpu_utilization{{{RAY}}}", "{{instance}}"),), "percent", maximum=100),
        Panel("Memory", (
            Query(f"ray_node_mem_used{{{RAY}}}", "{{instance}}"), summed("ray_node_mem_total", "all there is"),
        ), "bytes"),
        Panel("Shared memory (/dev/shm)", (Query(f"ray_node_mem_shared_bytes{{{RAY}}}", "{{instance}}"),), "bytes"),
        Panel("GPU", (Query(f"ray_node_gpus_utilization{{{RAY}}}", "{{instance}} GPU {{GpuIndex}}"),), "percent", maximum=100),
        Panel("GPU memory", (Query(f"ray_node_gram_used{{{RAY}}}", "{{instance}} GPU {{GpuIndex}}"),), "decmbytes"),
        Panel("Disk used", (
            Query(f"ray_node_disk_usage{{{RAY}}} / (ray_node_disk_usage{{{RAY}}} + ray_node_disk_free{{{RAY}}})", "{{instance}}"),
        ), "percentunit", maximum=1),
        Panel("Network", (
            Query(f"ray_node_network_receive_speed{{{RAY}}}", "{{instance}} in"),
            Query(f"ray_node_network_send_speed{{{RAY}}}", "{{instance}} out"),
        ), "Bps"),
        Panel("Disk", (
            Query(f"ray_node_disk_io_read_speed{{{RAY}}}", "{{instance}} read"),
            Query(f"ray_node_disk_io_write_speed{{{RAY}}}", "{{instance}} written"),
        ), "Bps"),
        Panel("Nodes as Ray sees them", (
            summed("autoscaler_active_nodes", "active"), summed("autoscaler_pending_nodes", "pending"),
            summed("autoscaler_recently_failed_nodes", "failed"),
        )),
    )),
    Row("Processes", (
        Panel("Memory by process", (Query(f"topk(10, ray_component_rss_bytes{{{RAY}}})", "{{Component}} {{instance}}"),), "bytes",
              width=12),
        Panel("CPU by process", (
            Query(f"topk(10, ray_component_cpu_percentage{{{RAY}}})", "{{Component}} {{instance}}"),
        ), "percent", width=12),
    )),
)  # fmt: skip
