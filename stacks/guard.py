"""What may not be replaced and has no name that CloudFormation would keep: a custom resource that comes first and refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from constructs import Construct

from stacks.allow import Allow
from stacks.functions import function, resource
from stacks.stack import EnvironmentStack


def guard(stack: EnvironmentStack, *, what: str, fix: str, kept: Mapping[str, Any], allow: Sequence[Allow] = ()) -> Construct:
    """Fails an update in which one of the properties `kept` differs; what must not be replaced depends on it. None is no property.

    `what` ends "would replace the …", `fix` is the sentence after it (stacks/handlers/guard.py).
    """
    handler = function(stack, "GuardFunction", handler="guard.handler", description=f"Refuses to replace the {what}", allow=allow)
    return resource(
        stack,
        "Guard",
        kind="Guard",
        token=handler.function_arn,
        timeout_minutes=6,
        properties={"What": what, "Fix": fix, "Kept": {name: value for name, value in kept.items() if value is not None}},
    )
