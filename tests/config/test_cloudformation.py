"""Resource types by their published schemas: what a change of a property does."""

from __future__ import annotations

import pytest

from config.cloudformation import ResourceType, UnknownType, resource_type


def test_a_create_only_property_and_the_name_of_a_type() -> None:
    known = resource_type("AWS::EKS::Cluster")
    assert known.name == "Name"
    assert known.replaced_by({"Name": "a", "Version": "1.33"}, {"Name": "a", "Version": "1.34"}) == []
    assert known.replaced_by({"Name": "a"}, {"Name": "b"}) == ["Name"]
    assert resource_type("AWS::EKS::Addon").name == "AddonName"  # its ClusterName is the parent's
    assert resource_type("AWS::FSx::FileSystem").name is None


def test_paths_through_lists_and_conditional_ones() -> None:
    schema = {"createOnlyProperties": ["/properties/L/*/A"], "conditionalCreateOnlyProperties": ["/properties/B"]}
    made = ResourceType("Some::Type", schema)
    assert made.replaced_by({"L": [{"A": 1, "X": 1}]}, {"L": [{"A": 1, "X": 2}]}) == []
    assert made.replaced_by({"L": [{"A": 1}]}, {"L": [{"A": 2}]}) == ["L/*/A"]
    assert made.replaced_by({"L": [{"A": 1}]}, {"L": [{"A": 1}, {"A": 1}]}) == ["L/*/A"]
    assert made.replaced_by({}, {"B": 1}) == []
    assert made.perhaps_replaced_by({}, {"B": 1}) == ["B"]


def test_what_only_the_user_guide_says() -> None:
    known = resource_type("AWS::FSx::FileSystem")
    old, new = ({"LustreConfiguration": {"PerUnitStorageThroughput": each}} for each in (125, 250))
    assert known.replaced_by(old, new) == []
    assert known.documented_by(old, new) == ["LustreConfiguration/PerUnitStorageThroughput"]


def test_a_type_that_is_not_there() -> None:
    with pytest.raises(UnknownType):
        resource_type("Custom::Mine")
