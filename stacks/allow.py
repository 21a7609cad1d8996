"""What a role may do, as one statement of its policy, with the reason of every wildcard in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aws_cdk import aws_iam as iam


@dataclass(frozen=True)
class Allow:
    """One Allow statement. `why` says why a wildcard is there: without it, one is refused (ValueError)."""

    actions: Sequence[str]
    resources: Sequence[str]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def __post_init__(self) -> None:
        if not self.why and any("*" in text for text in (*self.actions, *self.resources)):
            raise ValueError(f"say why {', '.join(self.actions)} on {', '.join(self.resources)} needs a wildcard")

    def statement(self) -> iam.PolicyStatement:
        """As CDK writes it into a policy."""
        return iam.PolicyStatement(actions=list(self.actions), resources=list(self.resources), conditions=dict(self.conditions) or None)
