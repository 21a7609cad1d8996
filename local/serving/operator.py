"""What KubeRay's operator does with one RayService object: its RayCluster, its two Services, its Serve applications, its status.

Serve's configuration goes to the dashboard of the cluster's head by `PUT /api/serve/applications/`, as KubeRay sends it. Three
values in it are this machine's: Ray Serve LLM's builder becomes the stand-in's, and one proxy listens on the head's loopback
address instead of one a node on every address.

https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/rayservice-quick-start.html
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from local.kubernetes.cluster import Cluster
from local.kubernetes.errors import Rejected
from local.kubernetes.store import Key, now
from local.ray import manifest, processes

Object = dict[str, Any]
MANAGER: Final = "kuberay-operator"
SERVE_PORT: Final = 8000
GPU_BUILDER, LOCAL_BUILDER = "ray.serve.llm:build_openai_app", "local.serving.application:build_openai_app"
_CLUSTER_DIGEST: Final = "ray.io/cluster-spec-digest"
_PUT_SECONDS: Final = 120.0
DashboardOf = Callable[[Cluster, str, str], str | None]


@dataclass
class _Endpoint:
    """What is known of one RayService: the digest of what its Serve was last told, and what its Serve last said."""

    told: str = ""
    telling: threading.Thread | None = None
    said: Object = field(default_factory=dict)
    problem: str = ""
    # Where Serve's proxy listens, and on which RayCluster that was chosen.
    port: int = SERVE_PORT
    chosen_for: str = ""


class Services:
    """The RayServices of all clusters. Called from the runtime's one thread; what takes long runs in threads of its own."""

    def __init__(self) -> None:
        self._endpoints: dict[str, _Endpoint] = {}

    def reconcile(self, kubernetes: Cluster, dashboard_of: DashboardOf) -> bool:
        """One round; True while something is still on its way."""
        busy = False
        services = kubernetes.store.select(group="ray.io", kind="RayService")
        live = {value["metadata"]["uid"] for value in services}
        for uid in [uid for uid in self._endpoints if uid not in live]:
            del self._endpoints[uid]
        for value in services:
            if "deletionTimestamp" not in value["metadata"]:
                busy |= self._one(kubernetes, value, dashboard_of)
        return busy

    def _one(self, kubernetes: Cluster, service: Object, dashboard_of: DashboardOf) -> bool:
        endpoint = self._endpoints.setdefault(service["metadata"]["uid"], _Endpoint())
        try:
            cluster = _cluster(kubernetes, service)
        except Rejected as refused:
            endpoint.problem = str(refused)
            _report(kubernetes, service, None, endpoint, address="")
            return True
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        dashboard = dashboard_of(kubernetes, namespace, name)
        ready = (cluster.get("status") or {}).get("state") == "ready"
        address = urlsplit(dashboard).hostname or "" if dashboard else ""
        if dashboard is not None and ready:
            self._tell(endpoint, service, dashboard, address, cluster["metadata"]["uid"])
        running = bool(endpoint.said) and all(app.get("status") == "RUNNING" for app in endpoint.said.values()) and dashboard is not None
        _services(kubernetes, service, address if running else "", endpoint.port)
        _report(kubernetes, service, cluster, endpoint, address=address if running else "")
        return not running

    def _tell(self, endpoint: _Endpoint, service: Object, dashboard: str, address: str, cluster: str) -> None:
        """Send Serve its configuration where that changed, and ask how it does; one call at a time, in a thread."""
        if endpoint.telling is not None and endpoint.telling.is_alive():
            return
        text = str(service["spec"].get("serveConfigV2") or "")
        digest = hashlib.sha256(f"{cluster}\0{address}\0{text}".encode()).hexdigest()
        if endpoint.chosen_for != cluster:
            # Anybody's web server that listens on every address of this machine has this one's port, too.
            endpoint.chosen_for, endpoint.port = cluster, processes.free_port(address, preferred=SERVE_PORT)
        port = endpoint.port

        def work() -> None:
            try:
                if endpoint.told != digest:
                    endpoint.said = {}
                    _call("PUT", f"{dashboard}/api/serve/applications/", on_this_machine(yaml.safe_load(text), address, port))
                    endpoint.told = digest
                endpoint.said = _call("GET", f"{dashboard}/api/serve/applications/", None).get("applications", {})
                endpoint.problem = ""
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                said = error.read().decode("utf-8", "replace") if isinstance(error, urllib.error.HTTPError) else str(error)
                endpoint.problem = " ".join(said.split())[:1000]
                endpoint.said = {}

        endpoint.telling = threading.Thread(target=work, name="ray-serve", daemon=True)
        endpoint.telling.start()


def on_this_machine(config: Object, address: str, port: int = SERVE_PORT) -> Object:
    """Serve's configuration with the values that differ here."""
    made = copy.deepcopy(config)
    made["proxy_location"] = "HeadOnly"
    made["http_options"] = {**(made.get("http_options") or {}), "host": address, "port": port}
    for application in made["applications"]:
        if application.get("import_path") == GPU_BUILDER:
            application["import_path"] = LOCAL_BUILDER
        front = (application.get("args") or {}).get("front")
        if isinstance(front, dict) and front.get("application", GPU_BUILDER) == GPU_BUILDER:
            front["application"] = LOCAL_BUILDER
    return made


