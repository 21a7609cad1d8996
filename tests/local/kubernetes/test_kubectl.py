"""What people type, with the real kubectl: one server for all of it, one namespace for each test."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from local.kubernetes import certificates, kubeconfig
from local.kubernetes.cluster import Cluster, Clusters, Node
from local.kubernetes.errors import Rejected
from local.kubernetes.protobuf import decode
from local.kubernetes.server import Endpoint, listen
from local.kubernetes.store import Key, Store
from local.kubernetes.subresources import check_eviction
from local.ray.processes import free_port
from tests.local.kubernetes.conftest import deployment, install_kuberay
from tests.local.kubernetes.test_server import TwoPorts
from tests.local.kubernetes.test_tokens import secret_of, token

KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is put into .venv/bin by `make setup`")


class Logs:
    """Stands for the runtime of Ray's pods: the pod `ray-1` of any namespace has a log."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "ray.log"

    def log_of(self, cluster: Cluster, namespace: str, pod: str) -> Path | None:
        return self.log if pod == "ray-1" else None

    def dashboard(self, cluster: Cluster, namespace: str, name: str) -> str | None:
        return None


@dataclass
class Typed:
    """A shell beside a cluster. Calling it runs kubectl and gives exit code and everything that it printed."""

    folder: Path
    cluster: Cluster
    logs: Logs

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        options = ["--kubeconfig", str(self.folder / "kubeconfig"), "--cache-dir", str(self.folder / "cache")]
        return subprocess.Popen(
            [str(KUBECTL), *options, *arguments], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def __call__(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        said = process.communicate(timeout=60)[0]
        return process.returncode, said

    def done(self, *arguments: str) -> str:
        code, said = self(*arguments)
        assert code == 0, said
        return said


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    folder = tmp_path_factory.mktemp("kubectl")
    files, ports = certificates.make(folder / "certificates"), TwoPorts(free_port("127.0.0.1"), free_port("127.0.0.1"))
    clusters, logs = Clusters(), Logs(folder)
    cluster = clusters.create("demo")
    clusters.ray = logs  # type: ignore[assignment]
    cluster.set_nodes([Node(f"worker-{number}", capacity={"cpu": "48", "memory": "460Gi"}) for number in range(2)])
    endpoint = Endpoint(clusters, files=files, ports=ports, secret_of=secret_of)
    content = kubeconfig.kubeconfig("demo", endpoint=endpoint.of("demo")[0], authority_data=files.authority_data, region="us-west-2")
    content["users"][0]["user"] = {"token": token()}
    kubeconfig.write(folder / "kubeconfig", content)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    runner = loop.run_until_complete(listen(endpoint.kubernetes(), ports.kubernetes, files))
    thread.start()
    yield Typed(folder, cluster, logs)
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=120)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=120)
    loop.close()


def written(kubectl: Typed, name: str, *objects: object) -> str:
    path = kubectl.folder / name
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def test_create_of_every_kind_that_is_sent_in_protobuf(kubectl: Typed) -> None:
    """kubectl sends these in protobuf and does not fall back to JSON; `create secret` is what our own message tells people to run."""
    (kubectl.folder / "keys").write_text("one\ntwo\n")
    assert "namespace/made created" in kubectl.done("create", "namespace", "made")
    in_made = ("-n", "made", "create")
    for arguments in (
        ("secret", "generic", "api-keys", f"--from-file=keys={kubectl.folder / 'keys'}", "--from-literal=empty="),
        ("configmap", "settings", "--from-literal=a=1"),
        ("serviceaccount", "robot"),
        ("role", "reader", "--verb=get", "--resource=pods"),
        ("rolebinding", "reader", "--role=reader", "--serviceaccount=made:robot"),
        ("quota", "few", "--hard=pods=9"),
        ("ingress", "door", "--rule=example.com/*=web:80"),
        ("poddisruptionbudget", "one", "--selector=app=x", "--min-available=50%"),
        ("cronjob", "nightly", "--image=busybox:1", "--schedule=0 0 * * *", "--", "echo", "hi"),
        ("deployment", "idle", "--image=web:1", "--replicas=0", "--port=80"),
    ):
        assert "created" in kubectl.done(*in_made, *arguments)
    assert "job.batch/now created" in kubectl.done(*in_made, "job", "now", "--from=cronjob/nightly")
    assert "secret/later created (server dry run)" in kubectl.done(*in_made, "secret", "generic", "later", "--dry-run=server")

    def found(kind: str, name: str) -> dict[str, object]:
        value: dict[str, object] = json.loads(kubectl.done("-n", "made", "get", kind, name, "-o", "json"))
        return value

    assert found("secret", "api-keys")["data"] == {"keys": "b25lCnR3bwo=", "empty": ""}
    assert kubectl.cluster.get("Secret", "made", "later") is None
    # Structs that Go embeds, numbers that may be texts, quantities, a number that is nought and not missing.
    door = {"service": {"name": "web", "port": {"number": 80}}}
    rule = {"host": "example.com", "http": {"paths": [{"backend": door, "path": "/", "pathType": "Prefix"}]}}
    assert found("ingress", "door")["spec"] == {"rules": [rule]}
    assert found("pdb", "one")["spec"] == {"minAvailable": "50%", "selector": {"matchLabels": {"app": "x"}}}
    assert found("quota", "few")["spec"] == {"hard": {"pods": "9"}}
    assert found("deployment", "idle")["spec"]["replicas"] == 0  # type: ignore[index]
    assert "creationTimestamp" not in json.dumps(found("deployment", "idle")["spec"])
    assert "Completed" in kubectl.done("-n", "made", "get", "pods", "-l", "job-name=now")


