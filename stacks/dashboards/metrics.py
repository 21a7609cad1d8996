"""The metrics that dashboards and alerts may refer to: each with the place that says it exists.

A name that is neither here nor in config/series.py is refused by a test, so that no panel stays empty for a misspelt metric. Labels
`cluster_name`, `cluster_id`, `namespace` and `ray_io_cluster` come from the HyperPod observability add-on
(https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-observability-dashboards.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from config.series import SERIES

RAY: Final = "https://docs.ray.io/en/releases-2.57.0/ray-observability/reference/system-metrics.html; Ray 2.57.0, its own dashboards"
SERVE: Final = "https://docs.ray.io/en/releases-2.57.0/serve/monitoring.html#metrics; Ray 2.57.0, its own dashboards"
VLLM: Final = "https://docs.vllm.ai/en/stable/usage/metrics.html, with Ray's prefix; Ray 2.57.0, its own Serve LLM dashboard"
DCGM: Final = (
    "https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv, collected by the add-on (acceleratedComputeMetrics)"
)
EFA: Final = (
    "https://github.com/aws-samples/awsome-distributed-training, 4.validation_and_observability/3.efa-node-exporter; "
    "collected by the add-on (networkMetrics ADVANCED; inferred)"
)
NODE: Final = "https://github.com/prometheus/node_exporter, collected by the add-on (nodeMetrics)"
HYPERPOD: Final = "https://github.com/aws/sagemaker-hyperpod-cluster-setup, dashboards/templates/cluster.json at 2ebf83a41731"
FSX: Final = "https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html"
OURS: Final = "config/series.py, published by the supervisor"


def _named(source: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), source)


PROMETHEUS: Mapping[str, str] = MappingProxyType(
    _named(RAY, """
        ray_tasks ray_actors ray_placement_groups ray_resources ray_object_store_memory ray_memory_manager_worker_eviction_total
        ray_node_manager_unexpected_worker_failure_total ray_node_cpu_utilization ray_node_cpu_count ray_node_mem_used ray_node_mem_total
        ray_node_mem_shared_bytes ray_node_gpus_utilization ray_node_gram_used ray_node_gram_available ray_node_disk_usage
        ray_node_disk_free ray_node_disk_io_read_speed ray_node_disk_io_write_speed ray_node_network_receive_speed
        ray_node_network_send_speed ray_component_rss_bytes ray_component_cpu_percentage ray_node_gpu_temperature_celsius
        ray_node_gpu_power_milliwatts autoscaler_active_nodes autoscaler_pending_nodes autoscaler_recently_failed_nodes
        autoscaler_cluster_resources
        ray_data_num_tasks_running ray_data_num_tasks_failed ray_data_num_tasks_finished ray_data_output_rows ray_data_output_bytes
        ray_data_current_bytes ray_data_spilled_bytes ray_data_freed_bytes ray_data_cpu_usage_cores ray_data_gpu_usage_cores
        ray_data_iter_total_blocked_seconds ray_data_iter_user_seconds ray_data_iter_time_to_first_batch_seconds
        ray_data_task_submission_backpressure_time ray_data_num_external_inqueue_blocks ray_data_num_external_outqueue_blocks
        ray_train_controller_state ray_train_worker_group_start_total_time_s ray_train_worker_group_shutdown_total_time_s
        ray_train_report_total_blocked_time_s ray_train_checkpoint_sync_total_time_s ray_train_checkpoint_transfer_total_time_s
    """)
    | _named(SERVE, """
        ray_serve_num_http_requests_total ray_serve_num_http_error_requests_total ray_serve_num_ongoing_http_requests
        ray_serve_http_request_latency_ms_bucket ray_serve_deployment_request_counter_total ray_serve_deployment_error_counter_total
        ray_serve_deployment_processing_latency_ms_bucket ray_serve_deployment_queued_queries ray_serve_deployment_replica_healthy
        ray_serve_replica_processing_queries ray_serve_num_multiplexed_models ray_serve_multiplexed_model_load_latency_ms_bucket
        ray_serve_controller_control_loop_duration_s
    """)
    | _named(VLLM, """
        ray_vllm_num_requests_running ray_vllm_num_requests_waiting ray_vllm_kv_cache_usage_perc ray_vllm_prompt_tokens_total
        ray_vllm_generation_tokens_total ray_vllm_prefix_cache_hits_total ray_vllm_prefix_cache_queries_total
        ray_vllm_request_success_total ray_vllm_time_to_first_token_seconds_bucket ray_vllm_request_time_per_output_token_seconds_bucket
        ray_vllm_e2e_request_latency_seconds_bucket
    """)
    | _named(DCGM, """
        DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_GPU_TEMP DCGM_FI_DEV_POWER_USAGE DCGM_FI_DEV_XID_ERRORS
        DCGM_FI_DEV_SM_CLOCK
    """)
    | _named(EFA, """
        node_amazonefa_tx_bytes node_amazonefa_rx_bytes node_amazonefa_rdma_read_bytes node_amazonefa_rdma_write_bytes
        node_amazonefa_rx_drops node_amazonefa_retrans_bytes
    """)
    | _named(NODE, "node_uname_info node_memory_MemTotal_bytes node_memory_MemAvailable_bytes node_cpu_seconds_total")
    | _named(HYPERPOD, "kubelet_node_name")
    | {series.name: OURS for series in SERIES}
)  # fmt: skip

# CloudWatch metrics of the namespace AWS/FSx (dimension FileSystemId).
CLOUDWATCH: Mapping[str, str] = MappingProxyType(
    _named(FSX, """
        FreeDataStorageCapacity DataReadBytes DataWriteBytes DataReadOperations DataWriteOperations MetadataOperations
        StorageCapacityUtilization NetworkThroughputUtilization FileServerDiskThroughputUtilization
    """)
)  # fmt: skip
