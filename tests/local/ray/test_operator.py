"""What the operator does with a RayCluster object; no process is started."""

from __future__ import annotations

from typing import Any

import pytest

from local.kubernetes.cluster import Cluster, Node
from local.ray import operator
from tests.local.kubernetes.conftest import install_kuberay, ray_cluster


@pytest.fixture
def ready(cluster: Cluster, nodes: list[Node]) -> Cluster:
    cluster.set_nodes(nodes)
    install_kuberay(cluster)
    return cluster


def reconcile(cluster: Cluster, value: dict[str, Any] | None = None) -> str:
    if value is not None:
        cluster.apply([value], manager="launcher")
    live = cluster.get("RayCluster", "default", "skyrl-visgym")
    problem = operator.reconcile(cluster, live)
    operator.report(cluster, live, problem=problem, addresses={})
    return problem


def pods(cluster: Cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.store.select(kind="Pod", namespace="default")]


def run(cluster: Cluster) -> None:
    """All pods that have a node run."""
    for pod in cluster.store.select(kind="Pod", namespace="default"):
        if pod["spec"].get("nodeName"):
            from local.kubernetes.controllers import pod_status
            from local.kubernetes.store import Key

            cluster.api.set_status(Key("", "Pod", "default", pod["metadata"]["name"]), pod_status(pod, phase="Running"))


def status(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("RayCluster", "default", "skyrl-visgym")["status"]
    return found


def test_pods_service_and_status(ready: Cluster) -> None:
    assert reconcile(ready, ray_cluster(workers=2, gpus=2)) == ""
    assert len(pods(ready)) == 3
    assert ready.get("Service", "default", "skyrl-visgym-head-svc")["spec"]["clusterIP"] == "None"
    assert "state" not in status(ready)
    run(ready)
    reconcile(ready)
    assert (status(ready)["state"], status(ready)["readyWorkerReplicas"], status(ready)["desiredGPU"]) == ("ready", 2, "4")
    assert [c["status"] for c in status(ready)["conditions"]] == ["True", "True"]


def test_a_second_look_changes_nothing(ready: Cluster) -> None:
    reconcile(ready, ray_cluster(workers=2))
    before = pods(ready), ready.store.version
    reconcile(ready)
    assert (pods(ready), ready.store.version) == before


def test_not_ready_while_a_worker_has_no_node(ready: Cluster) -> None:
    reconcile(ready, ray_cluster(workers=1, gpus=4))
    run(ready)
    reconcile(ready)
    assert "state" not in status(ready)
    worker = next(p for p in ready.store.select(kind="Pod", namespace="default") if not operator.is_head(p))
    assert worker["status"]["phase"] == "Pending"


def test_scaling_adds_and_removes_workers_only(ready: Cluster) -> None:
    reconcile(ready, ray_cluster(workers=1))
    head = [name for name in pods(ready) if "-head-" in name]
    for workers in (3, 1):
        reconcile(ready, ray_cluster(workers=workers))
        assert len(pods(ready)) == workers + 1
        assert [name for name in pods(ready) if "-head-" in name] == head


@pytest.mark.parametrize(("strategy", "replaced"), [("Recreate", True), ("None", False)])
def test_a_changed_template_follows_the_upgrade_strategy(ready: Cluster, strategy: str, replaced: bool) -> None:
    value = ray_cluster()
    value["spec"]["upgradeStrategy"] = {"type": strategy}
    reconcile(ready, value)
    before = set(pods(ready))
    value["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] = "ray:other"
    reconcile(ready, value)
    assert len(pods(ready)) == 2
    assert before.isdisjoint(pods(ready)) is replaced


def test_suspending_takes_the_pods(ready: Cluster) -> None:
    reconcile(ready, ray_cluster())
    suspended = ray_cluster()
    suspended["spec"]["suspend"] = True
    reconcile(ready, suspended)
    reconcile(ready)
    assert (pods(ready), status(ready)["state"]) == ([], "suspended")


def test_a_failed_pod_is_replaced(ready: Cluster) -> None:
    from local.kubernetes.controllers import pod_status
    from local.kubernetes.store import Key

    reconcile(ready, ray_cluster())
    worker = next(p for p in ready.store.select(kind="Pod", namespace="default") if not operator.is_head(p))
    ready.api.set_status(Key("", "Pod", "default", worker["metadata"]["name"]), pod_status(worker, phase="Failed"))
    reconcile(ready)
    assert worker["metadata"]["name"] not in pods(ready)
    assert len(pods(ready)) == 2


def test_a_service_account_that_is_missing_is_told(ready: Cluster) -> None:
    value = ray_cluster()
    value["spec"]["headGroupSpec"]["template"]["spec"]["serviceAccountName"] = "none"
    assert 'serviceaccount "none" not found' in reconcile(ready, value)
    assert status(ready)["state"] == "failed"


def test_pods_and_service_go_with_their_cluster(ready: Cluster) -> None:
    reconcile(ready, ray_cluster(workers=2))
    ready.delete([ray_cluster()])
    assert pods(ready) == []
    assert ready.get("Service", "default", "skyrl-visgym-head-svc") is None
