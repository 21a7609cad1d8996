"""What controllers, scheduler and kubelet would do. No container is run: a pod that fits on a node counts as running.

So `kubectl rollout status` and `kubectl wait` answer, and a Deployment without a node that takes its pods stays unavailable.
Ray's pods are the exception: `local.ray` runs them as processes and reports their status itself.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from local.kubernetes import scheduling
from local.kubernetes.api import Api
from local.kubernetes.errors import Rejected
from local.kubernetes.store import Key, Object, now

RAY_CLUSTER_LABEL = "ray.io/cluster"
_ROUNDS = 6


class Controllers:
    """Brings the status of everything in line with the objects; runs inside the request that changed something."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._store = api.store
        self._running = False

    def settle(self) -> None:
        """Work until nothing changes any more."""
        with self._api.lock:
            if self._running:
                return
            self._running = True
            try:
                for _ in range(_ROUNDS):
                    before = self._store.version
                    self._workloads()
                    self._claims()
                    self._leave_lost_nodes()
                    self._schedule()
                    self._report()
                    if self._store.version == before:
                        return
            finally:
                self._running = False

    # ---- events ------------------------------------------------------------------------------------------------

    def event(self, about: Object, *, reason: str, message: str, kind: str = "Normal", component: str = "kubelet") -> None:
        """Record an Event; the same one again raises its count."""
        with self._api.lock:
            metadata = about["metadata"]
            namespace = metadata.get("namespace", "default")
            digest = hashlib.sha256(f"{metadata['uid']}{reason}{message}".encode()).hexdigest()[:16]
            key = Key("", "Event", namespace, f"{metadata['name']}.{digest}")
            found = self._store.get(key)
            if found is not None:
                found["count"] = found.get("count", 1) + 1
                found["lastTimestamp"] = now()
                self._store.put(key, found)
                return
            event = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": key.name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": about["apiVersion"], "kind": about["kind"], "name": metadata["name"],
                    "namespace": metadata.get("namespace", ""), "uid": metadata["uid"],
                },
                "type": kind, "reason": reason, "message": message, "count": 1,
                "firstTimestamp": now(), "lastTimestamp": now(), "source": {"component": component},
            }  # fmt: skip
            self._store.put(key, event)

    def _event_once(self, about: Object, *, reason: str, message: str, component: str) -> None:
        namespace = about["metadata"].get("namespace", "default")
        for event in self._store.select(kind="Event", namespace=namespace):
            if event["involvedObject"]["uid"] == about["metadata"]["uid"] and event["message"] == message:
                return
        self.event(about, reason=reason, message=message, kind="Warning", component=component)

    # ---- pods of workloads -------------------------------------------------------------------------------------

    def _workloads(self) -> None:
        for kind in ("Deployment", "StatefulSet", "ReplicaSet"):
            for owner in self._store.select(group="apps", kind=kind):
                self._pods_of(owner, [""] * owner["spec"].get("replicas", 1))
        for owner in self._store.select(group="apps", kind="DaemonSet"):
            nodes = [n for n in self._store.select(kind="Node") if self._daemon_wants(owner, n)]
            self._pods_of(owner, [node["metadata"]["name"] for node in nodes])
        for owner in self._store.select(group="batch", kind="Job"):
            if not owner["spec"].get("suspend") and not (owner.get("status") or {}).get("completionTime"):
                self._pods_of(owner, [""] * (owner["spec"].get("completions") or owner["spec"].get("parallelism") or 1))

    def _daemon_wants(self, owner: Object, node: Object) -> bool:
        spec = copy.deepcopy(owner["spec"]["template"]["spec"])
        # The controller gives these to every daemon pod; it also looks at selectors and taints, not at free resources.
        spec["tolerations"] = [
            *(spec.get("tolerations") or ()),
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
        ]
        for container in spec["containers"]:
            container.pop("resources", None)
        spec.pop("initContainers", None)
        return scheduling.place({"spec": spec}, [node], [])[0] is not None

    def _pods_of(self, owner: Object, wanted: list[str]) -> None:
        metadata = owner["metadata"]
        template = owner["spec"]["template"]
        digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
        have: list[Object] = []
        for pod in self._store.select(kind="Pod", namespace=metadata["namespace"]):
            if any(o["uid"] == metadata["uid"] for o in pod["metadata"].get("ownerReferences", ())):
                pinned = pod["spec"].get("nodeName", "") if owner["kind"] == "DaemonSet" else ""
                if pod["metadata"]["labels"].get("pod-template-hash") == digest and pinned in wanted:
                    wanted.remove(pinned)
                    have.append(pod)
                else:
                    self._api.delete(self._api.kind("v1", "Pod"), metadata["namespace"], pod["metadata"]["name"])
        for node in wanted:
            self._create_pod(owner, template, digest, node)

    def _create_pod(self, owner: Object, template: Mapping[str, Any], digest: str, node: str) -> None:
        metadata = owner["metadata"]
        given = template.get("metadata") or {}
        spec = copy.deepcopy(template["spec"])
        if node:
            spec["nodeName"] = node
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{metadata['name'][:50]}-{digest}-",
                "namespace": metadata["namespace"],
                "labels": {**(given.get("labels") or {}), "pod-template-hash": digest},
                "annotations": given.get("annotations") or {},
                "ownerReferences": [
                    {
                        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"],
                        "uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": spec,
        }  # fmt: skip
        try:
            self._api.create(pod, manager="kube-controller-manager")
        except Rejected as refused:
            self._event_once(owner, reason="FailedCreate", message=f"Error creating: {refused}", component="replicaset-controller")

    # ---- volumes -----------------------------------------------------------------------------------------------

    def _claims(self) -> None:
        volumes = self._store.select(kind="PersistentVolume")
        claims = self._store.select(kind="PersistentVolumeClaim")
        for claim in claims:
            bound = next((v for v in volumes if _claimed_by(v, claim)), None)
            if bound is None and claim.get("status", {}).get("phase") != "Bound":
                bound = next((v for v in volumes if _fits(v, claim)), None)
                if bound is not None:
                    reference = claim["metadata"]
                    bound["spec"]["claimRef"] = {
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": reference["name"],
                        "namespace": reference["namespace"], "uid": reference["uid"],
                    }  # fmt: skip
            key = Key("", "PersistentVolumeClaim", claim["metadata"]["namespace"], claim["metadata"]["name"])
            if bound is None:
                claim["status"] = {"phase": "Lost" if claim.get("status", {}).get("phase") in ("Bound", "Lost") else "Pending"}
            else:
                bound["status"] = {"phase": "Bound"}
                self._store.put(Key("", "PersistentVolume", "", bound["metadata"]["name"]), bound)
                claim["spec"]["volumeName"] = bound["metadata"]["name"]
                claim["status"] = {
                    "phase": "Bound", "accessModes": bound["spec"]["accessModes"], "capacity": bound["spec"]["capacity"],
                }  # fmt: skip
            self._store.put(key, claim)
        uids = {claim["metadata"]["uid"] for claim in claims}
        for volume in self._store.select(kind="PersistentVolume"):
            reference = volume["spec"].get("claimRef") or {}
            if reference.get("uid") and reference["uid"] not in uids:
                phase = "Released"  # reclaim policy Retain: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#retain
            else:
                phase = "Bound" if reference.get("uid") else "Available"
            volume["status"] = {"phase": phase}
            self._store.put(Key("", "PersistentVolume", "", volume["metadata"]["name"]), volume)

    # ---- scheduler and kubelet ---------------------------------------------------------------------------------

    def _leave_lost_nodes(self) -> None:
        ready = {n["metadata"]["name"] for n in self._store.select(kind="Node") if scheduling.is_ready(n)}
        for pod in self._store.select(kind="Pod"):
            node = pod["spec"].get("nodeName")
            if node and node not in ready and not scheduling.finished(pod):
                # A real cluster waits five minutes before it evicts from a node that is only not ready.
                self._event_once(pod, reason="NodeNotReady", message=f"Node {node} is gone or not ready", component="node-controller")
                self._api.delete(self._api.kind("v1", "Pod"), pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _schedule(self) -> None:
        nodes = self._store.select(kind="Node")
        pods = self._store.select(kind="Pod")
        for pod in pods:
            key = Key("", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
            if not pod["spec"].get("nodeName"):
                message = self._unbound_claim(pod)
                node = None
                if not message:
                    node, message = scheduling.place(pod, nodes, pods)
                if node is None:
                    condition = {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": message,
                    }
                    pod["status"] = {"phase": "Pending", "conditions": [condition]}
                    self._event_once(pod, reason="FailedScheduling", message=message, component="default-scheduler")
                    self._store.put(key, pod)
                    continue
                pod["spec"]["nodeName"] = node
                pod["status"] = pod_status(pod, phase="Pending", waiting="ContainerCreating")
                self._store.put(key, pod)
                name = f"{key.namespace}/{key.name}"
                self.event(
                    pod,
                    reason="Scheduled",
                    message=f"Successfully assigned {name} to {node}",
                    component="default-scheduler",
                )
            if RAY_CLUSTER_LABEL in (pod["metadata"].get("labels") or {}) or scheduling.finished(pod):
                continue
            if pod.get("status", {}).get("phase") != "Running":
                job = any(o["kind"] == "Job" for o in pod["metadata"].get("ownerReferences", ()))
                pod["status"] = pod_status(pod, phase="Succeeded" if job else "Running")
                self._store.put(key, pod)

    def _unbound_claim(self, pod: Object) -> str:
        for volume in pod["spec"].get("volumes") or ():
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if not name:
                continue
            claim = self._store.get(Key("", "PersistentVolumeClaim", pod["metadata"]["namespace"], name))
            if claim is None:
                return f'persistentvolumeclaim "{name}" not found'
            if claim.get("status", {}).get("phase") != "Bound":
                return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    # ---- status ------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        pods = self._store.select(kind="Pod")
        for kind in ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"):
            for owner in self._store.select(group="apps", kind=kind):
                mine = [p for p in pods if _owned_by(p, owner)]
                ready = sum(p.get("status", {}).get("phase") == "Running" for p in mine)
                self._api.set_status(_key("apps", owner), _workload_status(owner, len(mine), ready))
        for job in self._store.select(group="batch", kind="Job"):
            mine = [p for p in pods if _owned_by(p, job)]
            done = sum(p.get("status", {}).get("phase") == "Succeeded" for p in mine)
            wanted = job["spec"].get("completions") or job["spec"].get("parallelism") or 1
            before = job.get("status", {})
            status: dict[str, Any] = {
                "active": len(mine) - done,
                "succeeded": done,
                "startTime": before.get("startTime", now()),
            }
            if done >= wanted:
                status["completionTime"] = before.get("completionTime", now())
                status["conditions"] = [_condition(before, "Complete", True, "CompletionsReached")]
            self._api.set_status(_key("batch", job), status)


def _key(group: str, value: Object) -> Key:
    return Key(group, value["kind"], value["metadata"]["namespace"], value["metadata"]["name"])


def _owned_by(pod: Object, owner: Object) -> bool:
    return any(o["uid"] == owner["metadata"]["uid"] for o in pod["metadata"].get("ownerReferences", ()))


def _condition(before: Mapping[str, Any], name: str, holds: bool, reason: str) -> dict[str, Any]:
    state = "True" if holds else "False"
    old = next((c for c in before.get("conditions", ()) if c["type"] == name), None)
    since = old["lastTransitionTime"] if old and old["status"] == state else now()
    return {"type": name, "status": state, "reason": reason, "lastTransitionTime": since}


def _workload_status(owner: Object, total: int, ready: int) -> dict[str, Any]:
    generation = owner["metadata"]["generation"]
    if owner["kind"] == "DaemonSet":
        return {
            "observedGeneration": generation, "desiredNumberScheduled": total, "currentNumberScheduled": total,
            "updatedNumberScheduled": total, "numberReady": ready, "numberAvailable": ready, "numberMisscheduled": 0,
            "numberUnavailable": total - ready,
        }  # fmt: skip
    wanted = owner["spec"].get("replicas", 1)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "replicas": total,
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    if owner["kind"] == "Deployment":
        before = owner.get("status", {})
        status["updatedReplicas"] = total
        status["unavailableReplicas"] = total - ready
        enough = ready >= wanted
        status["conditions"] = [
            _condition(before, "Available", enough, "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"),
            _condition(before, "Progressing", True, "NewReplicaSetAvailable" if enough else "ReplicaSetUpdated"),
        ]
    elif owner["kind"] == "StatefulSet":
        status |= {"currentReplicas": total, "updatedReplicas": total}
    return {name: value for name, value in status.items() if value != 0 or name in ("replicas", "observedGeneration")}


def pod_status(pod: Object, *, phase: str, waiting: str = "", restarts: int = 0, message: str = "") -> dict[str, Any]:
    """A pod's status in one phase (Pending, Running, Succeeded, Failed); `waiting` is the reason a container waits for."""
    before = pod.get("status", {})
    started = before.get("startTime", now())
    ready = phase == "Running"
    states: dict[str, dict[str, Any]] = {
        "Pending": {"waiting": {"reason": waiting or "ContainerCreating", **({"message": message} if message else {})}},
        "Running": {"running": {"startedAt": started}},
        "Succeeded": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": now()}},
        "Failed": {
            "terminated": {
                "exitCode": 1,
                "reason": "Error",
                "message": message,
                "startedAt": started,
                "finishedAt": now(),
            }
        },
    }
    names = [(container["name"], container.get("image", "")) for container in pod["spec"]["containers"]]
    return {
        "phase": phase,
        "startTime": started,
        "hostIP": "127.0.0.1",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [
            _condition(before, "PodScheduled", True, ""),
            _condition(before, "Initialized", True, ""),
            _condition(before, "ContainersReady", ready, "" if ready else "ContainersNotReady"),
            _condition(before, "Ready", ready, "" if ready else "ContainersNotReady"),
        ],
        "containerStatuses": [
            {
                "name": name, "image": image, "imageID": "", "ready": ready, "started": ready, "restartCount": restarts,
                "state": states[phase],
            }
            for name, image in names
        ],
    }  # fmt: skip


def _claimed_by(volume: Object, claim: Object) -> bool:
    return bool((volume["spec"].get("claimRef") or {}).get("uid") == claim["metadata"]["uid"])


def _fits(volume: Object, claim: Object) -> bool:
    """Whether a static volume can be bound to a claim: named or matching class, unclaimed, large enough, right modes."""
    spec, wanted = volume["spec"], claim["spec"]
    reference = spec.get("claimRef") or {}
    if reference and (
        reference.get("uid")
        or (reference.get("namespace"), reference.get("name")) != (claim["metadata"]["namespace"], claim["metadata"]["name"])
    ):
        return False
    if wanted.get("volumeName") and wanted["volumeName"] != volume["metadata"]["name"]:
        return False
    return (
        (spec.get("storageClassName") or "") == (wanted.get("storageClassName") or "")
        and set(wanted["accessModes"]) <= set(spec["accessModes"])
        and scheduling.quantity(spec["capacity"]["storage"]) >= scheduling.quantity(wanted["resources"]["requests"]["storage"])
        and scheduling.matches_selector(volume["metadata"].get("labels") or {}, wanted.get("selector"))
    )
