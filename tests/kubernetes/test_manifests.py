"""What a real API server says to every object of every environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config import names
from config.environment import Environment
from config.load import ENVIRONMENTS, parse
from config.placeholders import fill
from k8s import manifests
from tests.kubernetes import deployment, kubelet
from tests.kubernetes.conftest import DEPLOYED, charts
from tests.kubernetes.control_plane import Answer, ControlPlane, wait_for
from training import cluster, pod_api
from training.kubernetes import Rejected

Json = dict[str, Any]


@pytest.fixture(scope="module")
def platform(
    plane: ControlPlane, nodes: kubelet.Kubelet, environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The platform chart of an environment on its nodes; the API server's warnings. Afterwards everything is deleted."""
    nodes.set_nodes(kubelet.nodes(environment))
    yield deployment.apply(plane, tmp_path_factory.mktemp("platform"), charts(environment.name)["platform"])
    deployment.remove(plane, environment.namespaces)


def test_every_object_is_taken_as_it_is_and_a_second_apply_changes_none(
    plane: ControlPlane, environment: Environment, platform: str, tmp_path: Path
) -> None:
    assert platform == ""
    made = charts(environment.name)
    assert all(made[name] for name in ("platform", "raycluster", "rayservice"))
    for name in ("model", "raycluster", "rayservice", "supervisor"):
        if made[name]:
            assert deployment.apply(plane, tmp_path / name, made[name]) == ""
    kept = [member for chart in ("platform", "model") for member in made[chart] if member["kind"] not in ("Job", "ResourceQuota")]
    before = deployment.versions(plane, kept)
    for name in ("platform", "model"):
        if made[name]:
            assert deployment.apply(plane, tmp_path / name, made[name]) == ""
    changed = {key for key, version in deployment.versions(plane, kept).items() if before[key] != version}
    # Controllers write the status of claims, volumes and budgets; the rest stands as it was applied.
    assert {key.split("/")[0] for key in changed} <= {"PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget"}
    deployment.remove_ray(plane, environment.namespaces)


def test_the_supervisors_role_reads_the_raycluster_pods_and_events_and_nothing_else(
    plane: ControlPlane, environment: Environment, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, account = environment.ray_cluster.namespace, names.SUPERVISOR_SERVICE_ACCOUNT
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    (tmp_path / "token").write_text(plane.api().call("POST", path, request)["status"]["token"])
    (tmp_path / "ca.crt").write_bytes(plane.authority.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(plane.ports["api"]))
    pod = pod_api.PodApi(environment, identity=tmp_path)
    assert pod.get(cluster.KIND, namespace=namespace, name=environment.ray_cluster.name) is None
    assert not cluster.state(pod).exists
    deployment.apply(plane, tmp_path / "ray", charts(environment.name)["raycluster"])
    assert cluster.state(pod).exists
    assert pod.list("events", namespace=namespace) is not None
    deployment.remove_ray(plane, environment.namespaces)
    for refused in (
        lambda: pod.get(cluster.KIND, namespace=namespace, name="another"),
        lambda: pod.list(cluster.KIND, namespace=namespace),
        lambda: pod.list("pods", namespace="kube-system"),
    ):
        with pytest.raises(Rejected, match="forbidden"):
            refused()
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    who = {"user": f"system:serviceaccount:{namespace}:{account}", "groups": ["system:serviceaccounts", "system:authenticated"]}
    for verb, resource, group in (
        ("get", "secrets", ""), ("list", "configmaps", ""), ("create", "pods", ""), ("delete", "pods", ""), ("get", "pods/log", ""),
        ("patch", "rayclusters", "ray.io"), ("delete", "rayclusters", "ray.io"), ("create", "rayjobs", "ray.io"),
    ):  # fmt: skip
        asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        made = plane.api().call(
            "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {**review, "spec": {**who, "resourceAttributes": asked}}
        )
        assert not made["status"]["allowed"], asked


def test_every_pod_template_passes_baseline_and_the_api_servers_own_checks(
    plane: ControlPlane, environment: Environment, platform: str
) -> None:
    # The quota has room for what is looked at here only while KubeRay's pods are not there.
    deployment.remove_ray(plane, environment.namespaces)
    for namespace in environment.namespaces:
        wait_for(lambda name=namespace: not _held(plane, name), f"the quota of {namespace} counts no GPU", plane.alive)
    made = 0
    for chart in charts(environment.name).values():
        for member in chart:
            namespace = member["metadata"].get("namespace", "")
            for template in _templates(member.get("spec", {})):
                pod = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**template["metadata"], "name": f"template-{made}"},
                    "spec": template["spec"],
                }
                plane.api().call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)
                made += 1
    assert made >= 5  # head and worker of both Ray objects, the Job that prepares the file system


