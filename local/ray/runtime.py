"""Runs the Ray pods of all clusters: one thread that starts, watches and ends their processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local.kubernetes.cluster import Cluster
from local.kubernetes.controllers import pod_status
from local.kubernetes.store import Change, Key
from local.ray import manifest, operator, processes
from local.ray.processes import RayNode
from local.serving.operator import Services
from local.state import of_cluster

Object = dict[str, Any]
# Two cores: no idle workers before there is work, no usage statistics, no Ray Client sessions kept.
LIGHT = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    # The memory monitor would kill workers because of what else runs on this machine.
    "RAY_memory_monitor_refresh_ms": "0",
    # One busy machine is slower than a cluster of idle ones.
    "RAY_health_check_initial_delay_ms": "20000",
    "RAY_health_check_timeout_ms": "30000",
    # As in an image, whatever the locale of this machine.
    "PYTHONUTF8": "1",
}
_KEPT = ("HOME", "LANG", "LC_ALL", "USER", "TZ", "LD_LIBRARY_PATH", "NODE_PATH")
_STATIC_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
BACKOFF_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0)
# As KubeRay's liveness probes: a pod whose agent never answers (its port was taken meanwhile, say) starts again, with other ports.
STARTUP_SECONDS = 240.0
DASHBOARD_PORT = 8265


@dataclass
class Running:
    """One RayCluster's processes. `ports` are those that all its nodes need to know."""

    kubernetes: Cluster
    key: Key
    uid: str
    gcs_port: int = 0
    nodes: dict[str, RayNode] = field(default_factory=dict)
    head: str = ""


