"""The Kubernetes 1.34 schemas (from the `kubernetes-validate` package) and what they say about an object.

The strict variants forbid unknown fields, as the API server does for `fieldValidation=Strict`, kubectl's default:
https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

KUBERNETES_VERSION = "1.34"
_DEFINITIONS = "/$defs/"
POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")
_NULLABLE_ANY: Mapping[str, Any] = {}


@cache
def _document() -> dict[str, Any]:
    path = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES_VERSION}.0-local-strict" / "_definitions.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    # The published schemas call every scalar nullable and a quantity "string or number" with both halves nullable, so
    # a null would match twice and an integer quantity is fine: say it once.
    document["$defs"]["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {
        "type": ["string", "number", "null"],
        "format": "quantity",
    }
    document["$defs"]["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"type": ["string", "integer", "null"]}
    return document


def definitions() -> Mapping[str, Mapping[str, Any]]:
    """All definitions by their full name (`io.k8s.api.core.v1.Pod`)."""
    return _document()["$defs"]  # type: ignore[no-any-return]


@cache
def _validator(name: str) -> Draft202012Validator:
    document = _document()
    checker = Draft202012Validator.FORMAT_CHECKER.__class__(formats=())
    checker.checks("quantity")(_is_quantity)
    checker.checks("byte")(_is_base64)
    checker.checks("int32")(lambda value: not _is_integer(value) or -(2**31) <= value < 2**31)
    schema = {
        "$schema": document["$schema"],
        "$id": document["$id"],
        "$defs": document["$defs"],
        "$ref": f"#{_DEFINITIONS}{name}",
    }
    return Draft202012Validator(schema, format_checker=checker)


def _is_quantity(value: object) -> bool:
    return not isinstance(value, str) or QUANTITY.fullmatch(value) is not None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_base64(value: object) -> bool:
    if not isinstance(value, str):
        return True
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def problems(value: object, definition: str, *, at: str = "") -> list[str]:
    """Everything in `value` that the definition does not allow, one sentence each, with the path of the field."""
    found: list[str] = []
    for error in _validator(definition).iter_errors(value):
        found += [_sentence(leaf, at) for leaf in _leaves(error)]
    return sorted(set(found))


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    if not error.context:
        yield error
        return
    for inner in error.context:
        yield from _leaves(inner)


def _sentence(error: ValidationError, at: str) -> str:
    path = field_path([*error.absolute_path], at=at)
    if error.validator == "additionalProperties":
        known = set(error.schema.get("properties", {}))
        unknown = sorted(set(error.instance) - known)
        return "; ".join(f'strict decoding error: unknown field "{f"{path}.{name}" if path else name}"' for name in unknown)
    if error.validator == "required":
        missing = sorted(set(error.validator_value) - set(error.instance))
        return "; ".join(f"{f'{path}.{name}' if path else name}: Required value" for name in missing)
    shown = json.dumps(error.instance, default=str)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    if error.validator == "type":
        wanted = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        return f"{path}: Invalid value: {shown}: must be of type {' or '.join(w for w in wanted if w != 'null')}"
    if error.validator == "format":
        return f"{path}: Invalid value: {shown}: is not a valid {error.validator_value}"
    if error.validator == "enum":
        allowed = ", ".join(json.dumps(choice) for choice in error.validator_value)
        return f"{path}: Unsupported value: {shown}: supported values: {allowed}"
    return f"{path}: Invalid value: {shown}: {error.message}"


def field_path(parts: list[str | int], *, at: str = "") -> str:
    """`spec.containers[0].name`, the way the API server names a field."""
    text = at
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def resolve(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema behind a `$ref`, with the list annotations that stand beside the `$ref` kept."""
    if schema is None:
        return _NULLABLE_ANY
    reference = schema.get("$ref")
    if reference is None:
        return schema
    return definitions()[reference.rsplit("/", 1)[-1]]


def member(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The schema of field `name` of an object, or an empty one where nothing is known."""
    known = schema.get("properties", {}).get(name)
    if known is None:
        extra = schema.get("additionalProperties")
        known = extra if isinstance(extra, Mapping) else None
    return resolve(known)


def list_type(schema: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """(`map`, keys), (`set`, ()) or (`atomic`, ()): how server-side apply merges a list.

    https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy
    """
    kind = schema.get("x-kubernetes-list-type", "atomic")
    return (kind, tuple(schema.get("x-kubernetes-list-map-keys", ()))) if kind == "map" else (kind, ())


# What is known of Ray's custom resources: their pod templates are Kubernetes' own, so those merge as in a Deployment.
_RAY_CLUSTER: Mapping[str, Any] = {
    "properties": {
        "headGroupSpec": {"properties": {"template": {"$ref": f"#{_DEFINITIONS}{POD_TEMPLATE}"}}},
        "workerGroupSpecs": {"items": {"properties": {"template": {"$ref": f"#{_DEFINITIONS}{POD_TEMPLATE}"}}}},
    }
}
_CUSTOM: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("ray.io", "RayCluster"): {"spec": _RAY_CLUSTER},
    ("ray.io", "RayService"): {"spec": {"properties": {"rayClusterConfig": _RAY_CLUSTER}}},
    ("ray.io", "RayJob"): {"spec": {"properties": {"rayClusterSpec": _RAY_CLUSTER}}},
}


def schema_of(group: str, kind: str, definition: str | None) -> Mapping[str, Any]:
    """The schema by which objects of a kind are merged; custom kinds know their metadata and, for Ray, pod templates."""
    if definition is not None:
        return definitions()[definition]
    metadata = {"metadata": {"$ref": f"#{_DEFINITIONS}{OBJECT_META}"}}
    return {"properties": {**metadata, **_CUSTOM.get((group, kind), {})}}
