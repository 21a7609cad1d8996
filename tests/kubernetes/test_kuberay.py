"""What the KubeRay operator makes of our objects, with the real scheduler placing its pods on nodes of the instance table's size.

The operator is the newest that its Go module is served in (the test names it); what is deployed is newer (config/versions.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import kubernetes_rules
from config.environment import Environment
from config.load import ENVIRONMENTS, load, parse
from k8s import manifests, rayjob
from tests.kubernetes import deployment, kubelet
from tests.kubernetes.conftest import charts
from tests.kubernetes.control_plane import Answer, ControlPlane, wait_for
from tests.kubernetes.deployment import pods, ray
from training import cluster as launcher
from training import kubeconfig
from training.kubernetes import Kubectl
from training.manifests import changed_fields, changes

Json = dict[str, Any]
REFERENCE, PRODUCTION = load("reference"), load("production")
CLUSTER, NAMESPACE = REFERENCE.ray_cluster.name, REFERENCE.ray_cluster.namespace


@pytest.fixture(scope="module")
def platform(plane: ControlPlane, nodes: kubelet.Kubelet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Namespaces, claims, accounts and quotas: once for all tests of this file."""
    nodes.set_nodes(kubelet.nodes(REFERENCE))
    deployment.apply(plane, tmp_path_factory.mktemp("platform"), charts("reference")["platform"])
    yield
    deployment.remove(plane, REFERENCE.namespaces)