def test_what_baseline_forbids_is_refused_in_these_namespaces(plane: ControlPlane, environment: Environment, platform: str) -> None:
    for namespace in environment.namespaces:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host"},
               "spec": {"hostNetwork": True, "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
        with pytest.raises(Answer, match="PodSecurity") as refused:
            plane.api().call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        assert refused.value.code == 403


def test_claims_bind_and_the_job_that_prepares_the_file_system_ends(plane: ControlPlane, environment: Environment, platform: str) -> None:
    api = plane.api()
    for namespace in environment.namespaces:
        claim = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/shared"
        wait_for(lambda claim=claim: api.get(claim)["status"].get("phase") == "Bound", f"{namespace}'s claim is bound", plane.alive)
    jobs = f"/apis/batch/v1/namespaces/{environment.ray_cluster.namespace}/jobs"
    wait_for(lambda: [job for job in api.items(jobs) if job["status"].get("succeeded") == 1], "the Job has succeeded", plane.alive)


def test_a_file_system_that_grows_leaves_volume_and_claim_alone(
    plane: ControlPlane, environment: Environment, platform: str, tmp_path: Path
) -> None:
    api = plane.api()
    claim = f"/api/v1/namespaces/{environment.ray_cluster.namespace}/persistentvolumeclaims/shared"
    wait_for(lambda: api.get(claim)["status"].get("phase") == "Bound", "the claim is bound", plane.alive)
    size = environment.storage.file_system.capacity_gib
    text = (ENVIRONMENTS / f"{environment.name}.yaml").read_text()
    larger = parse(text.replace(f"capacity_gib: {size}", f"capacity_gib: {2 * size}"))
    assert larger.storage.file_system.capacity_gib == 2 * size  # 1200 -> 2400 in the local environment
    grown = [fill(member, DEPLOYED) for member in manifests.charts(larger)["platform"]]
    storage = [member for member in grown if member["kind"] in ("PersistentVolume", "PersistentVolumeClaim")]
    before = deployment.versions(plane, storage)
    assert deployment.apply(plane, tmp_path / "grown", grown) == ""
    assert deployment.versions(plane, storage) == before
    # Why it must be so: another size of a bound claim without a class is refused.
    with pytest.raises(Answer):
        api.merge(claim, {"spec": {"resources": {"requests": {"storage": "600Gi"}}}})


def test_a_key_that_no_schema_knows_is_refused(plane: ControlPlane, environment: Environment, platform: str) -> None:
    cluster = charts(environment.name)["raycluster"][0]
    wrong = {**cluster, "spec": {**cluster["spec"], "workerGroups": []}}
    path = deployment.ray_path(environment.ray_cluster.namespace, "rayclusters", cluster["metadata"]["name"])
    with pytest.raises(Answer, match="workerGroups"):
        plane.api().apply(path, wrong, dry_run=True)


def _held(plane: ControlPlane, namespace: str) -> list[Json]:
    """Quotas that count somebody's GPUs."""
    quotas = plane.api().items(f"/api/v1/namespaces/{namespace}/resourcequotas")
    return [each for each in quotas if (each.get("status", {}).get("used") or {}).get("requests.nvidia.com/gpu", "0") != "0"]


def _templates(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        if isinstance(value.get("template"), dict) and "spec" in value["template"]:
            yield value["template"]
        for inner in value.values():
            yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)
