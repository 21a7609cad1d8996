"""One provider for every CloudFormation type: refuse what AWS would refuse, keep the rest, give back what AWS would."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from local.cloud import backing, rules
from local.cloud.attributes import attributes, generated_name, reference
from local.cloud.schemas import Schema, schema
from local.cloud.store import Cloud, Properties, Resource

log = logging.getLogger("local.cloud.provider")

# CloudFormation adds these itself; a schema's tag pattern refuses keys that begin so.
_OWN_TAGS = "aws:"


class Refusal(ValueError):
    """A resource that AWS would refuse, in AWS's words."""


def handler_error(message: str, code: str = "InvalidRequest") -> Refusal:
    """A refusal by the service, as CloudFormation shows it."""
    return Refusal(f'Resource handler returned message: "{message}" (HandlerErrorCode: {code})')


def validated(resource_type: str, properties: Mapping[str, Any], logical_id: str) -> None:
    """Refuse properties that do not fit the type's schema. Raises Refusal with all problems at once."""
    found = schema(resource_type).problems(_template_properties(properties))
    if found:
        listed = "\n".join(found)
        raise Refusal(f"Properties validation failed for resource {logical_id} with message:\n{listed}")


def judged(
    cloud: Cloud,
    action: rules.Action,
    resource_type: str,
    logical_id: str,
    properties: Properties,
    old: Properties | None = None,
    physical_id: str = "",
) -> None:
    """Refuse what the service refuses. Raises Refusal with every reason (the services themselves stop at the first)."""
    found = list(rules.refusals(cloud, action, resource_type, properties, old=old, physical_id=physical_id))
    if found:
        raise handler_error(" ".join(message for message, _ in found), found[0][1])


def create(cloud: Cloud, resource_type: str, logical_id: str, properties: Properties, stack: str) -> tuple[str, Properties]:
    """Make a resource that ministack lacks. Returns its Ref value and its attributes. Raises Refusal."""
    known = schema(resource_type)
    properties = _named(known, properties, stack, logical_id)
    made = attributes(known, properties)
    resource = Resource(resource_type, "", logical_id, stack, properties, made)
    resource.id = reference(known, properties, made)
    if cloud.store.get(resource_type, resource.id):
        raise handler_error(f"Resource of type '{resource_type}' with identifier '{resource.id}' already exists.", "AlreadyExists")
    explicit = known.name and properties.get(known.name)
    elsewhere = known.identifier and known.name not in known.identifier
    if explicit and elsewhere and any(cloud.store.where(resource_type, **{str(known.name): explicit})):
        raise handler_error(f"{known.name} {explicit} already exists", "AlreadyExists")
    try:
        backing.create(cloud, resource)
    except Exception as error:
        backing.abandon(cloud, resource)
        raise handler_error(_words(error), "GeneralServiceException") from error
    resource.id = reference(known, resource.properties, resource.attributes)
    cloud.store.add(resource)
    return resource.id, dict(resource.attributes)


def update(
    cloud: Cloud, resource_type: str, physical_id: str, old: Properties, new: Properties, stack: str, logical_id: str
) -> tuple[str, Properties]:
    """Change a resource in place, or make its successor when a create-only property changed. Raises Refusal."""
    known = schema(resource_type)
    resource = cloud.store.get(resource_type, physical_id)
    if resource is None:
        raise handler_error(f"Resource of type '{resource_type}' with identifier '{physical_id}' was not found.", "NotFound")
    # CloudFormation compares templates: a name that it made itself is in no template.
    replacing = known.replaced_by(_template_properties(old), _template_properties(new))
    if replacing:
        return create(cloud, resource_type, logical_id, new, stack)
    if known.name and known.name in resource.properties:
        new = {known.name: resource.properties[known.name], **new}
    before, resource.properties = resource.properties, dict(new)
    try:
        backing.update(cloud, resource, before)
    except Exception as error:
        resource.properties = before
        raise handler_error(_words(error), "GeneralServiceException") from error
    return physical_id, dict(resource.attributes)


def delete(cloud: Cloud, resource_type: str, physical_id: str) -> None:
    """Remove a resource; one that is gone already is no error, as in AWS's handlers. Raises Refusal."""
    resource = cloud.store.get(resource_type, physical_id)
    if resource is None:
        return
    try:
        backing.delete(cloud, resource)
    except Exception as error:
        raise handler_error(_words(error), "GeneralServiceException") from error
    cloud.store.remove(resource_type, physical_id)


def _named(known: Schema, properties: Properties, stack: str, logical_id: str) -> Properties:
    """A name for a resource whose identifier is a name that the template leaves out."""
    name = known.name
    if name and name not in properties and name not in known.document.get("required", ()):
        limit = min(63, int(known.definition(name).get("maxLength", 63)))
        return {**properties, name: generated_name(stack, logical_id, limit=limit)}
    return dict(properties)


def _template_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties as the template has them: without the tags that CloudFormation adds."""
    kept = dict(properties)
    for name in ("Tags", "HostedZoneTags", "FileSystemTags"):
        tags = kept.get(name)
        if isinstance(tags, list):
            tags = [t for t in tags if not (isinstance(t, dict) and str(t.get("Key", "")).startswith(_OWN_TAGS))]
        elif isinstance(tags, dict):
            tags = {k: v for k, v in tags.items() if not str(k).startswith(_OWN_TAGS)}
        if tags:
            kept[name] = tags
        else:
            kept.pop(name, None)
    return kept


def _words(error: Exception) -> str:
    """An error as the service words it: botocore puts `An error occurred (Code) when calling ...:` before it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return f"{response['Error'].get('Code', '')}: {response['Error'].get('Message', '')}"
    return str(error)