@pytest.fixture
def site(plane: ControlPlane, nodes: kubelet.Kubelet, platform: None, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Apply Ray objects to a cluster with an environment's nodes; afterwards they are deleted."""

    def prepare(env: Environment, *members: Json) -> None:
        nodes.set_nodes(kubelet.nodes(env))
        for number, member in enumerate(members):
            assert deployment.apply(plane, tmp_path / f"more-{number}", [member]) == ""

    yield prepare
    deployment.remove_ray(plane, REFERENCE.namespaces)


@pytest.fixture
def cluster() -> Json:
    return copy.deepcopy(charts("reference")["raycluster"][0])


@pytest.fixture
def service() -> Json:
    return copy.deepcopy(charts("production")["rayservice"][0])


def ready(plane: ControlPlane, name: str = CLUSTER) -> Json:
    """The RayCluster once its status says ready, as the launcher waits for it."""

    def look() -> Json | None:
        found = ray(plane, NAMESPACE, "rayclusters", name)
        status = found.get("status", {})
        seen = status.get("observedGeneration") == found["metadata"]["generation"]
        return found if status.get("state") == "ready" and seen else None

    found: Json = wait_for(look, f"RayCluster {name} is ready", plane.alive)
    return found


def controller(obj: Json) -> tuple[str, str]:
    (owner,) = [owner for owner in obj["metadata"]["ownerReferences"] if owner.get("controller")]
    return owner["kind"], owner["name"]


def amounts(pod: Json) -> Json:
    resources: Json = pod["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    limits: Json = resources["limits"]
    return limits


def variables(pod: Json) -> dict[str, Json]:
    return {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}


def test_one_head_and_three_workers_come_up_on_their_nodes(plane: ControlPlane, site: Callable[..., None], cluster: Json) -> None:
    site(REFERENCE, cluster)
    found = ready(plane)
    status = found["status"]
    assert (status["readyWorkerReplicas"], status["desiredWorkerReplicas"], status["maxWorkerReplicas"]) == (3, 3, 3)
    assert status["desiredGPU"] == "6"
    (head,) = pods(plane, NAMESPACE, role="head")
    workers = pods(plane, NAMESPACE, role="worker")
    assert head["spec"]["nodeName"] == "head-0"
    assert sorted(pod["spec"]["nodeName"] for pod in workers) == ["workers-0", "workers-1", "workers-2"]
    for pod in (head, *workers):
        assert controller(pod) == ("RayCluster", CLUSTER)
        assert pod["status"]["qosClass"] == "Guaranteed" or pod["spec"].get("initContainers")
        assert pod["spec"]["serviceAccountName"] == "ray-training"
        assert "HYPERPOD_JMA_HOST" in variables(pod)
        assert pod["spec"]["containers"][0]["livenessProbe"]
        assert pod["spec"]["containers"][0]["readinessProbe"]
    assert "nvidia.com/gpu" not in amounts(head)
    for pod in workers:
        assert (amounts(pod)["nvidia.com/gpu"], amounts(pod)["vpc.amazonaws.com/efa"]) == ("2", "1")
        # Ray learns of its GPUs from the limit, by KubeRay: the start command is where both meet.
        command = " ".join(pod["spec"]["containers"][0].get("args", ()))
        assert "--num-gpus=2" in command
        assert "--num-cpus=46" in command
    assert "--num-cpus=0" in " ".join(head["spec"]["containers"][0].get("args", ()))


def test_services_of_the_head_carry_the_ports_that_the_launcher_uses(plane: ControlPlane, site: Callable[..., None], cluster: Json) -> None:
    site(REFERENCE, cluster)
    found = ready(plane)
    services = {item["metadata"]["name"]: item for item in plane.api().items(f"/api/v1/namespaces/{NAMESPACE}/services")}
    head = services[f"{CLUSTER}-head-svc"]
    assert {"dashboard": 8265, "gcs-server": 6379, "client": 10001}.items() <= {
        port["name"]: port["port"] for port in head["spec"]["ports"]
    }.items()
    assert controller(head) == ("RayCluster", CLUSTER)
    assert found["status"]["head"]["serviceName"] == f"{CLUSTER}-head-svc"
    (chosen,) = [pod for pod in pods(plane, NAMESPACE) if head["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
    assert chosen["metadata"]["labels"]["ray.io/node-type"] == "head"


def test_a_changed_pod_restarts_all_of_them_with_recreate(
    plane: ControlPlane, site: Callable[..., None], cluster: Json, tmp_path: Path
) -> None:
    site(REFERENCE, cluster)
    ready(plane)
    before = {pod["metadata"]["uid"] for pod in pods(plane, NAMESPACE, cluster=CLUSTER)}
    assert len(before) == 4
    container = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "TOKENIZERS_PARALLELISM", "value": "false"})
    deployment.apply(plane, tmp_path / "edited", [cluster])

    def replaced() -> bool:
        after = pods(plane, NAMESPACE, cluster=CLUSTER)
        return len(after) == 4 and not before & {pod["metadata"]["uid"] for pod in after}

    wait_for(replaced, "all four pods are new", plane.alive)
    ready(plane)
    (head,) = pods(plane, NAMESPACE, role="head")
    assert "TOKENIZERS_PARALLELISM" in variables(head)


def test_a_changed_pod_restarts_none_with_none(plane: ControlPlane, site: Callable[..., None], cluster: Json, tmp_path: Path) -> None:
    cluster["spec"]["upgradeStrategy"] = {"type": "None"}
    site(REFERENCE, cluster)
    ready(plane)
    before = {pod["metadata"]["uid"] for pod in pods(plane, NAMESPACE, cluster=CLUSTER)}
    container = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "TOKENIZERS_PARALLELISM", "value": "false"})
    # A smaller group shows that the operator has seen the edit: nothing else of it would be seen.
    cluster["spec"]["workerGroupSpecs"][0].update(replicas=2, minReplicas=2, maxReplicas=2)
    deployment.apply(plane, tmp_path / "edited", [cluster])
    wait_for(lambda: len(pods(plane, NAMESPACE, cluster=CLUSTER)) == 3, "one worker less", plane.alive)
    after = pods(plane, NAMESPACE, cluster=CLUSTER)
    assert {pod["metadata"]["uid"] for pod in after} < before
    assert not [pod for pod in after if "TOKENIZERS_PARALLELISM" in variables(pod)]


