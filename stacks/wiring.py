"""Which stacks an environment has, and the order that they force upon each other."""

from __future__ import annotations

from constructs import Construct

from stacks.cluster import Cluster
from stacks.data import Data
from stacks.hyperpod import HyperPod
from stacks.network import Network
from stacks.nodes_ready import NodesReady
from stacks.observability import Observability
from stacks.platform import Platform
from stacks.stack import EnvironmentStack, Settings
from stacks.studio import Studio
from stacks.telemetry import Telemetry


def build(scope: Construct, settings: Settings) -> list[EnvironmentStack]:
    """All stacks of the environment, each after those below it. A stack is deleted in the opposite order."""
    network = Network(scope, settings)
    data = _above(Data(scope, settings), network)
    cluster = _above(Cluster(scope, settings), network)
    telemetry = Telemetry(scope, settings) if settings.observability.enabled else None
    # Above Data, as in AWS's own quick setup: where Data is protected, a `destroy --all` stops there, and by then the nodes are gone.
    hyperpod = _above(HyperPod(scope, settings), cluster, data, telemetry)
    ready = _above(NodesReady(scope, settings), hyperpod)
    platform = _above(Platform(scope, settings), ready, data)
    stacks: list[EnvironmentStack] = [network, data, cluster, hyperpod, ready, platform]
    if telemetry is not None:
        stacks += [telemetry, _above(Observability(scope, settings), ready, data, telemetry)]
    if settings.studio.enabled:
        stacks.append(_above(Studio(scope, settings), cluster))
    return stacks


def _above(stack: EnvironmentStack, *below: EnvironmentStack | None) -> EnvironmentStack:
    for lower in below:
        if lower is not None:
            stack.add_stack_dependency(lower)
    return stack
