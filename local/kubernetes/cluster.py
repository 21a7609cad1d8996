"""The Kubernetes clusters of this machine, as the rest of the local cloud sees them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

from local.kubernetes.api import Api
from local.kubernetes.charts import Release
from local.kubernetes.controllers import Controllers
from local.kubernetes.errors import Rejected
from local.kubernetes.kinds import Kind
from local.kubernetes.scheduling import Node, Taint, takes_pods
from local.kubernetes.schemas import KUBERNETES_VERSION
from local.kubernetes.store import Key, Object, Store, now

__all__ = ["Cluster", "Clusters", "Node", "RayRuntime", "Rejected", "Taint"]
GIT_VERSION = f"v{KUBERNETES_VERSION}.0-local"


class RayRuntime(Protocol):
    """Who runs Ray's pods (`local.ray.runtime.Runtime`)."""

    def attach(self, cluster: Cluster) -> None:
        """Run the Ray pods of this cluster from now on."""

    def detach(self, cluster: Cluster) -> None:
        """End every Ray process of this cluster; returns when they are gone."""

    def wait_ended(self, cluster: Cluster, namespace: str, name: str) -> None:
        """Return when no process of a deleted RayCluster is left."""

    def processes(self) -> list[str]:
        """What still runs, one line each."""

    def stop(self) -> None:
        """End everything."""


class Cluster:
    """One EKS cluster's Kubernetes. Safe from any thread."""

    def __init__(self, name: str, *, ray: RayRuntime | None = None) -> None:
        self.name = name
        self.store = Store()
        self.api = Api(self.store)
        self.controllers = Controllers(self.api)
        self.api.settle = self.controllers.settle
        # Written by local.kubernetes.releases and addons.
        self.releases: dict[tuple[str, str], Release] = {}
        self.addons: set[str] = set()
        # Who created an object (uid -> identity): the private access strategy of Ray endpoints asks for it.
        self.creators: dict[str, str] = {}
        self._ray = ray
        for namespace in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, manager="kube-apiserver")
        spec = {"ports": [{"name": "https", "port": 443, "protocol": "TCP"}], "clusterIP": "10.100.0.1"}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": spec,
        }
        self.api.create(service, manager="kube-apiserver")
        self._fresh = set(self.store.all_keys())

    # ---- objects -----------------------------------------------------------------------------------------------

    def apply(self, objects: Sequence[Object], *, manager: str, force: bool = True) -> None:
        """Server-side apply, one object after the other, as kubectl does: those that are accepted stay.

        Raises `Rejected` with every sentence of every object that was not accepted.
        """
        found: list[str] = []
        reason = "Invalid"
        for value in objects:
            try:
                stored = self.api.apply(value, manager=manager, force=force)
                self.creators.setdefault(stored["metadata"]["uid"], manager)
            except Rejected as refused:
                reason = refused.reason
                found += refused.problems
        if found:
            raise Rejected(found, reason=reason if len(found) == 1 else "Invalid")

    def delete(self, objects: Sequence[Object]) -> None:
        """Delete what exists of these, in their order, and wait as kubectl does.

        Raises `Rejected` for what stays because of a finalizer: a real `kubectl delete` would wait there without end.
        """
        stuck: list[str] = []
        for value in objects:
            try:
                kind = self.api.kind(value["apiVersion"], value["kind"])
            except Rejected:
                continue  # the kind went with its operator, so nothing of it exists
            metadata = value["metadata"]
            namespace, name = metadata.get("namespace"), metadata["name"]
            if self.api.get(kind, namespace, name) is None:
                continue
            try:
                self.api.delete(kind, namespace, name)
            except Rejected as refused:
                if refused.reason != "NotFound":
                    stuck += refused.problems
                continue
            self._wait_for_ray(kind, namespace, name)
            left = self.api.get(kind, namespace, name)
            if left is not None:
                holding = ", ".join(self._holders(left)) or "nothing that is known"
                stuck.append(f'{kind.resource} "{name}" is being deleted and waits for {holding}')
        if stuck:
            raise Rejected(stuck, reason="Conflict")

    def _holders(self, value: Object) -> list[str]:
        held = [f"finalizer {name}" for name in value["metadata"].get("finalizers", ())]
        if value["kind"] == "Namespace":
            name = value["metadata"]["name"]
            for key in self.store.all_keys():
                inner = self.store.get(key) if key.namespace == name else None
                if inner is not None and inner["metadata"].get("finalizers"):
                    held.append(f"{key.kind} {key.name} with finalizer {', '.join(inner['metadata']['finalizers'])}")
        return held

    def _wait_for_ray(self, kind: Kind, namespace: str | None, name: str) -> None:
        if self._ray is not None and kind.group == "ray.io":
            self._ray.wait_ended(self, namespace or "default", name)

    def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """A copy of one object, by the name of its kind (`RayCluster`), or None."""
        for known in self.api.kinds():
            if known.kind == kind:
                found = self.api.get(known, namespace, name)
                if found is not None:
                    return found
        return None

    def has_release(self, name: str) -> bool:
        """Whether a Helm release of this name is installed, in any namespace."""
        with self.api.lock:
            return any(release == name for release, _ in self.releases)

    # ---- nodes -------------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """These are the nodes now; those that are not named have left."""
        with self.api.lock:
            names = {node.name for node in nodes}
            for value in self.store.select(kind="Node"):
                if value["metadata"]["name"] not in names:
                    self.store.remove(Key("", "Node", "", value["metadata"]["name"]))
            for node in nodes:
                key = Key("", "Node", "", node.name)
                self.store.put(key, _node_object(node, self.store.get(key)))
            self.controllers.settle()

    def ready_nodes(self) -> list[str]:
        """Names of the nodes that take pods."""
        return [n["metadata"]["name"] for n in self.store.select(kind="Node") if takes_pods(n)]

    # ---- everything --------------------------------------------------------------------------------------------

    def objects(self) -> list[str]:
        """Every object that a fresh cluster would not have, one line each; events aside."""
        made = [key for key in self.store.all_keys() if key not in self._fresh and key.kind != "Event"]
        return [f"{self.name} {key.kind} {f'{key.namespace}/' if key.namespace else ''}{key.name}" for key in made]