class Runtime:
    """Implements `local.kubernetes.cluster.RayRuntime`. `stop` ends everything."""

    def __init__(
        self,
        *,
        folder: Path,
        shared: Path,
        root: Path,
        environment: Mapping[str, str] | None = None,
        identity_of: Callable[[str, str, str], Mapping[str, str]] = lambda cluster, namespace, account: {},
    ) -> None:
        """`folder`: for temporary folders, a short path; `shared` stands for /shared; `root`: on the jobs' PYTHONPATH.

        `identity_of(cluster, namespace, service account)`: the variables that EKS Pod Identity puts into such a pod, empty where
        the account has no association.
        """
        self.folder, self.shared, self.root = folder, shared, root
        self._environment = dict(environment or {})
        self._identity_of = identity_of
        self._clusters: list[Cluster] = []
        self._running: dict[str, Running] = {}
        self._services = Services()
        self._stops: dict[str, Callable[[], None]] = {}
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = False
        self._addresses = 0
        self._thread: threading.Thread | None = None

    # ---- interface ---------------------------------------------------------------------------------------------

    def set_environment(self, environment: Mapping[str, str]) -> None:
        """Variables that every pod gets from now on (the AWS endpoint and its dummy keys)."""
        self._environment = dict(environment)

    def attach(self, cluster: Cluster) -> None:
        """Run the Ray pods of this cluster from now on."""
        with self._lock:
            self._clusters.append(cluster)
            self._stops[cluster.name] = cluster.store.listen(self._changed)
            if self._thread is None:
                # What a daemon that was killed has left: Ray's agents outlive their parents for a while.
                end_leftovers(self.folder)
                self._thread = threading.Thread(target=self._work, name="ray-runtime", daemon=True)
                self._thread.start()
        self._wake.set()

    def detach(self, cluster: Cluster) -> None:
        """End every Ray process of this cluster; returns when they are gone."""
        with self._lock:
            if cluster in self._clusters:
                self._clusters.remove(cluster)
                self._stops.pop(cluster.name)()
            for uid, running in list(self._running.items()):
                if running.kubernetes is cluster:
                    self._end(uid)

    def wait_ended(self, cluster: Cluster, namespace: str, name: str) -> None:
        """Return when no process of a deleted RayCluster is left, nor of those that went with a deleted RayService."""
        with self._lock:
            for uid, running in list(self._running.items()):
                if running.kubernetes is cluster and running.key.namespace == namespace:
                    live = cluster.store.get(running.key)
                    if live is None or live["metadata"]["uid"] != uid:
                        self._end(uid)

    def processes(self) -> list[str]:
        """What still runs, one line for each process of each pod."""
        with self._lock:
            nodes = [node for running in self._running.values() for node in running.nodes.values()]
            sessions = {node.process.pid for node in nodes if node.process is not None and node.alive()}
        found = processes.marked(processes.FOLDER_MARK, str(self.folder), sessions=sessions)
        return [f"process {pid} of Ray" for pid in found]

    def dashboard(self, cluster: Cluster, namespace: str, name: str) -> str | None:
        """URL of a RayCluster's dashboard, or None while its head does not answer."""
        with self._lock:
            for running in self._running.values():
                if running.kubernetes is cluster and (running.key.namespace, running.key.name) == (namespace, name):
                    node = running.nodes.get(running.head)
                    return f"http://{node.address}:{node.dashboard_port}" if node is not None and node.ready else None
        return None

    def log_of(self, cluster: Cluster, namespace: str, pod: str) -> Path | None:
        """The log of one Ray pod."""
        with self._lock:
            for running in self._running.values():
                if running.kubernetes is cluster and running.key.namespace == namespace and pod in running.nodes:
                    return running.nodes[pod].log
        return None

    def stop(self) -> None:
        """End all processes and the thread, and remove the folder."""
        with self._lock:
            self._stopping = True
            for stop in self._stops.values():
                stop()
            for uid in list(self._running):
                self._end(uid)
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)
        end_leftovers(self.folder)

    # ---- work --------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if change.key.group == "ray.io" or change.key.kind in ("Pod", "Node", "PersistentVolumeClaim", "ServiceAccount"):
            self._wake.set()

    def _work(self) -> None:
        while not self._stopping:
            busy = False
            with self._lock:
                for cluster in list(self._clusters):
                    try:
                        busy |= self._look_at(cluster)
                    except Exception:  # noqa: BLE001 - the thread outlives one bad object; the log of the daemon tells
                        traceback.print_exc()
            self._wake.wait(timeout=0.2 if busy else 1.0)
            self._wake.clear()

    def _look_at(self, kubernetes: Cluster) -> bool:
        """One round over a cluster's RayServices and RayClusters; True while something is still on its way."""
        busy = self._services.reconcile(kubernetes, self.dashboard)
        objects = kubernetes.store.select(group="ray.io", kind="RayCluster")
        uids = {value["metadata"]["uid"] for value in objects}
        for uid, running in list(self._running.items()):
            if running.kubernetes is kubernetes and uid not in uids:
                self._end(uid)
        for value in objects:
            if "deletionTimestamp" in value["metadata"]:
                continue
            uid = value["metadata"]["uid"]
            if uid not in self._running:
                self._running[uid] = Running(kubernetes, operator.key_of(value), uid)
            running = self._running[uid]
            problem = operator.reconcile(kubernetes, value)
            busy |= self._pods(running, value)
            addresses = {name: node.address for name, node in running.nodes.items()}
            operator.report(kubernetes, value, problem=problem, addresses=addresses)
        return busy

    def _pods(self, running: Running, cluster: Object) -> bool:
        busy = False
        pods = {pod["metadata"]["name"]: pod for pod in operator.pods_of(running.kubernetes, cluster)}
        for name in [name for name in running.nodes if name not in pods]:
            processes.end(running.nodes.pop(name))
        # The head first: its port is what the workers join.
        for name, pod in sorted(pods.items(), key=lambda item: not operator.is_head(item[1])):
            if not pod["spec"].get("nodeName"):
                continue
            node = running.nodes.get(name) or self._node(running, pod)
            if node.process is not None and not node.alive():
                self._died(running, pod, node, node.last_words())
            elif node.alive() and not node.ready and time.monotonic() - node.started_at > STARTUP_SECONDS:
                self._died(running, pod, node, f"it did not answer within {STARTUP_SECONDS:.0f} s: {node.last_words()}")
            if node.process is None and time.monotonic() >= node.start_after:
                self._start(running, cluster, pod, node)
            if node.alive() and not node.ready and self._is_ready(pod, node):
                node.ready = True
                self._set_phase(running, pod, "Running", restarts=node.restarts)
            busy |= not node.ready
        return busy

    def _node(self, running: Running, pod: Object) -> RayNode:
        uid = pod["metadata"]["uid"]
        folder = self.folder / uid[:8]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        node = RayNode(uid, folder, self._next_address())
        running.nodes[pod["metadata"]["name"]] = node
        return node

    def _next_address(self) -> str:
        """A loopback address for each pod; Linux answers on all of 127.0.0.0/8. The folder keeps two checkouts apart."""
        self._addresses += 1
        first, second = hashlib.sha256(str(self.folder).encode()).digest()[:2]
        return f"127.{64 + first % 128}.{(second + self._addresses // 250) % 256}.{self._addresses % 250 + 2}"

    def _start(self, running: Running, cluster: Object, pod: Object, node: RayNode) -> None:
        name = pod["metadata"]["name"]
        group = next(g for g in manifest.groups(cluster) if g.name == pod["metadata"]["labels"]["ray.io/group"])
        flags = ["start", "--block", f"--node-ip-address={node.address}", f"--temp-dir={node.temporary}"]
        # The agent listens on this port of 127.0.0.1 too, where it would meet the agents of the other pods and of other Rays.
        node.agent_port = processes.free_port()
        flags.append(f"--dashboard-agent-listen-port={node.agent_port}")
        flags += ["--disable-usage-stats", f"--object-store-memory={manifest.OBJECT_STORE_BYTES}", *manifest.resource_flags(group)]
        if group.head:
            running.gcs_port = processes.free_port()
            running.head = name
            node.dashboard_port = processes.free_port(node.address, preferred=DASHBOARD_PORT)
            flags += ["--head", f"--port={running.gcs_port}", f"--dashboard-host={node.address}", f"--dashboard-port={node.dashboard_port}"]
            flags += ["--no-monitor", f"--ray-client-server-port={processes.free_port()}"]
        else:
            head = running.nodes.get(running.head)
            if head is None or not head.alive() or not processes.answers(head.address, running.gcs_port):
                return
            flags.append(f"--address={head.address}:{running.gcs_port}")
        try:
            environment = self._variables(running, pod, node, group)
        except ValueError as missing:
            self._set_phase(running, pod, "Pending", waiting="CreateContainerConfigError", message=str(missing))
            node.start_after = time.monotonic() + 1.0
            return
        processes.start(node, flags, environment, root=self.folder)
        running.kubernetes.controllers.event(pod, reason="Started", message=f"Started container {pod['spec']['containers'][0]['name']}")

    def _shared_of(self, cluster: str) -> Path:
        """The folder that stands for /shared in an EKS cluster."""
        found = self.shared.with_name(of_cluster(self.shared.name, cluster))
        found.mkdir(parents=True, exist_ok=True)
        return found

    def _variables(self, running: Running, pod: Object, node: RayNode, group: manifest.Group) -> dict[str, str]:
        def look_up(kind: str, name: str) -> Object | None:
            return running.kubernetes.store.get(Key("", kind, running.key.namespace, name))

        shared = self._shared_of(running.kubernetes.name)
        own = manifest.environment(pod, address=node.address, shared=str(shared), look_up=look_up)
        head = running.nodes.get(running.head, node)
        path = os.environ.get("PATH", os.defpath)
        account = pod["spec"].get("serviceAccountName") or "default"
        identity = self._identity_of(running.kubernetes.name, running.key.namespace, account)
        # SDKs look at static keys first, so a pod that has a role must not have them.
        given = {name: text for name, text in self._environment.items() if not (identity and name in _STATIC_KEYS)}
        return {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            **LIGHT,
            "RAY_CLUSTER_NAME": running.key.name,
            "RAY_NODE_TYPE_NAME": group.name,
            "RAY_IP": head.address,
            "FQ_RAY_IP": head.address,
            "RAY_PORT": str(running.gcs_port),
            **given,
            **identity,
            **own,
            "TMPDIR": str(node.scratch),
            "HYPERPOD_RL_SHARED": str(shared),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.root), own.get("PYTHONPATH", "")])),
            "PATH": f"{processes.interpreter(node.folder).parent}{os.pathsep}{path}",
        }

    def _is_ready(self, pod: Object, node: RayNode) -> bool:
        """KubeRay's readiness probes: the node's agent and, on the head, the dashboard. Without its agent a head takes no job."""
        if not node.has_started() or not _healthy(f"http://{node.address}:{node.agent_port}/api/local_raylet_healthz"):
            return False
        return not operator.is_head(pod) or _healthy(f"http://{node.address}:{node.dashboard_port}/api/gcs_healthz")

    def _died(self, running: Running, pod: Object, node: RayNode, why: str) -> None:
        """As the kubelet: the container starts again in its pod; with restartPolicy Never the pod fails and is replaced."""
        processes.end(node, keep_folder=True)
        node.process = None
        container = pod["spec"]["containers"][0]["name"]
        text = f"Back-off restarting failed container {container} in pod {pod['metadata']['name']}{why and f': {why}'}"
        running.kubernetes.controllers.event(pod, reason="BackOff", message=text, kind="Warning")
        if pod["spec"].get("restartPolicy") == "Never":
            self._set_phase(running, pod, "Failed", message=why or "the Ray process ended")
            return
        node.restarts += 1
        # A process that ran for ten minutes starts again at once, as the kubelet forgives.
        step = 1 if time.monotonic() - node.started_at > 600 else node.restarts
        node.start_after = time.monotonic() + BACKOFF_SECONDS[min(step, len(BACKOFF_SECONDS)) - 1]
        self._set_phase(running, pod, "Pending", waiting="CrashLoopBackOff", restarts=node.restarts, message=why)
        if operator.is_head(pod):
            # Without fault tolerance of the GCS the workers of a lost head end too and join the new one.
            for name, other in running.nodes.items():
                if other is not node and other.process is not None:
                    processes.end(other, keep_folder=True)
                    other.process = None
                    other.restarts += 1
                    live = running.kubernetes.store.get(Key("", "Pod", running.key.namespace, name))
                    if live is not None:
                        self._set_phase(running, live, "Pending", waiting="CrashLoopBackOff", restarts=other.restarts)

    def _set_phase(self, running: Running, pod: Object, phase: str, *, waiting: str = "", restarts: int = 0, message: str = "") -> None:
        key = Key("", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        status = pod_status(pod, phase=phase, waiting=waiting, restarts=restarts, message=message)
        node = running.nodes.get(pod["metadata"]["name"])
        if node is not None:
            status["podIP"], status["podIPs"] = node.address, [{"ip": node.address}]
        if {**pod.get("status", {})} != status:
            running.kubernetes.api.set_status(key, status)

    def _end(self, uid: str) -> None:
        running = self._running.pop(uid)
        for node in running.nodes.values():
            if node.process is not None and node.alive():
                node.process.kill()
        for node in running.nodes.values():
            processes.end(node)


# Past any proxy that the environment names: Ray is on the loopback interface.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _healthy(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=2) as reply:
            return b"success" in reply.read()
    except (urllib.error.URLError, OSError):
        return False


def end_leftovers(folder: Path) -> list[int]:
    """End every Ray process that belongs to a state folder, also of a daemon that was killed; removes the folder."""
    ended = processes.end_marked(processes.FOLDER_MARK, str(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return ended
