"""Fixtures of the Kubernetes tests serve here too."""

from tests.local.kubernetes.conftest import cluster, clusters, nodes

__all__ = ["cluster", "clusters", "nodes"]
