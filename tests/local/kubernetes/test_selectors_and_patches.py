"""Selectors and the patch styles beside server-side apply."""

from __future__ import annotations

from typing import Any

import pytest

from local.kubernetes.errors import Rejected
from local.kubernetes.patches import patched
from local.kubernetes.schemas import definitions
from local.kubernetes.selectors import fields_match, labels_match
from local.kubernetes.tables import age
from tests.local.kubernetes.conftest import deployment

DEPLOYMENT = definitions()["io.k8s.api.apps.v1.Deployment"]
LABELS = {"ray.io/cluster": "c", "team": "rl"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True), ("team=rl", True), ("team==rl,ray.io/cluster=c", True), ("team!=rl", False), ("other!=x", True), ("team", True),
        ("!team", False), ("!other", True), ("team in (rl, ml)", True), ("team notin (ml)", True), ("team in (ml),team", False),
    ],
)  # fmt: skip
def test_label_selectors(selector: str, matches: bool) -> None:
    assert labels_match(LABELS, selector) is matches


@pytest.mark.parametrize("selector", ["a=b=c", "=x", "a in b", "(a)"])
def test_label_selectors_that_cannot_be_read(selector: str) -> None:
    with pytest.raises(Rejected):
        labels_match(LABELS, selector)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [("metadata.name=p", True), ("metadata.name!=p", False), ("status.phase=Running,metadata.name=p", True), ("spec.none=", True)],
)
def test_field_selectors(selector: str, matches: bool) -> None:
    assert fields_match({"metadata": {"name": "p"}, "status": {"phase": "Running"}}, selector) is matches


def test_a_strategic_patch_merges_containers_by_name() -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}, {"name": "new", "image": "n"}]}}}}
    new = patched(deployment(), patch, style="strategic", schema=DEPLOYMENT)
    assert [(c["name"], c["image"]) for c in new["spec"]["template"]["spec"]["containers"]] == [("web", "web:2"), ("new", "n")]
    gone = {"spec": {"template": {"spec": {"containers": [{"name": "web", "$patch": "delete"}]}}}}
    assert [c["name"] for c in patched(new, gone, style="strategic", schema=DEPLOYMENT)["spec"]["template"]["spec"]["containers"]] == [
        "new"
    ]
    replaced = {"spec": {"template": {"spec": {"$patch": "replace", "containers": []}}}}
    assert patched(new, replaced, style="strategic", schema=DEPLOYMENT)["spec"]["template"]["spec"] == {"containers": []}


def test_a_merge_patch_replaces_lists_and_removes_nulls() -> None:
    patch = {"spec": {"replicas": None, "template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}}
    new = patched(deployment(replicas=2), patch, style="merge", schema=DEPLOYMENT)
    assert "replicas" not in new["spec"]
    assert new["spec"]["template"]["spec"]["containers"] == [{"name": "x", "image": "y"}]


def test_a_json_patch() -> None:
    patch = [{"op": "test", "path": "/spec/replicas", "value": 2}, {"op": "replace", "path": "/spec/replicas", "value": 5}]
    assert patched(deployment(replicas=2), patch, style="json", schema=DEPLOYMENT)["spec"]["replicas"] == 5
    bad: list[Any] = [[{"op": "test", "path": "/spec/replicas", "value": 1}], [{"op": "remove", "path": "/none"}], "text", [{"op": "fly"}]]
    for content in bad:
        with pytest.raises(Rejected):
            patched(deployment(replicas=2), content, style="json", schema=DEPLOYMENT)


def test_a_patch_leaves_its_original_alone() -> None:
    before = deployment(replicas=2)
    patched(before, {"spec": {"replicas": 3}}, style="merge", schema=DEPLOYMENT)
    assert before == deployment(replicas=2)


@pytest.mark.parametrize(("made", "text"), [("12:00:00", "30s"), ("11:55:00", "5m30s"), ("11:00:30", "60m"), ("02:00:30", "10h")])
def test_ages(made: str, text: str) -> None:
    import datetime

    now = datetime.datetime(2026, 11, 29, 12, 0, 30, tzinfo=datetime.UTC)
    assert age(f"2026-11-29T{made}Z", now=now) == text
