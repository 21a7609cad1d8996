"""Synthesized templates as the tests read them: an assembly's templates, and the graph of what must exist before what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aws_cdk import App

from config.cloudformation import needs
from config.environment import Environment
from config.load import ROOT
from stacks.review import review
from stacks.wiring import build

Template = dict[str, Any]
CONTEXT: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]


@dataclass(frozen=True)
class Assembly:
    """Templates by stack, and the stacks that each stack depends on."""

    folder: Path
    templates: Mapping[str, Template]
    below: Mapping[str, frozenset[str]] = field(default_factory=dict)
    protected: frozenset[str] = frozenset()

    def resources(self, kind: str, stack: str | None = None) -> dict[str, dict[str, Any]]:
        """Resources of a type as `Stack/LogicalId` -> definition."""
        return {
            f"{name}/{logical}": body
            for name, template in self.templates.items()
            if stack in (None, name)
            for logical, body in template["Resources"].items()
            if body["Type"] == kind
        }

    def one(self, kind: str, stack: str | None = None) -> dict[str, Any]:
        """The properties of the only resource of a type."""
        found = self.resources(kind, stack)
        assert len(found) == 1, f"{len(found)} of {kind}: {sorted(found)}"
        return dict(next(iter(found.values()))["Properties"])


def synthesize(settings: Environment, folder: Path, *, only: Callable[[App], object] | None = None, reviewed: bool = False) -> Assembly:
    """Templates of all stacks, or of those that `only` makes. `reviewed`: with AWS's checks, whose report lies in the folder then."""
    app = App(outdir=str(folder), context=CONTEXT, analytics_reporting=False, tree_metadata=False)
    if only is not None:
        only(app)
    elif reviewed:
        review(app, build(app, settings))
    else:
        build(app, settings)
    try:
        app.synth()
    except RuntimeError:
        # A finding is for the test that reads the report: the templates are complete without it.
        if not findings(folder):
            raise
    manifest = json.loads((folder / "manifest.json").read_text())["artifacts"]
    stacks = {name: artifact for name, artifact in manifest.items() if artifact["type"] == "aws:cloudformation:stack"}
    return Assembly(
        folder=folder,
        templates={name: json.loads((folder / artifact["properties"]["templateFile"]).read_text()) for name, artifact in stacks.items()},
        below={name: frozenset(item for item in artifact.get("dependencies", ()) if item in stacks) for name, artifact in stacks.items()},
        protected=frozenset(name for name, artifact in stacks.items() if artifact["properties"].get("terminationProtection")),
    )


def findings(folder: Path) -> list[str]:
    """What AWS's checks say of the templates in a folder, as `construct path: finding`."""
    report = folder / "validation-report.json"
    found = json.loads(report.read_text())["pluginReports"] if report.is_file() else []
    return sorted(
        f"{construct['constructPath']}: {violation['ruleName']}"
        for plugin in found
        for violation in plugin["violations"]
        for construct in violation["violatingConstructs"]
    )


Edge = tuple[str, str]


@dataclass(frozen=True)
class Graph:
    """`after -> before` edges between resources (`Stack/LogicalId`) and stacks (`Stack`)."""

    edges: frozenset[Edge]

    def without(self, *cut: Edge) -> Graph:
        """The graph less some edges, all of which must be there."""
        missing = set(cut) - self.edges
        assert not missing, f"no such edge: {missing}"
        return Graph(self.edges - set(cut))

    def before(self, node: str) -> set[str]:
        """Everything that exists before this node does."""
        following: dict[str, list[str]] = {}
        for later, earlier in self.edges:
            following.setdefault(later, []).append(earlier)
        seen: set[str] = set()
        waiting = [node]
        while waiting:
            for earlier in following.get(waiting.pop(), ()):
                if earlier not in seen:
                    seen.add(earlier)
                    waiting.append(earlier)
        return seen


def graph(assembly: Assembly) -> Graph:
    """DependsOn, Ref, GetAtt and Sub inside a stack; a stack as a whole comes after the stacks below it.

    A stack is two nodes: `Stack` waits for the stacks below and each of its resources waits for it; `Stack!` is its completion.
    """
    edges: set[Edge] = set()
    for stack, template in assembly.templates.items():
        for lower in assembly.below[stack]:
            edges.add((stack, f"{lower}!"))
        for logical, body in template["Resources"].items():
            here = f"{stack}/{logical}"
            edges |= {(here, stack), (f"{stack}!", here)}
            edges |= {(here, f"{stack}/{other}") for other in needs(body) if other in template["Resources"]}
    return Graph(frozenset(edges))


def texts(value: Any) -> Iterator[str]:
    """Every string in a value, keys too."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value
