"""Templates and manifests are what their snapshots say; whoever means a change writes them anew and shows the difference."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.stacks import snapshots
from tests.stacks.assembly import Assembly


@pytest.mark.parametrize("name", snapshots.ENVIRONMENTS)
def test_what_is_made_is_what_was_looked_at(name: str, assemblies: Callable[[str], Assembly]) -> None:
    found = snapshots.different(name, assemblies(name))
    assert found == [], f"run `{snapshots.COMMAND}` and look at what `git diff tests/stacks/snapshots` shows"


def test_a_changed_property_shows_and_a_changed_asset_does_not(reference: Assembly) -> None:
    template = reference.templates["Data"]
    changed = copy.deepcopy(dict(template))
    changed["Resources"]["FileSystem"]["Properties"]["StorageCapacity"] = 9600
    assert snapshots.normal(changed) != snapshots.normal(template)
    rebuilt = copy.deepcopy(dict(template))
    functions = [body for body in rebuilt["Resources"].values() if body["Type"] == "AWS::Lambda::Function"]
    for function in functions:
        function["Properties"]["Code"]["S3Key"] = "0" * 64 + ".zip"
    assert functions
    assert snapshots.normal(rebuilt) == snapshots.normal(template)


def test_a_json_text_is_opened() -> None:
    assert snapshots.normal({"Values": '{"a": 1}'}) == {"Values": {"json": {"a": 1}}}
    assert snapshots.normal({"Values": "{not json"}) == {"Values": "{not json"}
