"""Status as controllers, scheduler and kubelet would report it."""

from __future__ import annotations

from typing import Any

import pytest

from local.kubernetes import addons
from local.kubernetes.cluster import Cluster, Node, Taint
from local.kubernetes.scheduling import quantity
from tests.local.kubernetes.conftest import deployment, install_kuberay, ray_cluster
from tests.local.kubernetes.test_admission import claim, job, volume


def condition(cluster: Cluster, name: str, kind: str = "Available") -> str:
    found = cluster.get("Deployment", "default", name)
    return str(next(c["status"] for c in found["status"]["conditions"] if c["type"] == kind))


def messages(cluster: Cluster, reason: str) -> list[str]:
    return [event["message"] for event in cluster.store.select(kind="Event") if event["reason"] == reason]


def test_a_deployment_is_available_once_a_node_takes_its_pods(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.apply([deployment(replicas=2)], manager="test")
    assert condition(cluster, "web") == "False"
    assert messages(cluster, "FailedScheduling") == ["no nodes available to schedule pods"] * 2
    cluster.set_nodes(nodes)
    found = cluster.get("Deployment", "default", "web")
    assert condition(cluster, "web") == "True"
    assert (found["status"]["availableReplicas"], found["status"]["observedGeneration"]) == (2, found["metadata"]["generation"])


def test_a_changed_template_replaces_the_pods(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes)
    cluster.apply([deployment()], manager="test")
    cluster.apply([deployment(image="web:2")], manager="test")
    images = [pod["spec"]["containers"][0]["image"] for pod in cluster.store.select(kind="Pod")]
    assert images == ["web:2"]


def test_a_job_completes(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.apply([job()], manager="test")
    assert "conditions" not in cluster.get("Job", "default", "once")["status"]
    cluster.set_nodes(nodes)
    status = cluster.get("Job", "default", "once")["status"]
    assert (status["succeeded"], status["conditions"][0]["type"]) == (1, "Complete")


def test_a_daemon_set_has_a_pod_on_every_node_it_may_use(cluster: Cluster) -> None:
    addons.install(cluster, "vpc-cni")
    cluster.set_nodes([Node("a"), Node("b", taints=[Taint("nvidia.com/gpu", "NoSchedule")]), Node("c", ready=False)])
    status = cluster.get("DaemonSet", "kube-system", "aws-node")["status"]
    assert (status["desiredNumberScheduled"], status["numberReady"]) == (2, 2)
    cluster.set_nodes([Node("a")])
    assert cluster.get("DaemonSet", "kube-system", "aws-node")["status"]["desiredNumberScheduled"] == 1


def test_pods_leave_a_node_that_is_gone_and_come_back_elsewhere(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes[:1])
    cluster.apply([deployment()], manager="test")
    cluster.set_nodes(nodes[1:])
    assert [pod["spec"]["nodeName"] for pod in cluster.store.select(kind="Pod")] == ["worker-1"]


SELECTOR = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."


def pod_with(**spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [container], **spec},
    }


def limits(**amounts: str) -> dict[str, Any]:
    return {"resources": {"limits": {key.replace("gpu", "nvidia.com/gpu"): value for key, value in amounts.items()}}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"container": limits(gpu="3")}, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
        ({"container": limits(cpu="49")}, "0/2 nodes are available: 2 Insufficient cpu."),
        ({"container": limits(memory="461Gi")}, "0/2 nodes are available: 2 Insufficient memory."),
        ({"nodeSelector": {"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}}, SELECTOR),
        ({"volumes": [{"name": "s", "persistentVolumeClaim": {"claimName": "shared"}}]}, 'persistentvolumeclaim "shared" not found'),
    ],
)  # fmt: skip
def test_a_pod_that_fits_nowhere_stays_pending_and_says_why(
    cluster: Cluster, nodes: list[Node], spec: dict[str, Any], message: str
) -> None:
    cluster.set_nodes(nodes)
    cluster.apply([pod_with(**spec)], manager="test")
    assert cluster.get("Pod", "default", "p")["status"]["phase"] == "Pending"
    assert messages(cluster, "FailedScheduling") == [message]


def test_taints_need_their_toleration(cluster: Cluster) -> None:
    cluster.set_nodes([Node("a", taints=[Taint("nvidia.com/gpu", "NoSchedule", "present")], capacity={"cpu": "4"})])
    cluster.apply([pod_with()], manager="test")
    assert messages(cluster, "FailedScheduling") == ["0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}."]
    cluster.delete([pod_with()])
    cluster.apply([pod_with(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])], manager="test")
    assert cluster.get("Pod", "default", "p")["spec"]["nodeName"] == "a"


def test_pods_share_a_node_until_it_is_full(cluster: Cluster) -> None:
    cluster.set_nodes([Node("a", capacity={"cpu": "2"})])
    cluster.apply([deployment(replicas=3, containers=[{"name": "c", "image": "i", **limits(cpu="1")}])], manager="test")
    phases = sorted(pod["status"]["phase"] for pod in cluster.store.select(kind="Pod"))
    assert phases == ["Pending", "Running", "Running"]


def test_a_pod_needs_its_service_account(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes)
    cluster.apply([deployment(serviceAccountName="missing")], manager="test")
    assert cluster.store.select(kind="Pod") == []
    assert 'serviceaccount "missing" not found' in messages(cluster, "FailedCreate")[0]


def test_a_quota_counts_what_is_held(cluster: Cluster, nodes: list[Node]) -> None:
    cluster.set_nodes(nodes)
    hard = {"requests.nvidia.com/gpu": "2"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "default"}, "spec": {"hard": hard}}
    users = deployment(replicas=3, containers=[{"name": "c", "image": "i", **limits(gpu="1")}])
    cluster.apply([quota, users, pod_with(), deployment("other")], manager="test")
    assert cluster.get("Deployment", "default", "web")["status"]["availableReplicas"] == 2
    assert (
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2"
        in messages(cluster, "FailedCreate")[0]
    )
    assert cluster.get("Pod", "default", "p")["status"]["phase"] == "Running"


def test_a_claim_binds_to_the_volume_that_fits(cluster: Cluster) -> None:
    cluster.apply([volume("600Gi"), claim("1200Gi")], manager="test")
    assert cluster.get("PersistentVolumeClaim", "default", "shared")["status"]["phase"] == "Pending"
    cluster.apply([volume("1200Gi")], manager="test")
    assert cluster.get("PersistentVolumeClaim", "default", "shared")["status"]["phase"] == "Bound"
    assert cluster.get("PersistentVolume", None, "shared")["spec"]["claimRef"]["name"] == "shared"


def test_ray_pods_are_left_to_who_runs_them(cluster: Cluster, nodes: list[Node]) -> None:
    install_kuberay(cluster)
    cluster.set_nodes(nodes)
    value = pod_with()
    value["metadata"]["labels"] = {"ray.io/cluster": "skyrl-visgym"}
    cluster.apply([ray_cluster(), value], manager="test")
    status = cluster.get("Pod", "default", "p")["status"]
    assert (status["phase"], status["containerStatuses"][0]["ready"]) == ("Pending", False)


@pytest.mark.parametrize(("text", "number"), [("500m", "0.5"), ("2", "2"), ("1Gi", str(2**30)), ("1.5k", "1500"), ("1e3", "1000")])
def test_quantities(text: str, number: str) -> None:
    assert str(quantity(text).normalize()) == str(quantity(number).normalize())


def test_no_quantity() -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        quantity("two")