def test_a_pod_that_asks_for_more_than_its_node_has_stays_pending(plane: ControlPlane, site: Callable[..., None], cluster: Json) -> None:
    instance = REFERENCE.workers.instance
    resources = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]
    for kind in ("requests", "limits"):
        resources[kind] = {**resources[kind], "memory": f"{int(instance.allocatable_memory_gib()) + 1}Gi"}
    site(REFERENCE, cluster)

    def refused() -> bool:
        found = pods(plane, NAMESPACE, role="worker")
        conditions = [c for pod in found for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
        return ["3 Insufficient memory" in c.get("message", "") for c in conditions] == [True] * 3

    wait_for(refused, "the scheduler says why", plane.alive)
    assert ray(plane, NAMESPACE, "rayclusters", CLUSTER)["status"].get("state") != "ready"


def test_a_second_cluster_is_refused_by_the_quota_and_not_left_waiting(
    plane: ControlPlane, site: Callable[..., None], cluster: Json
) -> None:
    second = copy.deepcopy(cluster)
    second["metadata"]["name"] = "second"
    site(REFERENCE, cluster)
    ready(plane)
    plane.api().apply(deployment.ray_path(NAMESPACE, "rayclusters", "second"), second)

    def said() -> list[str]:
        events = plane.api().items(f"/api/v1/namespaces/{NAMESPACE}/events")
        return [event["message"] for event in events if "exceeded quota: gpus" in event.get("message", "")]

    assert "requests.nvidia.com/gpu" in wait_for(said, "an event tells of the quota", plane.alive)[0]
    assert not [pod for pod in pods(plane, NAMESPACE, cluster="second") if pod["metadata"]["labels"]["ray.io/node-type"] == "worker"]


def test_autoscaling_brings_its_sidecar_and_the_rights_it_needs(plane: ControlPlane, site: Callable[..., None]) -> None:
    text = (ENVIRONMENTS / "reference.yaml").read_text().replace("  namespace: training\n", "  namespace: training\n  autoscaling: true\n")
    cluster = manifests.charts(parse(text))["raycluster"][0]
    site(REFERENCE, cluster)
    head: Json = wait_for(lambda: (pods(plane, NAMESPACE, role="head") or [None])[0], "the head pod", plane.alive)
    assert [container["name"] for container in head["spec"]["containers"]] == ["ray", "autoscaler"]
    assert head["spec"]["restartPolicy"] == "Never"
    bindings = plane.api().items(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings")
    subjects = [subject for item in bindings if item["metadata"]["name"] == CLUSTER for subject in item["subjects"]]
    assert [(subject["kind"], subject["name"]) for subject in subjects] == [("ServiceAccount", "ray-training")]


def test_deleting_the_cluster_takes_its_pods_and_services_along(plane: ControlPlane, site: Callable[..., None], cluster: Json) -> None:
    site(REFERENCE, cluster)
    assert not ready(plane)["metadata"].get("finalizers")
    api = plane.api()
    api.delete(deployment.ray_path(NAMESPACE, "rayclusters", CLUSTER))
    wait_for(lambda: api.gone(deployment.ray_path(NAMESPACE, "rayclusters", CLUSTER)), "the RayCluster is gone", plane.alive)
    for kind in ("pods", "services"):
        path = f"/api/v1/namespaces/{NAMESPACE}/{kind}?labelSelector=ray.io/cluster={CLUSTER}"
        wait_for(lambda path=path: not api.items(path), f"no {kind} are left", plane.alive)


def test_a_rayservice_makes_its_cluster_and_waits_for_rays_answer(plane: ControlPlane, site: Callable[..., None], service: Json) -> None:
    site(PRODUCTION, service)
    namespace, name = PRODUCTION.serving.namespace, PRODUCTION.serving.name

    def pending() -> str:
        status = ray(plane, namespace, "rayservices", name).get("status", {})
        return str(status.get("pendingServiceStatus", {}).get("rayClusterName", ""))

    made = wait_for(pending, "the RayService has a cluster", plane.alive)
    wait_for(lambda: not plane.api().gone(deployment.ray_path(namespace, "rayclusters", made)), f"RayCluster {made}", plane.alive)
    inner = ray(plane, namespace, "rayclusters", made)
    assert controller(inner) == ("RayService", name)
    assert inner["spec"]["rayVersion"] == "2.58.0"
    wait_for(lambda: len(pods(plane, namespace, cluster=made)) == 2, "head and worker", plane.alive)
    for pod in pods(plane, namespace, cluster=made):
        assert pod["spec"]["serviceAccountName"] == "ray-serving"
    wait_for(
        lambda: [pod["spec"].get("nodeName") for pod in pods(plane, namespace, cluster=made)] == ["serving-0"] * 2,
        "both stand on the serving node", plane.alive,
    )  # fmt: skip
    (worker,) = [pod for pod in pods(plane, namespace, cluster=made) if pod["metadata"]["labels"]["ray.io/node-type"] == "worker"]
    assert amounts(worker)["nvidia.com/gpu"] == "1"
    assert worker["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] == 8000
    budget = plane.api().get(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}")
    assert budget["spec"]["selector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()
    live = ray(plane, namespace, "rayservices", name)
    assert list(changed_fields(live["spec"], service["spec"], "spec")) == [], "what the API server adds is no change"
    # No Ray answers here, so it must not be called ready.
    assert not [
        c
        for c in ray(plane, namespace, "rayservices", name)["status"].get("conditions", ())
        if c["type"] == "Ready" and c["status"] == "True"
    ]


def test_a_rayjob_makes_a_cluster_of_its_own(plane: ControlPlane, site: Callable[..., None]) -> None:
    job = rayjob.ray_job(REFERENCE, rayjob.Job("maze-1", "python train.py", {"PYTHONPATH": "/home/ray/skyrl"}))
    site(REFERENCE, job)

    def made() -> str:
        return str(ray(plane, NAMESPACE, "rayjobs", "maze-1").get("status", {}).get("rayClusterName", ""))

    name = wait_for(made, "the RayJob has a cluster", plane.alive)
    wait_for(lambda: not plane.api().gone(deployment.ray_path(NAMESPACE, "rayclusters", name)), f"RayCluster {name}", plane.alive)
    assert controller(ray(plane, NAMESPACE, "rayclusters", name)) == ("RayJob", "maze-1")
    ready(plane, name)
    assert len(pods(plane, NAMESPACE, cluster=name)) == 4
    status = ray(plane, NAMESPACE, "rayjobs", "maze-1")["status"]
    assert status["jobDeploymentStatus"] in ("Initializing", "Waiting", "Running", "Retrying")


BROKEN: list[tuple[str, Callable[[Json], object]]] = [
    ("maxReplicas", lambda spec: spec["workerGroupSpecs"][0].update(minReplicas=4)),
    ("rayStartParams", lambda spec: spec["workerGroupSpecs"][0].update(resources={"GPU": "2"}, rayStartParams={"num-gpus": "2"})),
    ("upgradeStrategy", lambda spec: spec.update(upgradeStrategy={"type": "NewCluster"})),
]


@pytest.mark.parametrize(("said", "change"), BROKEN, ids=[name for name, _ in BROKEN])
def test_what_our_rules_refuse_the_operator_refuses_too(
    plane: ControlPlane, site: Callable[..., None], cluster: Json, said: str, change: Callable[[Json], object]
) -> None:
    """Each of these breaks a rule of config/kubernetes_rules.py; the operator, or the schema, must not run it either."""
    site(REFERENCE)
    change(cluster["spec"])
    assert kubernetes_rules.problems(cluster)
    try:
        made = plane.api().apply(deployment.ray_path(NAMESPACE, "rayclusters", CLUSTER), cluster)
    except Answer as answer:
        if answer.code != 422:
            raise
        return  # the schema says it already

    def refused() -> list[str]:
        events = plane.api().items(f"/api/v1/namespaces/{NAMESPACE}/events")
        ours = [event for event in events if event["involvedObject"].get("uid") == made["metadata"]["uid"]]
        return [event["message"] for event in ours if event.get("reason", "").startswith("Invalid")]

    assert said in wait_for(refused, "the operator says what is invalid", plane.alive)[0]
    assert not pods(plane, NAMESPACE, cluster=CLUSTER)


CHOICES = [
    pytest.param(
        "  gcs_fault_tolerance: true\n  redis_address: redis.training:6379\n  redis_password_secret: redis", "", id="GCS fault tolerance"
    ),
    pytest.param("  autoscaling: true", "", id="autoscaling"),
    pytest.param("", "remote_access: {domain: {name: ray.example.com, hosted_zone_id: Z0123456789ABC}, strategy: public}", id="a domain"),
    pytest.param("", f"image: {{digest: 'sha256:{'ab' * 32}'}}", id="an image by digest"),
    pytest.param("", "serving: {replicas: 6, adapters_per_replica: 4}", id="six replicas"),
]


@pytest.mark.parametrize(("of_cluster", "of_all"), CHOICES)
def test_every_choice_of_a_user_gives_objects_that_are_taken(plane: ControlPlane, platform: None, of_cluster: str, of_all: str) -> None:
    text = (ENVIRONMENTS / "reference.yaml").read_text().replace("  namespace: training\n", f"  namespace: training\n{of_cluster}\n", 1)
    made = manifests.charts(parse(text.replace("tags:\n", f"{of_all}\ntags:\n", 1)))
    for kind, chart in (("rayclusters", "raycluster"), ("rayservices", "rayservice")):
        (member,) = made[chart]
        path = deployment.ray_path(member["metadata"]["namespace"], kind, member["metadata"]["name"])
        assert plane.api().apply(path, member, dry_run=True)["spec"]


def test_the_launcher_brings_it_up_sees_no_change_and_takes_it_down(
    plane: ControlPlane, site: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hyperpod-rl cluster up` and `down`, but for EKS's login: the files of dist/, kubectl, KubeRay's own status."""
    site(REFERENCE)
    monkeypatch.setattr(kubeconfig, "ensure", lambda env: plane.kubeconfig())
    monkeypatch.setattr(kubeconfig, "credential", lambda config: {})
    monkeypatch.setattr(launcher, "UNSEEN_SECONDS", 3.0)
    manifests.write(REFERENCE, tmp_path)
    kubectl, found = Kubectl(REFERENCE), launcher.manifests(REFERENCE, "reference", root=tmp_path)
    state = launcher.up(kubectl, found, timeout_seconds=60)
    assert (state.ready, state.workers_ready, state.gpus, state.generation_seen) == (True, 3, 6, True)
    assert changes(kubectl, found) == [], "what the API server adds is no change"
    # A toleration moves no pod, and KubeRay never says that it saw it: not a reason to wait for ever.
    (file,) = found.files
    edited = yaml.safe_load(file.read_text())
    edited["spec"]["workerGroupSpecs"][0]["template"]["spec"]["tolerations"] = [{"key": "team", "operator": "Exists"}]
    file.write_text(manifests.dump(edited))
    changed = launcher.manifests(REFERENCE, "reference", root=tmp_path)
    assert changes(kubectl, changed) == ["spec.workerGroupSpecs[0].template.spec.tolerations"]
    state = launcher.up(kubectl, changed, timeout_seconds=60)
    assert (state.ready, state.generation_seen) == (True, False)
    assert not launcher.down(kubectl, timeout_seconds=60).exists
