"""CloudFormation's resource schemas: what a type takes, what it returns, which changes replace it.

The schemas are those of AWS's registry, as cfn-lint's wheel carries them (https://github.com/aws-cloudformation/cfn-lint,
`cfnlint/data/schemas`). Validation speaks as CloudFormation does (`#: required key [SubnetIds] not found`), and is as
lenient about numbers and booleans written as strings as CloudFormation is.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import regex
from jsonschema import Draft7Validator, TypeChecker
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from config.cloudformation import Json, ResourceType, UnknownType, folder, types
from config.cloudformation import document as published
from local.cloud import REGION

__all__ = ["Schema", "UnknownType", "schema", "types"]


@dataclass(frozen=True)
class Schema(ResourceType):
    """One resource type, with what CloudFormation checks."""

    # Further constraints that cfn-lint keeps beside the schema (for instance FSx capacity by file system type).
    extensions: tuple[Json, ...] = ()

    def definition(self, path: str) -> Json:
        """The schema of an attribute path (`CertificateAuthority/Data`), references resolved."""
        found: Json = self.document
        for step in path.split("/"):
            found = self._resolve(self._resolve(found).get("properties", {}).get(step, {}))
        return found

    def _resolve(self, schema: Json) -> Json:
        while "$ref" in schema:
            target: Any = self.document
            for step in str(schema["$ref"]).removeprefix("#/").split("/"):
                target = target[step]
            schema = target
        return schema

    @cached_property
    def _validators(self) -> tuple[Validator, ...]:
        document = self.document
        if self.type in _CALLS:
            # Only now: the models of the larger services take half a second to load.
            extended = copy.deepcopy(dict(self.document))
            _add_enums(extended, *_CALLS[self.type])
            document = extended
        return tuple(_Validator(each) for each in (document, *self.extensions))

    def problems(self, properties: Json) -> list[str]:
        """Everything that CloudFormation would refuse in these properties."""
        given = sorted(set(properties) & {name for name in self.read_only if "/" not in name})
        found = [f"#: encountered readOnly properties in the request: [{', '.join(given)}]"] if given else []
        for validator in self._validators:
            found += [message for error in validator.iter_errors(dict(properties)) for message in _messages(error)]
        return sorted(set(found))


@cache
def schema(resource_type: str) -> Schema:
    """The schema of a type. Raises UnknownType."""
    document = copy.deepcopy(published(resource_type))
    extensions = []
    for path in sorted((folder() / "extensions" / resource_type.lower().replace("::", "_")).glob("*.json")):
        extension = json.loads(path.read_text())
        if path.stem.endswith("_enum"):
            # One list of values for each region, for the property that the file is named after.
            allowed = extension.get(REGION, {}).get("enum")
            if allowed:
                _set_enum(document, path.stem.removesuffix("_enum").replace("_", ""), allowed)
        elif "allOf" in extension or "anyOf" in extension or "oneOf" in extension:
            extensions.append(extension)
    return Schema(type=resource_type, document=document, extensions=tuple(extensions))


# The create call whose enums stand in where a schema has none (a schema says `FileSystemType: string`, the API a list).
_CALLS = {
    "AWS::FSx::FileSystem": ("fsx", "CreateFileSystem"),
    "AWS::SageMaker::Cluster": ("sagemaker", "CreateCluster"),
    "AWS::SageMaker::Domain": ("sagemaker", "CreateDomain"),
    "AWS::Grafana::Workspace": ("grafana", "CreateWorkspace"),
    "AWS::EKS::Cluster": ("eks", "CreateCluster"),
    "AWS::EC2::NatGateway": ("ec2", "CreateNatGateway"),
    "AWS::EC2::VPCEndpoint": ("ec2", "CreateVpcEndpoint"),
}


def _add_enums(document: dict[str, Any], service: str, operation: str) -> None:
    import botocore.session

    model = botocore.session.get_session().get_service_model(service)
    definitions = document.get("definitions", {})

    def walk(holder: dict[str, Any], shape: Any, seen: frozenset[str]) -> None:
        while "$ref" in holder:
            name = holder["$ref"].rsplit("/", 1)[-1]
            if name in seen:
                return
            holder, seen = definitions[name], seen | {name}
        if shape.type_name == "structure":
            members = {name.lower(): member for name, member in shape.members.items()}
            for name, child in holder.get("properties", {}).items():
                if name.lower() in members:
                    walk(child, members[name.lower()], seen)
        elif shape.type_name == "list" and isinstance(holder.get("items"), dict):
            walk(holder["items"], shape.member, seen)
        elif holder.get("type") == "string" and "enum" not in holder and getattr(shape, "enum", None):
            holder["enum"] = list(shape.enum)

    walk(document, model.operation_model(operation).input_shape, frozenset())


def _set_enum(document: dict[str, Any], wanted: str, allowed: list[str]) -> None:
    for holder in (document, *document.get("definitions", {}).values()):
        for name, child in (holder.get("properties") or {}).items():
            if name.lower() == wanted and isinstance(child, dict):
                holder["properties"][name] = {"type": "string", "enum": allowed}


# --- validation as CloudFormation does it ---


def _is_integer(_: object, value: object) -> bool:
    if isinstance(value, str):
        return bool(regex.fullmatch(r"-?\d+", value))
    return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def _is_number(_: object, value: object) -> bool:
    if isinstance(value, str):
        return bool(regex.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value))
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: TypeChecker = Draft7Validator.TYPE_CHECKER.redefine_many(
    {
        "string": lambda _, value: isinstance(value, str | int | float | bool),
        "integer": _is_integer,
        "number": _is_number,
        "boolean": lambda _, value: isinstance(value, bool) or value in ("true", "false"),
    }
)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _enum(_: Validator, allowed: list[Any], value: object, __: Json) -> Iterator[ValidationError]:
    if isinstance(value, dict | list):
        if value not in allowed:
            yield ValidationError(f"{value} is not a valid enum value")
    elif _text(value) not in {_text(item) for item in allowed}:
        yield ValidationError(f"{value} is not a valid enum value")


@cache
def _pattern_of(pattern: str) -> Any:
    try:
        return regex.compile(pattern)
    except regex.error:
        return None  # a few schemas hold patterns of another dialect: no statement about them


def _pattern(_: Validator, pattern: str, value: object, __: Json) -> Iterator[ValidationError]:
    if isinstance(value, str | int | float):
        compiled = _pattern_of(pattern)
        if compiled is not None and not compiled.search(_text(value)):
            yield ValidationError("failed validation constraint for keyword [pattern]")


def _limit(keyword: str) -> Any:
    def check(_: Validator, limit: float, value: object, __: Json) -> Iterator[ValidationError]:
        if not _is_number(None, value):
            return
        number = float(value)  # type: ignore[arg-type]
        if keyword == "minimum" and number < limit:
            yield ValidationError(f"{value} is not greater or equal to {limit}")
        if keyword == "maximum" and number > limit:
            yield ValidationError(f"{value} is not less or equal to {limit}")

    return check


def _length(keyword: str) -> Any:
    def check(_: Validator, limit: int, value: object, __: Json) -> Iterator[ValidationError]:
        if isinstance(value, str):
            wrong = len(value) < limit if keyword == "minLength" else len(value) > limit
            if wrong:
                yield ValidationError(f"expected {keyword}: {limit}, actual: {len(value)}")

    return check


def _required(_: Validator, names: list[str], value: object, __: Json) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for name in names:
            if name not in value:
                yield ValidationError(f"required key [{name}] not found")


def _additional(validator: Validator, allowed: Any, value: object, schema: Json) -> Iterator[ValidationError]:
    if not isinstance(value, dict) or allowed is True:
        return
    known = schema.get("properties", {})
    patterns = [_pattern_of(p) for p in schema.get("patternProperties", {})]
    for name in value:
        if name in known or any(p is None or p.search(name) for p in patterns):
            continue
        if allowed is False:
            yield ValidationError(f"extraneous key [{name}] is not permitted")
        else:
            yield from validator.descend(value[name], allowed, path=name)


def _pattern_properties(validator: Validator, schemas: Json, value: object, _: Json) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, below in schemas.items():
            compiled = _pattern_of(pattern)
            for name, item in value.items():
                if compiled is not None and compiled.search(name):
                    yield from validator.descend(item, below, path=name, schema_path=pattern)


def _xor(_: Validator, names: list[str], value: object, __: Json) -> Iterator[ValidationError]:
    if isinstance(value, dict) and sum(name in value for name in names) != 1:
        yield ValidationError(f"exactly one of [{', '.join(names)}] is required")


def _excluded(_: Validator, rules: Json, value: object, __: Json) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for name, others in rules.items():
            both = sorted(set(others) & set(value))
            if name in value and both:
                yield ValidationError(f"[{name}] must not be given together with [{', '.join(both)}]")


_Validator = extend(
    Draft7Validator,
    validators={
        "enum": _enum,
        "pattern": _pattern,
        "minimum": _limit("minimum"),
        "maximum": _limit("maximum"),
        "minLength": _length("minLength"),
        "maxLength": _length("maxLength"),
        "required": _required,
        "additionalProperties": _additional,
        "patternProperties": _pattern_properties,
        "requiredXor": _xor,
        "dependentExcluded": _excluded,
        "format": lambda *_: iter(()),
    },
    type_checker=_TYPES,
)


def _messages(error: ValidationError) -> Iterator[str]:
    where = "#" + "".join(f"/{step}" for step in error.absolute_path)
    if error.validator == "type":
        expected = error.validator_value if isinstance(error.validator_value, str) else " or ".join(error.validator_value)
        found = {"dict": "JSONObject", "list": "JSONArray", "str": "String", "bool": "Boolean", "NoneType": "Null"}
        kind = type(error.instance).__name__
        yield f"{where}: expected type: {str(expected).title()}, found: {found.get(kind, 'Number')}"
    elif error.validator in ("anyOf", "oneOf") and error.context:
        yield f"{where}: #: no subschema matched out of the total {len(error.validator_value)} subschemas"
    else:
        yield f"{where}: {error.message}"
