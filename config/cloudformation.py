"""CloudFormation's resource types: which properties they have, and a change of which one replaces the resource.

The schemas are those of AWS's registry, as cfn-lint's wheel carries them (https://github.com/aws-cloudformation/cfn-lint,
`cfnlint/data/schemas`; what the keys mean: https://docs.aws.amazon.com/cloudformation-cli/latest/userguide/resource-type-schema.html).
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]
REGION = "us-west-2"

# Where CloudFormation's user guide says "Update requires: Replacement" and the schema of the registry does not (types written before
# the registry). The guide is older than some services' updates, so this errs on the side of a warning, as `cdk diff` does.
_DOCUMENTED: Mapping[str, tuple[str, ...]] = {
    "AWS::EC2::EIP": ("Domain",),
    "AWS::EKS::Cluster": ("KubernetesNetworkConfig", "ResourcesVpcConfig/SecurityGroupIds", "ResourcesVpcConfig/SubnetIds"),
    "AWS::FSx::FileSystem": (
        "FileSystemTypeVersion", "LustreConfiguration/CopyTagsToBackups", "LustreConfiguration/DeploymentType",
        "LustreConfiguration/DriveCacheType", "LustreConfiguration/ExportPath", "LustreConfiguration/ImportPath",
        "LustreConfiguration/ImportedFileChunkSize", "LustreConfiguration/PerUnitStorageThroughput", "StorageType",
    ),
    "AWS::S3::Bucket": ("ObjectLockEnabled",),
    "AWS::SageMaker::Domain": ("AppNetworkAccessType", "SubnetIds", "Tags"),
    "AWS::SageMaker::UserProfile": ("Tags",),
}  # fmt: skip


class UnknownType(LookupError):
    """No such CloudFormation type in this region."""


@cache
def folder() -> Path:
    """Folder of the schemas. Raises ModuleNotFoundError with the way to get them."""
    # Found without importing it: `import cfnlint` loads every rule, 2.5 s.
    found = importlib.util.find_spec("cfnlint")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("cfn-lint is not installed; `pip install -r requirements.txt` brings it")
    return Path(found.origin).parent / "data" / "schemas"


@cache
def types() -> Mapping[str, str]:
    """Every CloudFormation type of the region and the name of its schema file."""
    found: dict[str, str] = json.loads((folder() / "providers" / f"{REGION}.json").read_text())
    return found


@cache
def document(resource_type: str) -> dict[str, Any]:
    """The schema of a type as it is published. Raises UnknownType."""
    try:
        name = types()[resource_type]
    except KeyError:
        raise UnknownType(resource_type) from None
    found: dict[str, Any] = json.loads((folder() / "resources" / f"{name}.json").read_text())
    return found


@dataclass(frozen=True)
class ResourceType:
    """One resource type. Property paths have slashes, and `*` for each member of a list."""

    type: str
    document: Json

    @property
    def properties(self) -> Json:
        """Schemas of the properties."""
        found: Json = self.document.get("properties", {})
        return found

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(path.removeprefix("/properties/") for path in self.document.get(key, ()))

    @cached_property
    def identifier(self) -> tuple[str, ...]:
        """Paths of what identifies a resource of the type."""
        return self._names("primaryIdentifier")

    @cached_property
    def read_only(self) -> tuple[str, ...]:
        """Attribute paths; those below a list (`Groups/*/Count`) are left out."""
        return tuple(name for name in self._names("readOnlyProperties") if "*" not in name)

    @cached_property
    def create_only(self) -> tuple[str, ...]:
        """Paths whose change replaces the resource."""
        return self._names("createOnlyProperties")

    @cached_property
    def conditional(self) -> tuple[str, ...]:
        """Paths whose change replaces the resource in some cases that the schema does not tell."""
        return self._names("conditionalCreateOnlyProperties")

    @cached_property
    def name(self) -> str | None:
        """The property that is the resource's explicit name, if the type has one (a parent's name, as an add-on's ClusterName, is none)."""
        kind = self.type.rsplit("::", 1)[-1]
        for candidate in (*self.identifier, *self.create_only):
            if candidate in ("Name", f"{kind}Name") and candidate not in self.read_only:
                return candidate
        return None

    def replaced_by(self, old: Json, new: Json) -> list[str]:
        """The create-only paths that differ."""
        return _differing(self.create_only, old, new)

    @property
    def documented(self) -> tuple[str, ...]:
        """Paths whose change replaces the resource by the user guide, though not by the schema."""
        return _DOCUMENTED.get(self.type, ())

    def documented_by(self, old: Json, new: Json) -> list[str]:
        """The documented paths that differ."""
        return _differing(self.documented, old, new)

    def perhaps_replaced_by(self, old: Json, new: Json) -> list[str]:
        """The paths that differ and that replace the resource in some cases."""
        return _differing(self.conditional, old, new)


@cache
def resource_type(name: str) -> ResourceType:
    """A resource type by its name. Raises UnknownType."""
    return ResourceType(name, document(name))


def _differing(paths: tuple[str, ...], old: Json, new: Json) -> list[str]:
    return [path for path in paths if _at(old, path.split("/")) != _at(new, path.split("/"))]


def _at(value: Any, steps: list[str]) -> Any:
    """What stands at a path; of a list, what stands there in each member."""
    for number, step in enumerate(steps):
        if step == "*":
            return [_at(item, steps[number + 1 :]) for item in value] if isinstance(value, list) else None
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def needs(body: Json) -> set[str]:
    """Logical ids that a resource of a template waits for: DependsOn, Ref, Fn::GetAtt and Fn::Sub (parameters and pseudo ones, too)."""
    depends = body.get("DependsOn", [])
    return ({depends} if isinstance(depends, str) else set(depends)) | set(references(body.get("Properties", {})))


def references(value: Any) -> Iterator[str]:
    """Logical ids that a value refers to, parameters among them."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "Ref":
                yield item
            elif key == "Fn::GetAtt":
                yield item[0] if isinstance(item, list) else item.split(".")[0]
            elif key == "Fn::Sub":
                text = item if isinstance(item, str) else item[0]
                yield from (name.split(".")[0] for name in re.findall(r"\$\{([A-Za-z0-9.]+)\}", text))
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
