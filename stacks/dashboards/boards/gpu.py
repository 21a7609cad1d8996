"""GPUs and EFA: whether what costs most works, and whether the nodes talk over EFA."""

from __future__ import annotations

from stacks.dashboards.boards import filters
from stacks.dashboards.boards.filters import NODE
from stacks.dashboards.panel import Board, Panel, Query, Row

GPU = "{{Hostname}} GPU {{gpu}}"
RATE = "[$__rate_interval]"


def bits(metric: str, legend: str) -> Query:
    """A byte counter of the EFA devices as bits a second by node."""
    return Query(f"sum by (instance) (rate({metric}{{{NODE}}}{RATE})) * 8", legend + " {{instance}}")


BOARD = Board(
    uid="hyperpod-rl-gpu-efa",
    title="GPU and EFA",
    description="GPUs by NVIDIA's DCGM exporter, EFA by the node exporter, node health by HyperPod's labels.",
    variables=filters.nodes("DCGM_FI_DEV_GPU_UTIL"),
    rows=(
        Row("Now", (
            Panel("GPUs", (Query(f"count(DCGM_FI_DEV_GPU_UTIL{{{NODE}}})"),), kind="stat", width=4),
            Panel("GPUs in use", (Query(f"avg(DCGM_FI_DEV_GPU_UTIL{{{NODE}}})"),), "percent", "stat", width=4, maximum=100),
            Panel("Nodes", (Query(f"count(node_uname_info{{{NODE}}})"),), kind="stat", width=4),
            Panel("Unhealthy nodes", (
                Query(f'count(kubelet_node_name{{{NODE}, sagemaker_amazonaws_com_node_health_status=~"Unschedulable.*"}}) or vector(0)'),
            ), kind="stat", width=4, red_above=1),
            Panel("GPU errors (XID)", (Query(f"max(DCGM_FI_DEV_XID_ERRORS{{{NODE}}})"),), kind="stat", width=4, red_above=1,
                  description="The number of the newest XID error; 0 is none."),
            Panel("Power", (Query(f"sum(DCGM_FI_DEV_POWER_USAGE{{{NODE}}})"),), "watt", "stat", width=4),
        )),
        Row("GPUs", (
            Panel("Utilization", (Query(f"DCGM_FI_DEV_GPU_UTIL{{{NODE}}}", GPU),), "percent", maximum=100),
            Panel("Memory used", (
                Query(f"DCGM_FI_DEV_FB_USED{{{NODE}}} / (DCGM_FI_DEV_FB_USED{{{NODE}}} + DCGM_FI_DEV_FB_FREE{{{NODE}}})", GPU),
            ), "percentunit", maximum=1),
            Panel("Temperature", (Query(f"DCGM_FI_DEV_GPU_TEMP{{{NODE}}}", GPU),), "celsius", red_above=85),
            Panel("Power", (Query(f"DCGM_FI_DEV_POWER_USAGE{{{NODE}}}", GPU),), "watt"),
            Panel("Clock", (Query(f"DCGM_FI_DEV_SM_CLOCK{{{NODE}}} * 1000000", GPU),), "hertz"),
            Panel("Memory of the nodes", (
                Query(f"node_memory_MemTotal_bytes{{{NODE}}} - node_memory_MemAvailable_bytes{{{NODE}}}", "{{instance}}"),
            ), "bytes"),
        )),
        Row("EFA", (
            Panel("Sent", (bits("node_amazonefa_tx_bytes", "sent"),), "bps",
                  description="Nothing here while NCCL moves data means that it uses TCP."),
            Panel("Received", (bits("node_amazonefa_rx_bytes", "received"),), "bps"),
            Panel("RDMA", (bits("node_amazonefa_rdma_read_bytes", "read"), bits("node_amazonefa_rdma_write_bytes", "written")), "bps"),
            Panel("Dropped", (
                Query(f"sum by (instance) (rate(node_amazonefa_rx_drops{{{NODE}}}{RATE}))", "{{instance}}"),
            ), "pps", width=12, red_above=1),
            Panel("Sent again", (bits("node_amazonefa_retrans_bytes", "sent again"),), "bps", width=12),
        )),
    ),
)  # fmt: skip