def test_what_is_no_protobuf_of_kubernetes_is_refused_in_a_sentence() -> None:
    for body, reason in (
        (b"{}", "BadRequest"),
        (b"k8s\x00\xff\xff", "BadRequest"),
        (b"k8s\x00\n\x0c\n\x02v1\x12\x06Gadget\x12\x00", "UnsupportedMediaType"),
        (b"k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x03\xff\xff\xff", "BadRequest"),
    ):
        with pytest.raises(Rejected) as refused:
            decode(body)
        assert refused.value.reason == reason


def test_looking_changing_and_rolling_out(kubectl: Typed) -> None:
    kubectl.done("create", "namespace", "web")
    here = ("-n", "web")
    apply = ("apply", "--server-side", "-f", written(kubectl, "web.yaml", deployment(replicas=2, namespace="web")))
    assert "serverside-applied (server dry run)" in kubectl.done(*apply, "--dry-run=server")
    assert kubectl.cluster.get("Deployment", "web", "web") is None
    assert "deployment.apps/web serverside-applied" in kubectl.done(*apply)
    assert "successfully rolled out" in kubectl.done(*here, "rollout", "status", "deployment/web", "--timeout=20s")
    assert "condition met" in kubectl.done(*here, "wait", "--for=condition=Available", "deployment/web", "--timeout=20s")
    assert kubectl.done(*here, "get", "pods", "--no-headers").count("1/1") == 2
    assert "2 desired | 2 updated | 2 total | 2 available" in kubectl.done(*here, "describe", "deployment", "web")
    assert "scaled" in kubectl.done(*here, "scale", "deployment/web", "--current-replicas=2", "--replicas=3")
    assert kubectl.done(*here, "get", "deploy", "web", "-o", "jsonpath={.spec.replicas} {.status.readyReplicas}") == "3 3"
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "web", "env": [{"name": "A", "value": "1"}]}]}}}}
    for arguments in (
        ("label", "deployment", "web", "team=rl"),
        ("annotate", "deployment", "web", "note=here"),
        ("patch", "deployment", "web", "-p", json.dumps(patch)),
        ("set", "image", "deployment/web", "web=web:2"),
        ("rollout", "restart", "deployment/web"),
        ("expose", "deployment", "web", "--port=80"),
        ("autoscale", "deployment", "web", "--max=3"),
    ):
        kubectl.done(*here, *arguments)
    columns = "custom-columns=L:.metadata.labels.team,N:.metadata.annotations.note,I:.spec.template.spec.containers[0].image"
    assert kubectl.done(*here, "get", "deployment", "web", "-o", columns).split() == ["L", "N", "I", "rl", "here", "web:2"]
    code, shown = kubectl(*here, "diff", "-f", written(kubectl, "other.yaml", deployment(replicas=1, namespace="web")))
    assert code == 1
    assert "-  replicas: 3\n+  replicas: 1\n" in shown
    assert "Scheduled" in kubectl.done(*here, "events")
    watching = kubectl.start(*here, "get", "deployment", "web", "--watch", "--no-headers", "-o", "name")
    assert watching.stdout is not None
    assert watching.stdout.readline() == "deployment.apps/web\n"
    assert "deleted" in kubectl.done(*here, "delete", "deployment", "web", "--wait", "--timeout=20s")
    assert watching.stdout.readline() == "deployment.apps/web\n"
    watching.kill()
    watching.communicate(timeout=120)
    assert kubectl.done(*here, "get", "deployments", "--ignore-not-found", "-o", "name") == ""


def test_what_may_i_do_and_what_is_there(kubectl: Typed) -> None:
    install_kuberay(kubectl.cluster)
    assert kubectl.done("auth", "can-i", "create", "pods") == "yes\n"
    assert "*.*" in kubectl.done("auth", "can-i", "--list")
    assert "AKIAEXAMPLE" in kubectl.done("auth", "whoami")
    assert "minReadySeconds\t<integer>" in kubectl.done("explain", "deployment.spec")
    assert "headGroupSpec" in kubectl.done("explain", "rayclusters.spec")


