"""Ref values and read-only attributes of resources, shaped as AWS shapes them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from local.cloud import REGION, accounts
from local.cloud.schemas import Schema

# Attribute path -> text. {hex:N} draws N hexadecimal digits, {alnum:N} N lower-case letters and digits, {Name} reads a
# property or an attribute made before it. Formats as in the examples of the API references of each service.
_TEMPLATES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "AWS::APS::Workspace": {
            "WorkspaceId": "ws-{hex:8}-{hex:4}-{hex:4}-{hex:4}-{hex:12}",
            "Arn": "arn:aws:aps:{region}:{account}:workspace/{WorkspaceId}",
            "PrometheusEndpoint": "https://aps-workspaces.{region}.amazonaws.com/workspaces/{WorkspaceId}/",
        },
        "AWS::FSx::FileSystem": {
            "Id": "fs-{hex:17}",
            "ResourceARN": "arn:aws:fsx:{region}:{account}:file-system/{Id}",
            "DNSName": "{Id}.fsx.{region}.amazonaws.com",
            "LustreMountName": "{alnum:8}",
            "RootVolumeId": "",
        },
        "AWS::FSx::DataRepositoryAssociation": {
            "AssociationId": "dra-{hex:17}",
            "ResourceARN": "arn:aws:fsx:{region}:{account}:association/{FileSystemId}/{AssociationId}",
        },
        "AWS::Grafana::Workspace": {
            "Id": "g-{hex:10}",
            "Endpoint": "{Id}.grafana-workspace.{region}.amazonaws.com",
            "Status": "ACTIVE",
            "SsoClientId": "{alnum:26}",
            "SamlConfigurationStatus": "NOT_CONFIGURED",
        },
        "AWS::SageMaker::Cluster": {
            "ClusterArn": "arn:aws:sagemaker:{region}:{account}:cluster/{alnum:12}",
            "ClusterStatus": "InService",
            "FailureMessage": "",
        },
        "AWS::SageMaker::Domain": {
            "DomainId": "d-{alnum:12}",
            "DomainArn": "arn:aws:sagemaker:{region}:{account}:domain/{DomainId}",
            "Url": "https://{DomainId}.studio.{region}.sagemaker.aws",
            "HomeEfsFileSystemId": "fs-{hex:17}",
            "SecurityGroupIdForDomainBoundary": "",
        },
        "AWS::SageMaker::UserProfile": {
            "UserProfileArn": "arn:aws:sagemaker:{region}:{account}:user-profile/{DomainId}/{UserProfileName}",
        },
        "AWS::EC2::VPCCidrBlock": {"Id": "vpc-cidr-assoc-{hex:17}"},
        "AWS::EC2::NetworkAcl": {"Id": "acl-{hex:17}"},
    }
)
_FIELD = re.compile(r"\{(\w+)(?::(\d+))?\}")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def drawn(kind: str, length: int) -> str:
    if kind == "hex":
        return secrets.token_hex((length + 1) // 2)[:length]
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _fill(template: str, known: Mapping[str, Any]) -> str:
    def field(match: re.Match[str]) -> str:
        name, length = match.groups()
        if length:
            return drawn(name, int(length))
        return {"region": REGION, "account": accounts.current()}.get(name) or str(known.get(name, ""))

    return _FIELD.sub(field, template)


def attributes(schema: Schema, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Every read-only attribute of a new resource, by dotted name (`CertificateAuthority.Data`)."""
    templates = _TEMPLATES.get(schema.type, {})
    made: dict[str, Any] = {}
    for path, template in templates.items():
        made[path] = _fill(template, {**properties, **made})
    for path in schema.read_only:
        dotted = path.replace("/", ".")
        if dotted not in made:
            made[dotted] = _guess(schema, path, {**properties, **made})
    return made


def _guess(schema: Schema, path: str, known: Mapping[str, Any]) -> Any:
    """A value of the attribute's type for the types without a template: well-formed, and unlike that of any other resource."""
    _, service, kind = [*schema.type.split("::"), "", ""][:3]
    last = path.rsplit("/", 1)[-1]
    definition = schema.definition(path)
    if definition.get("enum"):
        return definition["enum"][0]
    match definition.get("type", "string"):
        case "boolean":
            return False
        case "integer" | "number":
            return 0
        case "array":
            return []
        case "object":
            return {}
    if last.lower().endswith("arn"):
        name = known.get(schema.name or "") or drawn("hex", 17)
        return f"arn:aws:{service.lower()}:{REGION}:{accounts.current()}:{kind.lower()}/{name}"
    if last.endswith("Id"):
        return f"{kind.lower()}-{drawn('hex', 17)}"
    if "Time" in last or last.endswith("At"):
        return datetime.now(UTC).isoformat()
    return ""


def reference(schema: Schema, properties: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    """What Ref returns: the primary identifier, its parts joined with `|`."""
    if schema.type == "AWS::EC2::EIP":  # its identifier has two parts, Ref gives the address alone
        return str(made["PublicIp"])
    parts = []
    for path in schema.identifier:
        value: Any = made.get(path.replace("/", "."))
        if value in (None, ""):
            value = properties
            for step in path.split("/"):
                value = value.get(step) if isinstance(value, Mapping) else None
        parts.append(str(value or ""))
    return "|".join(parts)


def generated_name(stack: str, logical_id: str, *, limit: int = 63) -> str:
    """A physical name as CloudFormation makes one: stack, logical id and twelve random characters."""
    suffix = drawn("alnum", 12)
    return f"{f'{stack}-{logical_id}'[: limit - 13]}-{suffix}"