def _call(method: str, url: str, body: object) -> Object:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"content-type": "application/json"})  # noqa: S310 - ours
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_PUT_SECONDS) as answer:
        text = answer.read()
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def _cluster(kubernetes: Cluster, service: Object) -> Object:
    """The RayCluster of a RayService; made anew where its specification changed and the upgrade strategy is not None.

    KubeRay's NewCluster starts the new one before it ends the old one; here the old one ends first.
    """
    metadata, spec = service["metadata"], service["spec"]
    digest = hashlib.sha256(json.dumps(spec["rayClusterConfig"], sort_keys=True).encode()).hexdigest()[:16]
    owned = [
        value
        for value in kubernetes.store.select(group="ray.io", kind="RayCluster", namespace=metadata["namespace"])
        if any(owner["uid"] == metadata["uid"] for owner in value["metadata"].get("ownerReferences", ()))
    ]
    for value in owned:
        same = value["metadata"]["annotations"].get(_CLUSTER_DIGEST) == digest
        if same or (spec.get("upgradeStrategy") or {}).get("type") == "None":
            return value
        _delete(kubernetes, "RayCluster", value)
    suffix = hashlib.sha256(f"{metadata['uid']}{digest}".encode()).hexdigest()[:5]
    kept = {name: text for name, text in (metadata.get("annotations") or {}).items() if name.startswith("access.sagemaker")}
    made = {
        "apiVersion": service["apiVersion"],
        "kind": "RayCluster",
        "metadata": {
            "name": f"{metadata['name']}-{suffix}",
            "namespace": metadata["namespace"],
            "labels": {
                **(metadata.get("labels") or {}),
                "ray.io/originated-from-cr-name": metadata["name"],
                "ray.io/originated-from-crd": "RayService",
            },
            "annotations": {**kept, _CLUSTER_DIGEST: digest},
            "ownerReferences": [manifest.owner(service)],
        },
        "spec": copy.deepcopy(spec["rayClusterConfig"]),
    }
    created = kubernetes.api.create(made, manager=MANAGER)
    # Who applied the RayService counts as the creator of what its operator makes for it.
    creator = kubernetes.creators.get(metadata["uid"])
    if creator is not None:
        kubernetes.creators[created["metadata"]["uid"]] = creator
    text = f"Created RayCluster {metadata['namespace']}/{made['metadata']['name']}"
    kubernetes.controllers.event(service, reason="CreatedRayCluster", message=text, component="rayservice-controller")
    return created


def _services(kubernetes: Cluster, service: Object, address: str, port: int) -> None:
    """`<name>-serve-svc`. Pods' addresses are loopback ones here, so it says where this machine answers (`externalIPs`)."""
    metadata = service["metadata"]
    wanted: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{metadata['name'][:50]}-serve-svc",
            "namespace": metadata["namespace"],
            "labels": {"ray.io/originated-from-cr-name": metadata["name"], "ray.io/serve": f"{metadata['name']}-serve"},
            "ownerReferences": [manifest.owner(service)],
        },
        "spec": {
            "type": "ClusterIP",
            "selector": {"ray.io/serve": "true"},
            "ports": [{"name": "serve", "port": port, "targetPort": port, "protocol": "TCP"}],
            **({"externalIPs": [address]} if address else {}),
        },
    }
    live = kubernetes.store.get(Key("", "Service", metadata["namespace"], wanted["metadata"]["name"]))
    if live is None or _where(live["spec"]) != _where(wanted["spec"]):
        kubernetes.api.apply(wanted, manager=MANAGER, force=True)


def _where(spec: Object) -> tuple[Any, list[Any]]:
    return spec.get("externalIPs"), [port["port"] for port in spec["ports"]]


def _report(kubernetes: Cluster, service: Object, cluster: Object | None, endpoint: _Endpoint, *, address: str) -> None:
    before = service.get("status") or {}
    running = bool(address)
    applications = {
        name: {
            "status": app.get("status", ""),
            "message": app.get("message", ""),
            "serveDeploymentStatuses": {
                part: {"status": found.get("status", ""), "message": found.get("message", "")}
                for part, found in (app.get("deployments") or {}).items()
            },
        }
        for name, app in endpoint.said.items()
    }
    active: Object = {"applicationStatuses": applications} if applications else {}
    if cluster is not None:
        active |= {"rayClusterName": cluster["metadata"]["name"], "rayClusterStatus": copy.deepcopy(cluster.get("status") or {})}
        active["rayClusterStatus"].pop("lastUpdateTime", None)
    reason = "NonZeroServeEndpoints" if running else "Initializing"
    status: Object = {
        "observedGeneration": service["metadata"]["generation"],
        "serviceStatus": "Running" if running else "",
        "numServeEndpoints": 1 if running else 0,
        "activeServiceStatus" if running else "pendingServiceStatus": active,
        "conditions": [_condition(before, "Ready", running, reason, endpoint.problem)],
    }
    if {name: value for name, value in before.items() if name != "lastUpdateTime"} != status:
        metadata = service["metadata"]
        key = Key("ray.io", "RayService", metadata["namespace"], metadata["name"])
        kubernetes.api.set_status(key, {**status, "lastUpdateTime": now()})


def _condition(before: Object, name: str, holds: bool, reason: str, message: str) -> Object:
    state = "True" if holds else "False"
    old = next((c for c in before.get("conditions", ()) if c["type"] == name), None)
    since = old["lastTransitionTime"] if old and old["status"] == state else now()
    return {"type": name, "status": state, "reason": reason, "message": message, "lastTransitionTime": since}


def _delete(kubernetes: Cluster, kind: str, value: Object) -> None:
    known = kubernetes.api.kind(value["apiVersion"], kind)
    kubernetes.api.delete(known, value["metadata"].get("namespace"), value["metadata"]["name"])
