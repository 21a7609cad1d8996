"""What replaces a resource: ours knows all that `cdk diff` knows, for every type that this project makes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from config.cloudformation import UnknownType, resource_type
from config.load import ROOT
from operations.review.sides import Side

# CDK's database, made of CloudFormation's user guide and schemas: what its CLI decides by.
DATABASE = ROOT / "node_modules" / "aws-cdk" / "db.json.gz"


def _paths(entities: Any, properties: dict[str, Any], path: tuple[str, ...] = (), seen: frozenset[str] = frozenset()) -> Iterator[str]:
    for name, each in properties.items():
        if each.get("causesReplacement") == "yes":
            yield "/".join((*path, name))
        text = json.dumps(each.get("type"))
        for below in re.findall(r'"\$ref": "([^"]+)"', text):
            if below in entities and below not in seen:
                deeper = (*path, name, *(("*",) if '"array"' in text else ()))
                yield from _paths(entities, entities[below]["properties"], deeper, seen | {below})


def _used(value: Any, path: str) -> bool:
    """Whether a resource's properties have anything at a path."""
    for step in path.split("/"):
        if isinstance(value, list):
            value = value[0] if value else None
        if step != "*":
            value = value.get(step) if isinstance(value, dict) else None
    return value is not None


def test_no_replacement_that_cdk_diff_knows_is_unknown_here(bases: Callable[[str], Side]) -> None:
    schema = json.loads(gzip.decompress(DATABASE.read_bytes()))["schema"]
    types = {each["cloudFormationType"]: each for each in schema["resource"]["entities"]}
    definitions = {each["$id"]: each for each in schema["typeDefinition"]["entities"]}
    missing = set()
    for stack in bases("reference").stacks:
        for body in stack.resources.values():
            try:
                ours = resource_type(body["Type"])
            except UnknownType:
                continue
            known = {*ours.create_only, *ours.documented, *ours.conditional}
            for path in _paths(definitions, types[body["Type"]]["properties"]):
                covered = any(path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in known)
                if not covered and _used(body.get("Properties", {}), path):
                    missing.add((body["Type"], path))
    assert not missing


def test_documented_paths_are_properties() -> None:
    for name in ("AWS::EC2::EIP", "AWS::EKS::Cluster", "AWS::FSx::FileSystem", "AWS::S3::Bucket", "AWS::SageMaker::Domain"):
        known = resource_type(name)
        assert known.documented
        assert all(path.split("/")[0] in known.properties for path in known.documented)
        assert not set(known.documented) & set(known.create_only)
