"""What a change of templates does to each resource: added, changed, removed or replaced, and the property that forces it.

A replaced resource has a new id, so whatever refers to it changes too: inside its stack by reference, in the stacks above through the
SSM parameter that carries the id. Both are followed until nothing more moves. `cdk diff` follows the first way only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from config.cloudformation import ResourceType, UnknownType, resource_type
from operations.review.sides import MANIFEST_TYPE, Json, Side, StackTemplate, key_of, manifest
from operations.review.values import Difference, differences, plain

Action = Literal["added", "changed", "removed", "replaced"]
NEW = " (replaced)"
# In the place of a property, for a custom resource: a handler that answers with another physical id has replaced it.
ITS_FUNCTION = "what its own function answers"
FILE_SYSTEM, GUARD = "AWS::FSx::FileSystem", "Custom::Guard"
# What a guard of its own stack stands before (stacks/guard.py).
GUARDED = (FILE_SYSTEM, "AWS::EC2::VPC", "AWS::EC2::VPCCidrBlock", "AWS::EC2::Subnet")
# What the guard keeps only where it is set: absent on one side is a change.
OPTIONAL = ("kms_key_id", "backup_id")
_KEPT = ("Retain", "RetainExceptOnCreate")
# Beside the properties; metadata touches nothing that exists.
_ATTRIBUTES = ("DeletionPolicy", "UpdateReplacePolicy", "Condition", "DependsOn")
# Of the template, beside its resources.
_SECTIONS = ("Parameters", "Mappings", "Conditions", "Transform", "Outputs")


@dataclass(frozen=True)
class ResourceChange:
    """One resource. `kept`: what goes by this change stays in the account, unmanaged. `perhaps`: replaced in some cases only."""

    stack: str
    logical_id: str
    type: str
    action: Action
    differences: tuple[Difference, ...] = ()
    forced_by: tuple[str, ...] = ()
    perhaps: bool = False
    kept: bool = False
    # CloudFormation's refusal, where it would refuse: a resource with a name of the user's choosing is never replaced.
    refusal: str = ""
    before: Json = None  # type: ignore[assignment]
    after: Json = None  # type: ignore[assignment]

    @property
    def id(self) -> str:
        """`Stack/LogicalId`."""
        return f"{self.stack}/{self.logical_id}"


@dataclass(frozen=True)
class StackChange:
    """One stack: added, removed, changed or in another account or region, and its resources that are not as they were."""

    name: str
    stack_name: str
    action: Literal["added", "changed", "removed"]
    resources: tuple[ResourceChange, ...] = ()
    # Termination protection, tags: what is the stack's and no resource's.
    differences: tuple[Difference, ...] = ()


def changes(base: Side, head: Side) -> tuple[StackChange, ...]:
    """All stacks that are not as they were, in the order of creation."""
    olds = {(stack.stack_name, stack.place): stack for stack in base.stacks}
    news = {(stack.stack_name, stack.place): stack for stack in head.stacks}
    pairs = [(olds[key], news[key]) for key in news if key in olds]
    moved = _Moved(pairs)
    found = []
    for key, new in news.items():
        old = olds.get(key)
        if old is None:
            found.append(StackChange(new.name, new.stack_name, "added", tuple(_all(new, "added"))))
            continue
        resources = tuple(_of_stack(old, new, moved))
        # What no resource shows a trace of (an output, say) is a change of the stack all the same.
        own = tuple(differences(_own(old), _own(new))) or (() if resources else tuple(differences(_sections(old), _sections(new))))
        if resources or own:
            found.append(StackChange(new.name, new.stack_name, "changed", resources, own))
    # `cdk deploy` does not delete a stack that the app has no more: what is in it stays, and costs.
    found += [StackChange(old.name, old.stack_name, "removed", tuple(_all(old, "removed"))) for key, old in olds.items() if key not in news]
    return tuple(found)


def moved_objects(base: Side, head: Side) -> dict[str, tuple[Json, Json]]:
    """Kubernetes objects of the stacks' manifests in which a reference to something replaced stands, before and after."""
    olds = {(stack.stack_name, stack.place): stack for stack in base.stacks}
    pairs = [(olds[key], stack) for stack in head.stacks if (key := (stack.stack_name, stack.place)) in olds]
    moved = _Moved(pairs)
    found: dict[str, tuple[Json, Json]] = {}
    for old, new in pairs:
        for logical, body in new.resources.items():
            was = old.resources.get(logical, {})
            if body.get("Type") == was.get("Type") == MANIFEST_TYPE:
                before = {key_of(member): member for member in manifest(was)}
                same = {key_of(member): member for member in manifest(body)}
                after = {key_of(member): member for member in manifest(body, moved.mark(new))}
                found |= {key: (before[key], after[key]) for key in after if key in before and after[key] != same.get(key)}
    return found


