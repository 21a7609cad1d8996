"""What CloudFormation keeps when a delete fails: with the resource that did not go, everything that it needs.

ministack goes on with the rest. So a drain that refuses would lose what it guards here, and not on AWS, where the order of a delete is the
order of a create turned round. https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-attribute-dependson.html
"""

from __future__ import annotations

from typing import Any


class StillNeeded(RuntimeError):
    """A resource whose dependent is still there."""


def install() -> None:
    """Let the delete of a stack refuse what a resource that stayed depends on."""
    from ministack.services.cloudformation import _stacks, stacks

    delete = stacks._delete_resource

    def guarded(resource_type: str, physical_id: str, properties: Any, stack_name: str, logical_id: str, *more: Any, **named: Any) -> Any:
        stack = _stacks.get(stack_name) or {}
        if stack.get("StackStatus") == "DELETE_IN_PROGRESS":
            # Dependents come first, so one that is still there did not go.
            there = stack.get("_resources", {})
            definitions = (stack.get("_template") or {}).get("Resources", {})
            names = set(there)
            left = sorted(
                other for other in names - {logical_id} if logical_id in stacks._extract_deps(definitions.get(other, {}), names)
            )  # fmt: skip
            if left:
                raise StillNeeded(f"kept, since {', '.join(left)} was not deleted")
        return delete(resource_type, physical_id, properties, stack_name, logical_id, *more, **named)

    stacks._delete_resource = guarded
