"""The longest way through a graph of stacks and resources."""

from __future__ import annotations

import pytest

from benchmarks import critical_path
from benchmarks.critical_path import REST, STACK, minutes, path
from config.cloudformation import needs

LONG, SHORT = {"Type": "AWS::EKS::Cluster"}, {"Type": "AWS::SSM::Parameter"}


def test_a_resource_waits_for_what_it_names_and_a_stack_for_all_of_the_stack_below() -> None:
    templates = {
        "Low": {"Resources": {"Long": LONG, "Beside": SHORT, "After": {**SHORT, "Properties": {"Value": {"Ref": "Long"}}}}},
        "High": {"Resources": {"Last": {**SHORT, "Properties": {"Value": {"Fn::Sub": "${AWS::Region}"}}}}},
    }
    found = path(templates, {"Low": frozenset(), "High": frozenset({"Low"})})
    assert [name for name, _ in found] == ["Low/Long", "Low/After", "High/Last"]
    assert found[-1][1] == pytest.approx(STACK + 10 + REST + STACK + REST)


def test_stacks_beside_each_other_take_no_longer_than_the_longer_one() -> None:
    templates = {"Base": {"Resources": {"A": SHORT}}, "One": {"Resources": {"B": LONG}}, "Two": {"Resources": {"C": SHORT}}}
    below = {"Base": frozenset[str](), "One": frozenset({"Base"}), "Two": frozenset({"Base"})}
    assert path(templates, below)[-1] == ("One/B", pytest.approx(2 * STACK + REST + 10))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"DependsOn": "A"}, {"A"}),
        ({"DependsOn": ["A", "B"]}, {"A", "B"}),
        ({"Properties": {"X": [{"Fn::GetAtt": ["A", "Arn"]}, {"Fn::Join": ["", [{"Ref": "B"}]]}]}}, {"A", "B"}),
        ({"Properties": {"X": {"Fn::Sub": "arn:${A.Arn}"}}}, {"A"}),
    ],
)
def test_every_kind_of_reference_is_an_edge(body: dict[str, object], expected: set[str]) -> None:
    assert needs(body) == expected


def test_a_circle_is_said() -> None:
    with pytest.raises(ValueError, match="a circle among A, B"):
        critical_path._ordered({"A": frozenset({"B"}), "B": frozenset({"A"})})


def test_an_add_on_that_is_known_takes_its_own_time() -> None:
    assert minutes({"Type": "AWS::EKS::Addon", "Properties": {"AddonName": "amazon-sagemaker-hyperpod-observability"}}) == 8.0
    assert minutes({"Type": "AWS::EKS::Addon", "Properties": {"AddonName": "vpc-cni"}}) == 1.0