def _own(stack: StackTemplate) -> dict[str, Any]:
    return {"TerminationProtection": stack.protected, "Tags": dict(stack.tags), "Description": stack.template.get("Description")}


def _sections(stack: StackTemplate) -> dict[str, Any]:
    return {name: plain(stack.template[name]) for name in _SECTIONS if name in stack.template}


def _all(stack: StackTemplate, action: Action) -> Iterator[ResourceChange]:
    for logical, body in stack.resources.items():
        sides = {"after": body} if action == "added" else {"before": body, "kept": body.get("DeletionPolicy") in _KEPT}
        yield ResourceChange(stack.name, logical, str(body.get("Type")), action, **sides)


class _Moved:
    """Which resources are replaced and which SSM parameters carry another value, followed to the end."""

    def __init__(self, pairs: list[tuple[StackTemplate, StackTemplate]]) -> None:
        self.replaced: set[tuple[str, str]] = set()
        self.names: set[str] = set()
        # A parameter that reads another place than before.
        self.read = {(new.stack_name, name) for old, new in pairs for name, place in new.parameters.items()
                     if old.parameters.get(name, place) != place}  # fmt: skip
        before = (-1, -1)
        while before != (len(self.replaced), len(self.names)):
            before = (len(self.replaced), len(self.names))
            for old, new in pairs:
                self._look(old, new)

    def _look(self, old: StackTemplate, new: StackTemplate) -> None:
        for logical, body in new.resources.items():
            was = old.resources.get(logical)
            if was is None:
                continue
            forced, _ = forcing(was, body, self.properties(new, body))
            if forced:
                self.replaced.add((new.stack_name, logical))
            properties = self.properties(new, body)
            if body.get("Type") == "AWS::SSM::Parameter" and plain(was.get("Properties", {})).get("Value") != properties.get("Value"):
                self.names.add(str(properties.get("Name")))

    def mark(self, stack: StackTemplate) -> Callable[[str], str]:
        """How the new side writes a reference: one to what is replaced differs from the same reference before."""

        def marked(name: str) -> str:
            known = (stack.stack_name, name)
            moved = known in self.replaced or known in self.read or stack.parameters.get(name) in self.names
            return name + NEW if moved else name

        return marked

    def properties(self, stack: StackTemplate, body: Json) -> dict[str, Any]:
        """Properties of the new side."""
        made: dict[str, Any] = plain(body.get("Properties", {}), self.mark(stack))
        return made


