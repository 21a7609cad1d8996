"""cfn-lint over the templates of every environment."""

from __future__ import annotations

from cfnlint import lint
from cfnlint.config import ManualArgs

from tests.stacks.assembly import Assembly

# Warnings that CDK's own constructs give: an explicit DependsOn beside a reference that says the same.
ACCEPTED = {"W3005"}


def test_templates_have_no_error_and_no_unknown_warning(assembly: Assembly) -> None:
    config = ManualArgs(regions=["us-west-2"])
    matches = [
        (name, match)
        for name in assembly.templates
        for match in lint((assembly.folder / f"{name}.template.json").read_text(), config=config)
    ]
    assert [f"{name}: {match.rule.id} {match.message} {match.path}" for name, match in matches if match.rule.id not in ACCEPTED] == []
