"""How long the first deploy of `reference` takes at best: the longest way through the graph of its templates, by known durations.

A stack begins when all stacks below it are complete, a resource when all that it refers to or depends on is there. The chain that AWS
forces whatever the templates say is VPC, EKS, dependency chart, HyperPod, nodes, observability add-on; what the path has beyond it is
ours to answer for.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config import load
from config.cloudformation import needs
from tools.deployment import synthesize

# Minutes. Seen: a note on AWS's sample stack for an EKS cluster with g7e.12xlarge nodes (VPC 3-5, FSx 10-15 beside it, plugins 2-5), AWS's
# FSx function ("up to 10 minutes"), a field report of HyperPod (cluster 15-25 with capacity; add-ons several minutes, KubeRay seconds).
# EKS's control plane alone (8-10), the chart (its function has 10 minutes), every add-on and everything below one minute are inferred.
MINUTES: Mapping[str, float] = {
    "AWS::EC2::NatGateway": 3.0,
    "AWS::EC2::VPCEndpoint": 2.0,
    "AWS::EKS::Cluster": 10.0,
    "AWS::EKS::Addon": 1.0,
    "AWS::FSx::FileSystem": 10.0,
    "AWS::SageMaker::Cluster": 20.0,
    "AWS::Grafana::Workspace": 5.0,
    "AWS::APS::Workspace": 1.0,
    "AWS::CertificateManager::Certificate": 3.0,
    "AWS::SageMaker::Domain": 5.0,
    "Custom::MirroredCharts": 3.0,
    "Custom::NodesReady": 3.5,
    "Custom::AWSCDK-EKS-HelmChart": 3.0,
    "AWS::IAM::Role": 0.3,
}
ADDONS = {"amazon-sagemaker-hyperpod-observability": 8.0, "amazon-sagemaker-spaces": 8.0, "cert-manager": 3.0}
REST = 0.1
# One call of CloudFormation and the wait for it, before the first resource of a stack.
STACK = 0.1
FORCED = {"VPC": 4.0, "EKS": 10.0, "dependency chart": 3.0, "HyperPod": 20.0, "nodes": 3.5, "observability add-on": 8.0}
SLOW_FILE_SYSTEM = 15.0
Template = Mapping[str, Any]


def minutes(body: Mapping[str, Any], *, known: Mapping[str, float] = MINUTES) -> float:
    """How long one resource takes to create."""
    addon = ADDONS.get(str(body.get("Properties", {}).get("AddonName")))
    return addon if addon is not None else known.get(str(body["Type"]), REST)


def path(
    templates: Mapping[str, Template], below: Mapping[str, frozenset[str]], *, known: Mapping[str, float] = MINUTES
) -> list[tuple[str, float]]:
    """The longest way, from its first resource to its last: (`Stack/LogicalId`, minutes until it is there)."""
    done: dict[str, float] = {}
    came_from: dict[str, str] = {}
    ended: dict[str, str] = {}
    for stack in _ordered(below):
        last = max((ended[lower] for lower in below[stack]), key=done.__getitem__, default="")
        begin = (done[last] if last else 0.0) + STACK
        resources = templates[stack]["Resources"]
        for logical in _ordered({name: frozenset(needs(body) & set(resources)) for name, body in resources.items()}):
            name = f"{stack}/{logical}"
            before = max((f"{stack}/{other}" for other in needs(resources[logical]) & set(resources)), key=done.__getitem__, default=last)
            done[name] = max(done.get(before, 0.0), begin) + minutes(resources[logical], known=known)
            came_from[name] = before
        ended[stack] = max((f"{stack}/{logical}" for logical in resources), key=done.__getitem__)
    found, node = [], max(done, key=done.__getitem__)
    while node:
        found.append((node, done[node]))
        node = came_from[node]
    return found[::-1]


def _ordered(below: Mapping[str, frozenset[str]]) -> list[str]:
    """Names, each after those that it needs. Raises ValueError for a circle."""
    found: list[str] = []
    while len(found) < len(below):
        ready = [name for name, needed in below.items() if name not in found and needed <= set(found)]
        if not ready:
            raise ValueError(f"a circle among {', '.join(sorted(set(below) - set(found)))}")
        found += ready
    return found


def run() -> list[str]:
    """Print the path and its length against the chain that AWS forces."""
    with tempfile.TemporaryDirectory() as folder:
        assembly = synthesize(load.load("reference"), Path(folder))
        artifacts = json.loads((Path(folder) / "manifest.json").read_text())["artifacts"]
    below = {stack: frozenset(artifacts[stack].get("dependencies", ())) & frozenset(assembly.templates) for stack in assembly.templates}
    found = path(assembly.templates, below)
    for name, at in found:
        stack, logical = name.split("/")
        if (took := minutes(assembly.templates[stack]["Resources"][logical])) >= 1:
            print(f"  {at:5.1f} min  {name} ({took:g} min)")
    forced, length = sum(FORCED.values()), found[-1][1]
    line = f"deploy critical path / chain that AWS forces: {length:.1f} min / {forced:.1f} min = {length / forced:.2f} x (budget 1.05 x)"
    print(line)
    slow = path(assembly.templates, below, known={**MINUTES, "AWS::FSx::FileSystem": SLOW_FILE_SYSTEM})[-1][1]
    print(f"  with a file system that takes {SLOW_FILE_SYSTEM:g} min: {slow:.1f} min")
    return [] if length <= 1.05 * forced else [line]
