"""Ray Serve: requests, latency, replicas and the engine of the endpoint."""

from __future__ import annotations

from stacks.dashboards.boards.filters import RAY, rate, ray_board, summed
from stacks.dashboards.panel import Panel, Query, Row

RATE = "[$__rate_interval]"
OURS = f'{RAY}, route!~"/-/.*"'  # without the health checks


def quantiles(metric: str) -> tuple[Query, ...]:
    """The median and two tails of a histogram."""
    return tuple(
        Query(f"histogram_quantile({share}, sum by (le) (rate({metric}{{{RAY}}}{RATE})))", f"p{round(share * 100)}")
        for share in (0.5, 0.95, 0.99)
    )


BOARD = ray_board(
    "Serve",
    "The endpoint: requests, replicas, adapters and the vLLM engine.",
    Row("Requests", (
        Panel("Requests a second", (
            rate("ray_serve_num_http_requests_total", "{{route}}", "route", where=OURS),
        ), "reqps"),
        Panel("Errors a second", (
            rate("ray_serve_num_http_error_requests_total", "{{error_code}}", "error_code", where=OURS),
        ), "reqps", red_above=1),
        Panel("Requests at once", (summed("ray_serve_num_ongoing_http_requests", "at the proxy"),)),
        Panel("Latency at the proxy", quantiles("ray_serve_http_request_latency_ms_bucket"), "ms", width=12),
        Panel("Latency in the deployment", quantiles("ray_serve_deployment_processing_latency_ms_bucket"), "ms", width=12),
    )),
    Row("Replicas", (
        Panel("Healthy replicas", (
            summed("ray_serve_deployment_replica_healthy", "{{deployment}}", "deployment"),
        ), red_below=1),
        Panel("Queued and running", (
            summed("ray_serve_deployment_queued_queries", "queued {{deployment}}", "deployment"),
            summed("ray_serve_replica_processing_queries", "running {{deployment}}", "deployment"),
        )),
        Panel("Errors of deployments", (
            rate("ray_serve_deployment_error_counter_total", "{{deployment}}", "deployment"),
            rate("ray_serve_deployment_request_counter_total", "all of {{deployment}}", "deployment"),
        ), "reqps"),
        Panel("Adapters loaded", (summed("ray_serve_num_multiplexed_models", "{{deployment}}", "deployment"),)),
        Panel("Time to load an adapter", quantiles("ray_serve_multiplexed_model_load_latency_ms_bucket"), "ms"),
        Panel("Controller's loop", (Query(f"ray_serve_controller_control_loop_duration_s{{{RAY}}}", "{{instance}}"),), "s"),
    )),
    Row("Engine", (
        Panel("Time to the first token", quantiles("ray_vllm_time_to_first_token_seconds_bucket"), "s"),
        Panel("Time a token", quantiles("ray_vllm_request_time_per_output_token_seconds_bucket"), "s"),
        Panel("Whole request", quantiles("ray_vllm_e2e_request_latency_seconds_bucket"), "s"),
        Panel("Tokens a second", (
            rate("ray_vllm_prompt_tokens_total", "prompt"),
            rate("ray_vllm_generation_tokens_total", "generated"),
        )),
        Panel("Requests in the engine", (
            summed("ray_vllm_num_requests_running", "running"),
            summed("ray_vllm_num_requests_waiting", "waiting"),
        )),
        Panel("Cache", (
            Query(f"avg(ray_vllm_kv_cache_usage_perc{{{RAY}}})", "used"),
            Query(
                f"sum(rate(ray_vllm_prefix_cache_hits_total{{{RAY}}}{RATE}))"
                f" / sum(rate(ray_vllm_prefix_cache_queries_total{{{RAY}}}{RATE}))", "prefix hits",
            ),
        ), "percentunit", maximum=1),
    )),
)  # fmt: skip