def _node_object(node: Node, before: Object | None) -> Object:
    capacity = {"pods": "110", **node.capacity}
    state = "True" if node.ready else "False"
    value = before or {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}}
    old: Object = next((c for c in value.get("status", {}).get("conditions", ()) if c["type"] == "Ready"), {})
    since = old["lastTransitionTime"] if old.get("status") == state else now()
    value["metadata"]["labels"] = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **node.labels,
    }
    taints = [{"key": t.key, "effect": t.effect, **({"value": t.value} if t.value else {})} for t in node.taints]
    value["spec"] = {**value.get("spec", {}), "taints": taints}
    if not taints:
        value["spec"].pop("taints")
    value["status"] = {
        "capacity": dict(capacity),
        "allocatable": dict(capacity),
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": node.name}],
        "conditions": [
            {
                "type": "Ready", "status": state, "lastHeartbeatTime": since, "lastTransitionTime": since,
                "reason": "KubeletReady" if node.ready else "KubeletNotReady", "message": "set by the local cloud",
            }
        ],
        "nodeInfo": {
            "kubeletVersion": GIT_VERSION, "osImage": "none: a record on this machine", "kernelVersion": "", "architecture": "amd64",
            "containerRuntimeVersion": "none", "kubeProxyVersion": GIT_VERSION, "operatingSystem": "linux", "bootID": "",
            "machineID": hashlib.sha256(node.name.encode()).hexdigest()[:32], "systemUUID": "",
        },
    }  # fmt: skip
    return value


class Clusters:
    """All clusters of the daemon. `ray` runs Ray's pods; without it they stay in ContainerCreating."""

    def __init__(self, *, ray: RayRuntime | None = None) -> None:
        self.ray = ray
        self._clusters: dict[str, Cluster] = {}
        self._lock = threading.RLock()

    def create(self, name: str) -> Cluster:
        """A new, empty cluster. Raises `Rejected` when the name is taken."""
        with self._lock:
            if name in self._clusters:
                raise Rejected(f"Cluster already exists with name: {name}", reason="AlreadyExists")
            cluster = Cluster(name, ray=self.ray)
            self._clusters[name] = cluster
        if self.ray is not None:
            self.ray.attach(cluster)
        return cluster

    def get(self, name: str) -> Cluster | None:
        """The cluster of this name, or None."""
        with self._lock:
            return self._clusters.get(name)

    def delete(self, name: str) -> None:
        """Forget a cluster; returns when its Ray processes have ended."""
        with self._lock:
            cluster = self._clusters.pop(name, None)
        if cluster is not None and self.ray is not None:
            self.ray.detach(cluster)

    def close(self) -> None:
        """End every Ray process, of all clusters."""
        if self.ray is not None:
            self.ray.stop()

    def all(self) -> Iterable[Cluster]:
        """Every cluster, by name."""
        with self._lock:
            return [self._clusters[name] for name in sorted(self._clusters)]

    def objects(self) -> list[str]:
        """Everything that still exists, for the leak check: clusters, their objects, Ray's processes."""
        found: list[str] = []
        for cluster in self.all():
            found += [f"{cluster.name} Cluster", *cluster.objects()]
        return found + (self.ray.processes() if self.ray is not None else [])
