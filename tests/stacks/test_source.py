"""Rules over the source of the stacks: what would work today and break a destroy later."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from config.load import ROOT
from stacks.allow import Allow

SOURCES = sorted((ROOT / "stacks").glob("*.py"))


def calls(path: Path) -> list[tuple[str, int]]:
    """Names of the methods that a file calls, with their lines."""
    tree = ast.parse(path.read_text())
    return [(node.func.attr, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_kubernetes_objects_belong_to_the_stack_that_needs_them(path: Path) -> None:
    """`cluster.add_manifest` and its like put the object into the Cluster stack, out of the reach of stack order."""
    forbidden = {
        "add_manifest",
        "add_helm_chart",
        "add_cdk8s_chart",
        "add_service_account",
        "grant_access",
        "grant_cluster_admin",
        "add_nodegroup_capacity",
    }
    assert [(name, line) for name, line in calls(path) if name in forbidden] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_is_looked_up_and_nothing_is_random(path: Path) -> None:
    forbidden = {"from_lookup", "value_from_lookup", "now", "today", "time", "uuid4", "token_hex", "random"}
    assert [(name, line) for name, line in calls(path) if name in forbidden] == []
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
    }
    assert imported & {"boto3", "random", "uuid", "time", "datetime", "secrets", "requests", "local", "training", "serving"} == set()


def test_buckets_are_emptied_by_our_own_function() -> None:
    """CDK's auto_delete_objects brings a Node handler that needs an SDK which is not everywhere."""
    assert [path.name for path in SOURCES if "auto_delete_objects" in path.read_text()] == []


def test_app_only_wires() -> None:
    assert len((ROOT / "app.py").read_text().splitlines()) < 80


@pytest.mark.parametrize(
    ("actions", "resources"),
    [(["s3:*"], ["arn:aws:s3:::bucket"]), (["s3:GetObject"], ["*"]), (["s3:GetObject"], ["arn:aws:s3:::bucket/*"])],
)
def test_a_wildcard_without_a_reason_is_refused(actions: list[str], resources: list[str]) -> None:
    with pytest.raises(ValueError, match="wildcard"):
        Allow(actions, resources)
    assert Allow(actions, resources, why="it has a reason").why
