"""The roles that GitHub's workflows take on: each for one subject, and only the one that deploys may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.environment import Environment
from config.problems import Refused
from stacks.cluster import Cluster
from tests.stacks.assembly import synthesize

Variant = Callable[..., Environment]


@pytest.fixture
def roles(variant: Variant, tmp_path: Path) -> dict[str, dict[str, Any]]:
    settings = variant("reference", {"access.delivery": {"repository": "owner/name"}})
    made = synthesize(settings, tmp_path / "out", only=lambda app: Cluster(app, settings))
    found = [body["Properties"] for body in made.resources("AWS::IAM::Role").values()]
    return {body["RoleName"].removeprefix("hyperpod-rl-reference-us-west-2-"): body for body in found if "RoleName" in body}


def test_there_are_none_unless_a_repository_is_named(variant: Variant, tmp_path: Path) -> None:
    settings = variant("reference", {})
    made = synthesize(settings, tmp_path / "out", only=lambda app: Cluster(app, settings))
    assert "token.actions.githubusercontent.com" not in str(made.templates)


def test_each_trusts_one_subject_exactly(roles: dict[str, dict[str, Any]]) -> None:
    subjects = {}
    for name, body in roles.items():
        (statement,) = body["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
        wanted = statement["Condition"]["StringEquals"]
        assert wanted["token.actions.githubusercontent.com:aud"] == "sts.amazonaws.com"
        subjects[name] = wanted["token.actions.githubusercontent.com:sub"]
    assert subjects == {"plan": "repo:owner/name:ref:refs/heads/main", "deploy": "repo:owner/name:environment:reference"}


def test_the_plan_can_execute_nothing(roles: dict[str, dict[str, Any]]) -> None:
    def actions(name: str) -> set[str]:
        statements = roles[name]["Policies"][0]["PolicyDocument"]["Statement"]
        return {action for each in statements for action in ([each["Action"]] if isinstance(each["Action"], str) else each["Action"])}

    assert not {action for action in actions("plan") if action.endswith(("ExecuteChangeSet", "CreateStack", "UpdateStack", "DeleteStack"))}
    assumed = [
        each["Resource"] for each in roles["plan"]["Policies"][0]["PolicyDocument"]["Statement"] if each["Action"] == "sts:AssumeRole"
    ]
    assert "-deploy-role-" not in str(assumed)
    assert actions("deploy") == {"sts:AssumeRole"}
    assert "ManagedPolicyArns" not in roles["deploy"]


@pytest.mark.parametrize("wrong", [{"repository": "owner"}, {"repository": "owner/*"}, {"repository": "o/n", "branch": "*"}])
def test_a_wildcard_is_refused(variant: Variant, wrong: dict[str, str]) -> None:
    with pytest.raises(Refused):
        variant("reference", {"access.delivery": wrong})
