"""The filters that all dashboards over the add-on's metrics share: HyperPod cluster, namespace, Ray cluster."""

from __future__ import annotations

from stacks.dashboards.panel import Variable, of_label

RAY = 'cluster_name=~"$cluster_name", namespace=~"$namespace", ray_io_cluster=~"$ray_io_cluster"'
NODE = 'cluster_name=~"$cluster_name"'


def ray(metric: str) -> tuple[Variable, ...]:
    """Filters of a dashboard about Ray; `metric` is one that every Ray cluster has."""
    return (
        of_label("cluster_name", "HyperPod cluster", metric),
        of_label("namespace", "Namespace", metric, within='cluster_name=~"$cluster_name"'),
        of_label("ray_io_cluster", "Ray cluster", metric, within='cluster_name=~"$cluster_name", namespace=~"$namespace"'),
    )


def nodes(metric: str) -> tuple[Variable, ...]:
    """Filter of a dashboard about nodes."""
    return (of_label("cluster_name", "HyperPod cluster", metric),)
