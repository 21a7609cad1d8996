"""Properties are judged as CloudFormation judges them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.cloud.schemas import UnknownType, schema, types

FSX = {"FileSystemType": "LUSTRE", "SubnetIds": ["subnet-0123456789abcdef0"], "StorageCapacity": 1200}


@pytest.mark.parametrize(
    ("resource_type", "properties", "expected"),
    [
        ("AWS::FSx::FileSystem", {"FileSystemType": "LUSTRE"}, "#: required key [SubnetIds] not found"),
        ("AWS::FSx::FileSystem", {**FSX, "Colour": "red"}, "#: extraneous key [Colour] is not permitted"),
        ("AWS::FSx::FileSystem", {**FSX, "StorageCapacity": "much"}, "#/StorageCapacity: expected type: Integer, found: String"),
        ("AWS::FSx::FileSystem", {**FSX, "StorageCapacity": 10}, "#/StorageCapacity: 10 is not greater or equal to 1200"),
        ("AWS::FSx::FileSystem", {**FSX, "FileSystemType": "LUSTR"}, "#/FileSystemType: LUSTR is not a valid enum value"),
        ("AWS::FSx::FileSystem", {**FSX, "Id": "fs-1"}, "#: encountered readOnly properties in the request: [Id]"),
        (
            "AWS::FSx::FileSystem",
            {**FSX, "LustreConfiguration": {"DeploymentType": "PERSISTENT_3"}},
            "#/LustreConfiguration/DeploymentType: PERSISTENT_3 is not a valid enum value",
        ),
        ("AWS::SageMaker::Cluster", {"ClusterName": "a b"}, "#/ClusterName: failed validation constraint for keyword [pattern]"),
        (
            "AWS::SageMaker::Cluster",
            {"InstanceGroups": [{"InstanceGroupName": "g", "InstanceType": "ml.g7e.9xlarge", "InstanceCount": 1, "ExecutionRole": "r"}]},
            "#/InstanceGroups/0/InstanceType: ml.g7e.9xlarge is not a valid enum value",
        ),
        ("AWS::EKS::Addon", {"ClusterName": "", "AddonName": "a"}, "#/ClusterName: expected minLength: 1, actual: 0"),
    ],
)
def test_wrong_properties_are_told_as_cloudformation_tells_them(resource_type: str, properties: dict[str, Any], expected: str) -> None:
    assert expected in schema(resource_type).problems(properties)


def test_all_problems_are_told_at_once() -> None:
    assert len(schema("AWS::FSx::FileSystem").problems({"StorageCapacity": "x", "Colour": 1})) == 4


@pytest.mark.parametrize("instance_type", ["ml.g7e.12xlarge", "ml.r5d.16xlarge", "ml.p5.48xlarge"])
def test_the_instance_types_of_the_environments_are_known(instance_type: str) -> None:
    arn = "arn:aws:iam::000000000000:role/r"
    group = {"InstanceGroupName": "g", "InstanceType": instance_type, "InstanceCount": 1, "ExecutionRole": arn}
    assert schema("AWS::SageMaker::Cluster").problems({"InstanceGroups": [group]}) == []


@given(st.integers(min_value=1200, max_value=10**6))
def test_numbers_may_be_written_as_text(capacity: int) -> None:
    assert schema("AWS::FSx::FileSystem").problems({**FSX, "StorageCapacity": str(capacity)}) == []


@given(st.dictionaries(st.text(min_size=1), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()), max_size=4))
@settings(max_examples=60)
def test_any_properties_get_an_answer_and_unknown_ones_are_refused(properties: dict[str, Any]) -> None:
    problems = schema("AWS::EKS::Addon").problems(properties)
    for name in set(properties) - set(schema("AWS::EKS::Addon").properties):
        assert f"#: extraneous key [{name}] is not permitted" in problems


def test_create_only_changes_replace_nested_ones_too() -> None:
    cluster = schema("AWS::SageMaker::Cluster")
    old = {"ClusterName": "a", "Orchestrator": {"Eks": {"ClusterArn": "x"}}}
    assert cluster.replaced_by(old, {**old, "NodeRecovery": "None"}) == []
    assert cluster.replaced_by(old, {**old, "ClusterName": "b"}) == ["ClusterName"]
    assert cluster.replaced_by(old, {**old, "Orchestrator": {"Eks": {"ClusterArn": "y"}}}) == ["Orchestrator/Eks"]


def test_an_unknown_type_is_none_of_ours() -> None:
    with pytest.raises(UnknownType):
        schema("AWS::Sagemaker::Clusters")


def test_every_type_loads_and_names_its_identifier() -> None:
    for name in sorted(types())[::40]:
        if name.startswith("AWS::"):
            assert schema(name).identifier is not None
            schema(name).problems({})
