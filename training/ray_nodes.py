"""How the Ray cluster stands as its own dashboard tells: for whoever reaches Ray and not Kubernetes, such as a pod without a token."""

from __future__ import annotations

from config.problems import Unreachable
from training.cluster import State
from training.connection import Answered, Connection


def state(connection: Connection) -> State:
    """Head and workers by Ray's node table (ray/dashboard/state_aggregator.py). Raises Unreachable if the dashboard does not tell."""
    env = connection.environment
    try:
        said = connection.call(lambda client: client._do_request("GET", "/api/v0/nodes?detail=1&limit=10000").json())
        alive = [node for node in said["data"]["result"]["result"] if node["state"] == "ALIVE"]
        gpus = [float((node["resources_total"] or {}).get("GPU", 0)) for node in alive]
    except (Answered, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreachable(f"the Ray dashboard does not tell its nodes: {error}") from None
    workers = [count for count in gpus if count > 0]
    # A node of fewer GPUs than its group has is no whole worker.
    whole = sum(count >= env.workers.instance.gpus for count in workers)
    return State(
        name=env.ray_cluster.name, namespace=env.ray_cluster.namespace, exists=True, head_ready=True, workers_ready=whole,
        workers_wanted=env.workers.count, gpus=int(sum(workers)), state="ready" if whole >= env.workers.count else "pending",
    )  # fmt: skip
