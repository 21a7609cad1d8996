"""Server-side apply: what a manager no longer names goes, what another manager owns stays or is fought over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.kubernetes.cluster import Cluster, Clusters
from local.kubernetes.errors import Rejected
from local.kubernetes.fields import from_fields_v1, paths, to_fields_v1
from local.kubernetes.schemas import definitions
from tests.local.kubernetes.conftest import config_map, deployment


def test_a_field_that_is_no_longer_applied_is_removed(cluster: Cluster) -> None:
    cluster.apply([config_map(a="1", b="2")], manager="launcher")
    cluster.apply([config_map(a="1")], manager="launcher")
    assert cluster.get("ConfigMap", "default", "settings")["data"] == {"a": "1"}


def test_a_field_of_another_manager_stays(cluster: Cluster) -> None:
    cluster.apply([config_map(a="1", b="2")], manager="launcher")
    cluster.api.apply(config_map(b="2", c="3"), manager="person")
    cluster.apply([config_map(a="1")], manager="launcher")
    assert cluster.get("ConfigMap", "default", "settings")["data"] == {"a": "1", "b": "2", "c": "3"}


def test_two_managers_who_want_different_values_conflict_until_one_forces(cluster: Cluster) -> None:
    cluster.api.apply(config_map(a="1"), manager="launcher")
    with pytest.raises(Rejected, match=r'conflict with "launcher": \.data\.a') as refused:
        cluster.api.apply(config_map(a="2"), manager="person")
    assert refused.value.code == 409
    assert cluster.get("ConfigMap", "default", "settings")["data"] == {"a": "1"}
    cluster.api.apply(config_map(a="2"), manager="person", force=True)
    assert cluster.get("ConfigMap", "default", "settings")["data"] == {"a": "2"}
    cluster.api.apply(config_map(a="2"), manager="launcher")  # the same value again may be shared
    managers = [entry["manager"] for entry in cluster.get("ConfigMap", "default", "settings")["metadata"]["managedFields"]]
    assert sorted(managers) == ["launcher", "person"]


def test_a_patch_takes_the_field_it_changes(cluster: Cluster) -> None:
    cluster.api.apply(config_map(a="1"), manager="launcher")
    kind = cluster.api.kind("v1", "ConfigMap")
    cluster.api.patch(kind, "default", "settings", {"data": {"a": "9"}}, style="merge", manager="kubectl-patch")
    with pytest.raises(Rejected, match='conflict with "kubectl-patch"'):
        cluster.api.apply(config_map(a="1"), manager="launcher")


def test_lists_with_keys_merge_by_key_and_lose_only_their_own_items(cluster: Cluster) -> None:
    cluster.api.apply(deployment(image="web:1"), manager="launcher")
    sidecar = deployment()
    sidecar["spec"]["template"]["spec"]["containers"] = [{"name": "sidecar", "image": "proxy:1"}]
    cluster.api.apply(sidecar, manager="mesh")
    cluster.api.apply(deployment(image="web:2"), manager="launcher")
    found = cluster.get("Deployment", "default", "web")["spec"]["template"]["spec"]["containers"]
    assert {c["name"]: c["image"] for c in found} == {"web": "web:2", "sidecar": "proxy:1"}
    sidecar["spec"]["template"]["spec"]["containers"] = [{"name": "other", "image": "proxy:2"}]
    cluster.api.apply(sidecar, manager="mesh")
    found = cluster.get("Deployment", "default", "web")["spec"]["template"]["spec"]["containers"]
    assert [c["name"] for c in found] == ["web", "other"]


def test_the_same_again_changes_nothing(cluster: Cluster) -> None:
    cluster.apply([deployment()], manager="launcher")
    before = cluster.get("Deployment", "default", "web")
    cluster.apply([deployment()], manager="launcher")
    assert cluster.get("Deployment", "default", "web") == before
    assert before["metadata"]["generation"] == 1


def test_generation_counts_changes_of_the_spec_alone(cluster: Cluster) -> None:
    cluster.apply([deployment()], manager="launcher")
    labelled = deployment()
    labelled["metadata"]["labels"] = {"team": "rl"}
    cluster.apply([labelled], manager="launcher")
    assert cluster.get("Deployment", "default", "web")["metadata"]["generation"] == 1
    cluster.apply([deployment(replicas=2)], manager="launcher")
    assert cluster.get("Deployment", "default", "web")["metadata"]["generation"] == 2


def test_a_dry_run_answers_and_stores_nothing(cluster: Cluster) -> None:
    answer = cluster.api.apply(config_map(a="1"), manager="launcher", dry_run=True)
    assert answer["data"] == {"a": "1"}
    assert cluster.get("ConfigMap", "default", "settings") is None


def test_an_update_of_an_old_version_is_refused(cluster: Cluster) -> None:
    stale = cluster.api.apply(config_map(a="1"), manager="launcher")
    cluster.api.apply(config_map(a="2"), manager="launcher")
    with pytest.raises(Rejected, match="the object has been modified"):
        cluster.api.replace(stale, manager="person")


def test_status_is_not_taken_from_an_apply(cluster: Cluster) -> None:
    cluster.apply([deployment() | {"status": {"readyReplicas": 7}}], manager="launcher")
    assert cluster.get("Deployment", "default", "web")["status"].get("readyReplicas") != 7


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("123"), max_size=4), min_size=1, max_size=5))
def test_one_manager_always_ends_with_what_it_applied_last(wanted: list[dict[str, str]]) -> None:
    cluster = Clusters().create("demo")
    for data in wanted:
        cluster.apply([config_map(**data)], manager="launcher")
    assert cluster.get("ConfigMap", "default", "settings").get("data", {}) == wanted[-1]


def test_many_threads_lose_nothing(cluster: Cluster) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            cluster.api.apply(config_map(**{f"k{number}": str(turn)}), manager=f"manager-{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert cluster.get("ConfigMap", "default", "settings")["data"] == {f"k{number}": "9" for number in range(8)}


def test_fields_v1_keeps_every_path() -> None:
    schema = definitions()["io.k8s.api.apps.v1.Deployment"]
    owned = paths(deployment(), schema)
    assert from_fields_v1(to_fields_v1(owned)) == owned
    assert ("f:spec", "f:template", "f:spec", "f:containers", 'k:{"name":"web"}', "f:image") in owned