def test_logs_end_with_the_client_and_know_the_run_before(kubectl: Typed) -> None:
    kubectl.logs.log.write_text("first\nsecond\n")
    kubectl.done("create", "namespace", "logs")
    here = ("-n", "logs")
    kubectl.done(*here, "run", "ray-1", "--image=ray:1", "--restart=Never")
    assert kubectl.done(*here, "logs", "ray-1", "--tail=1") == "second\n"
    code, said = kubectl(*here, "logs", "ray-1", "--previous")
    assert (code, "previous terminated container" in said) == (1, True)
    (kubectl.folder / "ray.previous.log").write_text("died\n")
    assert kubectl.done(*here, "logs", "ray-1", "--previous") == "died\n"
    assert "container nope is not valid" in kubectl(*here, "logs", "ray-1", "-c", "nope")[1]
    kubectl.done(*here, "create", "job", "once", "--image=busybox:1")
    code, said = kubectl(*here, "logs", "job/once")
    assert (code, "pod once-" in said, "only Ray's pods are run" in said) == (1, True, True)
    following = kubectl.start(*here, "logs", "ray-1", "--follow")
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(2)] == ["first\n", "second\n"]
    with kubectl.logs.log.open("a") as log:
        log.write("third\n")
    assert following.stdout.readline() == "third\n"
    kubectl.done(*here, "delete", "pod", "ray-1")
    kubectl.logs.log.unlink()  # with the pod goes its folder
    assert following.wait(timeout=120) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("exec", "some", "--", "ls"), "the local cloud has no containers to enter"),
        (("attach", "some"), "the local cloud has no containers to enter"),
        (("port-forward", "pod/some", ":80"), "the local cloud forwards no ports"),
        (("create", "token", "default"), "issues no service account tokens"),
        (("top", "pods"), "Metrics API not available"),
    ],
)
def test_what_cannot_work_here_says_why(kubectl: Typed, arguments: tuple[str, ...], why: str) -> None:
    if kubectl.cluster.get("Pod", "default", "some") is None:
        kubectl.done("run", "some", "--image=web:1")
    code, said = kubectl(*arguments)
    assert (code, why in said) == (1, True), said


def test_a_drain_waits_for_the_disruption_budget(kubectl: Typed) -> None:
    kubectl.done("create", "namespace", "drained")
    here = ("-n", "drained")
    kubectl.done(*here, "create", "deployment", "one", "--image=web:1")
    kubectl.done(*here, "create", "poddisruptionbudget", "one", "--selector=app=one", "--min-available=1")
    node = kubectl.done(*here, "get", "pods", "-l", "app=one", "-o", "jsonpath={.items[0].spec.nodeName}")
    try:
        code, said = kubectl("drain", node, "--pod-selector=app=one", "--timeout=1s")
        assert (code, "Cannot evict pod as it would violate the pod's disruption budget" in said) == (1, True), said
        kubectl.done(*here, "delete", "pdb", "one")
        assert "evicted" in kubectl.done("drain", node, "--pod-selector=app=one", "--timeout=20s")
    finally:
        kubectl.done("uncordon", node)


@pytest.mark.parametrize(
    ("spec", "ready", "evicted"),
    [
        ({"minAvailable": 1}, [True, True], True),
        ({"minAvailable": 2}, [True, True], False),
        ({"minAvailable": "51%"}, [True, True], False),
        ({"maxUnavailable": 1}, [True, True], True),
        ({"maxUnavailable": 1}, [True, False], False),
        ({"minAvailable": 1}, [False], False),
        ({"minAvailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}, [False], True),
        ({"minAvailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}, [True], False),
    ],
)
def test_which_pod_may_be_evicted(spec: dict[str, object], ready: list[bool], evicted: bool) -> None:
    store = Store()
    pods = []
    for number, its in enumerate(ready):
        conditions = [{"type": "Ready", "status": str(its)}]
        pod = {
            "kind": "Pod",
            "metadata": {"name": f"p{number}", "namespace": "x", "labels": {"a": "b"}},
            "status": {"conditions": conditions},
        }
        pods.append(store.put(Key("", "Pod", "x", f"p{number}"), pod))
    budget = {"metadata": {"name": "budget", "namespace": "x"}, "spec": {**spec, "selector": {"matchLabels": {"a": "b"}}}}
    store.put(Key("policy", "PodDisruptionBudget", "x", "budget"), budget)
    if evicted:
        check_eviction(store, pods[0])
        return
    with pytest.raises(Rejected, match="The disruption budget budget needs") as refused:
        check_eviction(store, pods[0])
    assert refused.value.code == 429
