"""cfn-lint over the templates of every environment: no error, and no warning that is not in the list."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from cfnlint import lint
from cfnlint.config import ManualArgs

from tests.stacks.assembly import Assembly

CDK = "CDK's construct says so beside the reference"
OURS = "every dependency of this resource is written out, so that the order does not rest on a property"
# (rule, `Stack/LogicalId` without CDK's hash) -> why it stays. W3005 is a DependsOn beside a reference that says the same.
ACCEPTED = {
    ("W3005", "Cluster/ClusterKubectlProviderHandler"): CDK,
    ("W3005", "*/*frameworkonEvent"): CDK,
    ("W3005", "*/*frameworkisComplete"): CDK,
    ("W3005", "*/*frameworkonTimeout"): CDK,
    ("W3005", "*/*waiterstatemachine"): CDK,
    ("W3005", "HyperPod/HyperPod"): OURS,
    ("W3005", "HyperPod/LifecycleScripts"): OURS,
    ("W3005", "Data/RunsExport"): OURS,
    ("W3005", "Data/EmptiedArtifacts"): OURS,
}


def warnings(assembly: Assembly, stacks: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """(rule, `Stack/LogicalId` without CDK's hash, message) of what cfn-lint says and the list does not have."""
    found = []
    for name, template in assembly.templates.items():
        if stacks and name not in stacks:
            continue
        for match in lint((assembly.folder / f"{name}.template.json").read_text(), config=ManualArgs(regions=["us-west-2"])):
            logical = str(match.path[1]) if len(match.path) > 1 else ""
            where = f"{name}/{re.sub(r'[0-9A-F]{8}$', '', logical)}"
            kind = template["Resources"].get(logical, {}).get("Type")
            if match.rule.id == "W3005" and kind == "AWS::Lambda::Function" and "Role" in match.message:
                continue  # every function that CDK makes waits for its role
            if not any(match.rule.id == rule and fnmatchcase(where, path) for rule, path in ACCEPTED):
                found.append((match.rule.id, where, match.message))
    return found


def test_templates_have_no_error_and_no_unknown_warning(assembly: Assembly) -> None:
    assert warnings(assembly) == []


def test_nor_have_those_that_only_a_choice_brings(everything: Assembly) -> None:
    assert warnings(everything, ("Data", "Platform", "Studio")) == []


def test_an_error_is_seen(everything: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.stacks.test_lint.ACCEPTED", {})
    assert ("W3005", "HyperPod/HyperPod") in {(rule, where) for rule, where, _ in warnings(everything, ("HyperPod",))}
