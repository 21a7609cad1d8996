"""Stands in for the kubelets: nodes with what the instance table says they can allocate, pods that run as soon as they are bound.

No container starts. A pod of a Job succeeds, any other is Running and Ready; a pod that is deleted goes at once. Scheduling is not
done here: the real kube-scheduler binds pods, so a pod that asks for too much stays Pending as it would on AWS.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import requests

from config.environment import Environment
from config.instances import DAEMON_CPU_MILLICORES, DAEMON_MEMORY_GIB
from tests.kubernetes.control_plane import Answer, Api

Json = dict[str, Any]
NOW = "2026-11-29T00:00:00Z"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"


def nodes(env: Environment) -> list[Json]:
    """Every node of an environment, named <group>-<number>."""
    made = []
    for group in env.instance_groups:
        instance = group.instance
        amounts = {
            "cpu": f"{instance.allocatable_cpu_millicores(group.threads_per_core or 2)}m",
            "memory": f"{int(instance.allocatable_memory_gib() * 2**20)}Ki",
            "ephemeral-storage": f"{group.volume_gib}Gi",
            "pods": str(instance.max_pods),
        }
        if instance.gpus:
            amounts["nvidia.com/gpu"] = str(instance.gpus)
        if instance.efa_interfaces:
            amounts["vpc.amazonaws.com/efa"] = str(instance.efa_interfaces)
        for number in range(group.count):
            labels = {
                "node.kubernetes.io/instance-type": group.instance_type,
                "sagemaker.amazonaws.com/instance-group-name": group.name,
                "kubernetes.io/hostname": f"{group.name}-{number}",
                **group.labels,
            }
            made.append({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{group.name}-{number}", "labels": labels},
                "status": {
                    "capacity": amounts, "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": NOW,
                                    "lastTransitionTime": NOW}],
                },
            })  # fmt: skip
    return made


def daemons(node: str) -> Json:
    """What runs on every HyperPod node before a pod of ours: device plugins, CNI, collectors, as one pod."""
    amounts = {"cpu": f"{DAEMON_CPU_MILLICORES}m", "memory": f"{int(DAEMON_MEMORY_GIB * 1024)}Mi"}
    container = {"name": "daemons", "image": "daemons:1", "resources": {"requests": amounts}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"daemons-{node}", "namespace": "kube-system"}, "spec": spec}


class Kubelet:
    """One thread for all nodes. `hold` names pods (by prefix) that stay Pending although they are bound."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.hold: tuple[str, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._address = 1

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def set_nodes(self, wanted: list[Json]) -> None:
        """These are the nodes from now on, each with its daemons."""
        names = {node["metadata"]["name"] for node in wanted}
        for node in self.api.items(NODES):
            if node["metadata"]["name"] not in names:
                self.api.delete(f"{NODES}/{node['metadata']['name']}")
        present = {node["metadata"]["name"] for node in self.api.items(NODES)}
        for node in wanted:
            name = node["metadata"]["name"]
            if name not in present:
                self.api.call("POST", NODES, {key: value for key, value in node.items() if key != "status"})
            self.api.merge(f"{NODES}/{name}", {"metadata": {"labels": node["metadata"]["labels"]}, "spec": {"taints": None}})
            # A status of another type of instance must not leave a resource behind.
            self.api.call("PATCH", f"{NODES}/{name}/status", [
                {"op": "add", "path": f"/status/{key}", "value": value} for key, value in node["status"].items()
            ], kind="application/json-patch+json")  # fmt: skip
            with contextlib.suppress(Answer):
                self.api.call("POST", "/api/v1/namespaces/kube-system/pods", daemons(name))

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            # The API server ends before this thread in a test that failed.
            with contextlib.suppress(requests.RequestException, Answer):
                for pod in self.api.items(PODS):
                    self._look_at(pod)

    def _look_at(self, pod: Json) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        with contextlib.suppress(Answer):
            if meta.get("deletionTimestamp"):
                self.api.call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
            elif spec.get("nodeName") and status.get("phase") == "Pending" and not meta["name"].startswith(self.hold or ("\0",)):
                self.api.merge(f"{path}/status", {"status": self._status(pod)})

    def _status(self, pod: Json) -> Json:
        self._address += 1
        done = any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", ()))
        state: Json = {"running": {"startedAt": NOW}}
        if done:
            state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": NOW, "finishedAt": NOW}}
        conditions = [
            {"type": kind, "status": "False" if done and "Ready" in kind else "True", "lastTransitionTime": NOW}
            for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ]
        containers = [
            {"name": container["name"], "image": container["image"], "imageID": "", "ready": not done, "restartCount": 0,
             "started": not done, "state": state}
            for container in pod["spec"]["containers"]
        ]  # fmt: skip
        address = f"10.64.{self._address // 250}.{self._address % 250 + 1}"
        return {
            "phase": "Succeeded" if done else "Running", "conditions": conditions, "containerStatuses": containers, "podIP": address,
            "podIPs": [{"ip": address}], "hostIP": "10.64.255.1", "startTime": NOW,
        }  # fmt: skip
