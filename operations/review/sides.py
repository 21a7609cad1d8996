"""One side of a review: everything that a revision of the project makes of one environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from operations.review.values import plain

Json = Mapping[str, Any]
MANIFEST_TYPE = "Custom::AWSCDK-EKS-KubernetesResource"
# CDK's own label of what one manifest resource manages: it says where the object is written, not what it is.
_PRUNE_LABEL = "aws.cdk.eks/prune-"
# Charts that no deploy applies.
_APPLIED_BY = {"raycluster": "cluster up", "model": "cluster up", "rayservice": "serve up", "supervisor": "supervise --deploy"}


@dataclass(frozen=True)
class StackTemplate:
    """One synthesized stack. `place` is `aws://ACCOUNT/REGION`, `protected` CloudFormation's termination protection."""

    name: str
    stack_name: str
    place: str
    template: Json
    protected: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def resources(self) -> Mapping[str, Json]:
        """Resources by logical id."""
        found: Mapping[str, Json] = self.template.get("Resources", {})
        return found

    @property
    def parameters(self) -> Mapping[str, str]:
        """SSM parameter that each parameter of the template reads."""
        return {
            logical: str(body.get("Default", ""))
            for logical, body in self.template.get("Parameters", {}).items()
            if str(body.get("Type", "")).startswith("AWS::SSM::Parameter::Value")
        }


@dataclass(frozen=True)
class Object:
    """A Kubernetes object and who brings it to the cluster: `cdk deploy` or the launcher's `cluster up` and `serve up`."""

    applied_by: str
    body: Json


@dataclass(frozen=True)
class Side:
    """A revision. `facts` is what its own code says of the environment (facts.py); without stacks there is no such environment."""

    revision: str
    stacks: tuple[StackTemplate, ...] = ()
    objects: Mapping[str, Object] = field(default_factory=dict)
    facts: Json = field(default_factory=dict)

    @property
    def templates(self) -> Mapping[str, Json]:
        """Templates by stack."""
        return {stack.name: stack.template for stack in self.stacks}


def objects(stacks: Iterable[StackTemplate], written: Mapping[str, Iterable[Json]]) -> dict[str, Object]:
    """Kubernetes objects by `Kind namespace/name`: those in the stacks' manifests, and the charts that were written to dist/."""
    found: dict[str, Object] = {}
    for chart, members in written.items():
        by = _APPLIED_BY.get(chart, "cdk deploy")
        found |= {key_of(member): Object(by, member) for member in members}
    for stack in stacks:
        for body in stack.resources.values():
            if body.get("Type") == MANIFEST_TYPE:
                for member in manifest(body):
                    found.setdefault(key_of(member), Object("cdk deploy", member))
    return found


def key_of(member: Json) -> str:
    """`Kind namespace/name`, or `Kind name` for what has no namespace."""
    metadata = member.get("metadata", {})
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{member.get('kind', '?')} {where}{metadata.get('name', '?')}"


def manifest(body: Json, mark: Callable[[str], str] = str) -> Iterator[Json]:
    """Objects of one manifest resource; `mark` may write the name of a reference in another way."""
    import json

    try:
        members = json.loads(str(plain(body.get("Properties", {}).get("Manifest", "[]"), mark)))
    except ValueError:
        return
    for member in members if isinstance(members, list) else [members]:
        if isinstance(member, dict):
            metadata = dict(member.get("metadata", {}))
            labels = {name: value for name, value in metadata.get("labels", {}).items() if not name.startswith(_PRUNE_LABEL)}
            metadata.pop("labels", None)
            yield {**member, "metadata": {**metadata, **({"labels": labels} if labels else {})}}
