"""What a rule judges, how rules are registered, and the look-ups that several of them make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from local.cloud.store import Cloud, Properties

Action = Literal["create", "update", "delete"]
# message, HandlerErrorCode
Refused = tuple[str, str]


class Asked:
    """What a rule judges: the action, the properties (and those before an update), and the cloud as it stands."""

    def __init__(
        self, cloud: Cloud, action: Action, resource_type: str, properties: Properties, old: Properties | None, physical_id: str
    ) -> None:
        self.cloud, self.action, self.type = cloud, action, resource_type
        self.properties, self.old, self.id = properties, old or {}, physical_id

    def get(self, path: str, default: Any = None) -> Any:
        found: Any = self.properties
        for step in path.split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        return default if found is None else found


Rule = Callable[[Asked], Iterator[str]]
_RULES: list[tuple[str, tuple[Action, ...], str, Rule]] = []


def refuses(resource_type: str, *actions: Action, code: str = "InvalidRequest") -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.append((resource_type, actions or ("create", "update"), code, rule))
        return rule

    return register


def judged_types() -> frozenset[str]:
    """Types with a rule. Rules ask services, so these types must not be provisioned on the event loop."""
    return frozenset(resource_type for resource_type, *_ in _RULES)


def refusals(
    cloud: Cloud, action: Action, resource_type: str, properties: Properties, *, old: Properties | None = None, physical_id: str = ""
) -> Iterator[Refused]:
    """Every refusal of this action, with its CloudFormation error code."""
    asked = Asked(cloud, action, resource_type, properties, old, physical_id)
    for ruled, actions, code, rule in _RULES:
        if ruled == resource_type and action in actions:
            for message in rule(asked):
                yield message, code


def is_missing(error: Exception) -> bool:
    code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
    return "NotFound" in code or "NoSuch" in code or code == "404"


def eks_cluster(cloud: Cloud, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = cloud.client("eks").describe_cluster(name=name)["cluster"]
        return found
    except Exception as error:
        if is_missing(error):
            return None
        raise


def absent(cloud: Cloud, subnets: list[str], groups: list[str]) -> Iterator[str]:
    ec2 = cloud.client("ec2")
    known = {s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]} if subnets else set()
    for subnet in subnets:
        if subnet not in known:
            yield f"The subnet ID '{subnet}' does not exist"
    known = {g["GroupId"] for g in ec2.describe_security_groups()["SecurityGroups"]} if groups else set()
    for group in groups:
        if group not in known:
            yield f"The security group '{group}' does not exist"