def forcing(was: Json, body: Json, properties: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Properties that replace a resource, and those that do so in some cases. `properties` are those of `body`, marked."""
    if was.get("Type") != body.get("Type"):
        return ("Type",), ()
    before = plain(was.get("Properties", {}))
    if before == properties:
        return (), ()
    known = _type(str(body.get("Type")))
    if known is None:
        return (), (ITS_FUNCTION,)
    forced = [*known.replaced_by(before, properties), *known.documented_by(before, properties)]
    perhaps = known.perhaps_replaced_by(before, properties)
    # A path inside another one that differs says nothing more.
    return tuple(path for path in forced if not any(path.startswith(f"{other}/") for other in forced)), tuple(perhaps)


def _type(name: str) -> ResourceType | None:
    try:
        return resource_type(name)
    except UnknownType:  # a custom resource: its own handler decides
        return None


def _of_stack(old: StackTemplate, new: StackTemplate, moved: _Moved) -> Iterator[ResourceChange]:
    for logical, body in new.resources.items():
        was = old.resources.get(logical)
        if was is None:
            yield ResourceChange(new.name, logical, str(body.get("Type")), "added", after=body)
        elif (change := _changed(was, body, moved.properties(new, body))) is not None:
            guarded = change.type in GUARDED and change.action == "replaced" and not change.refusal
            refusal = _guarded(old, new, moved) if guarded else change.refusal
            yield replace(change, stack=new.name, logical_id=logical, refusal=refusal)
    for logical, was in old.resources.items():
        if logical not in new.resources:
            kept = was.get("DeletionPolicy") in _KEPT
            yield ResourceChange(new.name, logical, str(was.get("Type")), "removed", before=was, kept=kept)


def _changed(was: Json, body: Json, properties: dict[str, Any]) -> ResourceChange | None:
    kind = str(body.get("Type"))
    found = list(differences(plain(was.get("Properties", {})), properties))
    if kind == MANIFEST_TYPE:  # its objects are compared one by one elsewhere
        same = plain(was.get("Properties", {})).get("Manifest") == plain(body.get("Properties", {})).get("Manifest")
        said = "its objects name what is replaced" if same else "its objects are listed with the Kubernetes objects"
        found = [each for each in found if not each.path.startswith("Manifest")] + [
            Difference("Manifest", "", said) for each in found[:1] if any(other.path.startswith("Manifest") for other in found)
        ]
    before, after = ({name: side[name] for name in _ATTRIBUTES if name in side} for side in (was, body))
    found += differences(before, after)
    if was.get("Type") != kind:
        found.insert(0, Difference("Type", str(was.get("Type")), kind))
    if not found:
        return None
    forced, perhaps = forcing(was, body, properties)
    return ResourceChange(
        "", "", kind, "replaced" if forced else "changed", tuple(found), forced or perhaps, perhaps=bool(perhaps and not forced),
        kept=body.get("UpdateReplacePolicy") in _KEPT, refusal=_refusal(was, properties, kind) if forced else "", before=was, after=body,
    )  # fmt: skip


def _guarded(old: StackTemplate, new: StackTemplate, moved: _Moved) -> str:
    """Why the stack's own guard lets nothing be replaced, or nothing where it does (stacks/handlers/guard.py)."""
    for logical, body in new.resources.items():
        was = old.resources.get(logical)
        if was is None or not was.get("Type") == body.get("Type") == GUARD:
            continue
        before, after = plain(was.get("Properties", {})).get("Kept", {}), moved.properties(new, body).get("Kept", {})
        # What only the newer side keeps, the guard asks of the file system that is there; what only the older one keeps, it lets go.
        before = {**_of_file_system(old), **before}
        known = {*before, *OPTIONAL} & {*after, *OPTIONAL}
        changed = sorted(name for name in known if before.get(name) != after.get(name))
        if changed and not (changed == ["backup_id"] and after.get("backup_id")):
            return f"the stack's guard refuses to let {', '.join(changed)} change, so the deploy fails there and nothing on it is lost"
    return ""


def _of_file_system(stack: StackTemplate) -> dict[str, str]:
    """What a guard that did not keep it yet is told by the stack's file system."""
    for body in stack.resources.values():
        if body.get("Type") == FILE_SYSTEM:
            properties = plain(body.get("Properties", {}))
            lustre = properties.get("LustreConfiguration", {})
            has = {
                "file_system_type_version": properties.get("FileSystemTypeVersion"),
                "storage_type": properties.get("StorageType"),
                "deployment_type": lustre.get("DeploymentType"),
                "per_unit_storage_throughput": lustre.get("PerUnitStorageThroughput"),
            }
            return {name: str(value) for name, value in has.items() if value is not None}
    return {}


def _refusal(was: Json, properties: Mapping[str, Any], kind: str) -> str:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-properties-name.html"""
    known = _type(kind)
    name = known.name if known is not None else None
    if known is None or name is None or properties.get(name) is None:
        return ""
    before = plain(was.get("Properties", {}))
    # Of an add-on the cluster is half of what identifies it: the same name in another cluster is another add-on.
    identity = {name, *(part for part in known.identifier if part not in known.read_only)}
    if any(before.get(part) != properties.get(part) for part in identity):
        return ""
    return f"CloudFormation refuses to replace what has a name of its own ({name}: {properties[name]}), so the deploy fails there"
