"""AWS's own checks (cdk-nag, AwsSolutions): no finding without a reason that stands beside the resource."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from aws_cdk import App

from config import load
from stacks.review import POLICIES, RESOURCES, review
from stacks.roles import MANAGED, role
from stacks.telemetry import Telemetry
from tests.stacks.assembly import Assembly, findings, synthesize
from tests.stacks.conftest import EVERYTHING, changed


def test_no_finding_lacks_a_reason(assembly: Assembly) -> None:
    assert findings(assembly.folder) == []
    assert '"pluginName": "AwsSolutions"' in (assembly.folder / "validation-report.json").read_text(), "the checks did not run"


def test_nor_does_one_where_everything_is_on(everything: Assembly) -> None:
    assert findings(everything.folder) == []


def test_a_wildcard_whose_reason_is_gone_is_found(tmp_path: Path) -> None:
    def stacks(app: App) -> None:
        made = Telemetry(app, load.load("reference"))
        made.allowed.clear()
        review(app, [made])

    synthesize(load.load("reference"), tmp_path / "out", only=stacks)
    assert findings(tmp_path / "out") == ["Telemetry/GrafanaRole/Resource: AwsSolutions-IAM5[Resource::*]"]


def test_a_managed_policy_without_a_reason_is_refused() -> None:
    from aws_cdk import aws_iam as iam

    stack = Telemetry(App(analytics_reporting=False), load.load("reference"))
    principal = iam.ServicePrincipal("lambda.amazonaws.com")
    with pytest.raises(ValueError, match="AdministratorAccess"):
        role(stack, "Wide", principal=principal, managed=["AdministratorAccess"], description="too much")


def test_nothing_is_accepted_for_a_whole_stack_and_everything_with_words() -> None:
    for entry in (*RESOURCES, *POLICIES):
        assert entry.path.count("/") >= 1, entry
        assert not entry.path.endswith("*"), f"{entry.path} is more than one kind of resource"
        assert len(entry.why) > 20, entry
    assert all(len(why) > 20 for why in MANAGED.values())


def test_every_accepted_finding_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that accepts nothing any more is a hole that waits for its resource."""
    monkeypatch.setattr("stacks.review._accepted", lambda stack, construct: set())
    synthesize(changed("reference", EVERYTHING), tmp_path / "out", reviewed=True)
    synthesize(load.load("production"), tmp_path / "closed", reviewed=True)
    found = [line.split(": ", 1) for folder in ("out", "closed") for line in findings(tmp_path / folder)]
    assert len(found) > 40
    unused = [
        f"{entry.path}: {entry.finding}"
        for entry in (*RESOURCES, *POLICIES)
        if not any(fnmatchcase(path, entry.path) and finding.startswith(f"AwsSolutions-{entry.finding}") for path, finding in found)
    ]
    unused += [name for name in MANAGED if not any(f":aws:policy/{name}" in finding for _, finding in found)]
    assert unused == []
