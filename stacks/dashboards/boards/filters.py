"""What the dashboards over the add-on's metrics share: their filters, and the shape of those about Ray."""

from __future__ import annotations

from stacks.dashboards.panel import Board, Query, Row, Variable, of_label

RAY = 'cluster_name=~"$cluster_name", namespace=~"$namespace", ray_io_cluster=~"$ray_io_cluster"'
NODE = 'cluster_name=~"$cluster_name"'
# One that every Ray cluster has.
EVERYWHERE = "ray_node_cpu_count"


def ray_board(part: str, description: str, *rows: Row) -> Board:
    """A dashboard about one part of Ray, filtered by HyperPod cluster, namespace and Ray cluster."""
    variables = (
        of_label("cluster_name", "HyperPod cluster", EVERYWHERE),
        of_label("namespace", "Namespace", EVERYWHERE, within='cluster_name=~"$cluster_name"'),
        of_label("ray_io_cluster", "Ray cluster", EVERYWHERE, within='cluster_name=~"$cluster_name", namespace=~"$namespace"'),
    )
    return Board(f"hyperpod-rl-ray-{part.lower()}", f"Ray {part}", description, rows, variables)


def summed(metric: str, legend: str, *by: str) -> Query:
    """A metric of Ray, added up by some labels."""
    return Query(f"{_sum(by)}({metric}{{{RAY}}})", legend)


def rate(metric: str, legend: str, *by: str, where: str = RAY) -> Query:
    """How fast a counter of Ray grows, added up by some labels."""
    return Query(f"{_sum(by)}(rate({metric}{{{where}}}[$__rate_interval]))", legend)


def _sum(by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) " if by else "sum"


def nodes(metric: str) -> tuple[Variable, ...]:
    """Filter of a dashboard about nodes."""
    return (of_label("cluster_name", "HyperPod cluster", metric),)
