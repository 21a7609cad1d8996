"""The stacks of an environment, deployed into the local cloud with a real API server behind its EKS cluster, and destroyed.

CDK's own kubectl and Helm handlers run as Lambda functions, with their own roles: `aws eks get-token` signs, the API server asks the
local cloud whose token it is, and RBAC decides. The charts are in no registry of this machine; Helm installs archives of what the local
cloud knows of them, KubeRay's among them, whose kinds are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import names
from config.load import load
from config.placeholders import PLACEHOLDERS, fill
from k8s import manifests
from local import lifecycle, state
from local.cloud import apiserver
from local.kubernetes import custom_resources
from tests.kubernetes import kubelet
from tests.kubernetes.conftest import charts
from tests.kubernetes.control_plane import ControlPlane, wait_for
from tests.kubernetes.deployment import pods, ray_path, write
from tools.deployment import Assembly, Cloud, synthesize

Json = dict[str, Any]
LOCAL = load("local")
CLUSTER, NAMESPACE = LOCAL.ray_cluster.name, LOCAL.ray_cluster.namespace
# What Helm's --create-namespace makes stays after `helm uninstall`, with what every namespace has; so do the kinds that charts bring, and
# with them what says that the API server itself serves them.
LEFT_BY_HELM = (
    f"|Namespace|{names.KUBERAY_NAMESPACE}", f"|Namespace|{names.ENDPOINT_OPERATOR_NAMESPACE}", "|CustomResourceDefinition|",
    "|APIService|v1.kubeflow.org", "|APIService|v2beta1.kubeflow.org",
)  # fmt: skip
ALWAYS = ("default", "kube-root-ca.crt")
# Kinds that the components write by themselves all the time, or that no destroy should touch.
NOT_OURS = ("events", "events.events.k8s.io", "leases.coordination.k8s.io", "nodes", "componentstatuses")


@pytest.fixture(scope="module")
def daemon(plane: ControlPlane, nodes: kubelet.Kubelet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A local cloud in front of the control plane, and the environment variables of its users."""
    nodes.set_nodes(kubelet.nodes(LOCAL))
    patch = pytest.MonkeyPatch()
    patch.setenv(state.FOLDER, str(tmp_path_factory.mktemp("cloud")))
    patch.setenv(state.BASE_PORT, str(plane.ports["cloud"]))
    patch.setenv(apiserver.VARIABLE, str(plane.kubeconfig()))
    policies = {"AmazonEKSClusterAdminPolicy": ("*",), "AmazonEKSAdminViewPolicy": ("get", "list", "watch")}
    for name, verbs in policies.items():
        plane.api().apply(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name.lower()}", _role(name, verbs))
        plane.api().apply(f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name.lower()}", _binding(name))
    try:
        lifecycle.up(node_delay=0.2)
        yield {**os.environ, **lifecycle.environment("local")}
    finally:
        lifecycle.down(purge=True)
        patch.undo()


def _role(policy: str, verbs: tuple[str, ...]) -> Json:
    """What an access policy of EKS allows on the whole cluster: there an authorizer of its own, here RBAC.

    https://docs.aws.amazon.com/eks/latest/userguide/access-policy-permissions.html
    """
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": list(verbs)}, {"nonResourceURLs": ["*"], "verbs": ["get"]}]
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": policy.lower()}, "rules": rules}


def _binding(policy: str) -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": policy.lower()},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": policy.lower()},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": f"{apiserver.POLICY_GROUP}{policy}"}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    return synthesize(LOCAL, tmp_path_factory.mktemp("assembly"))


def everything(plane: ControlPlane) -> set[str]:
    """All objects of all kinds that can be listed, as namespace and kind/name."""
    kinds = plane.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    wanted = ",".join(kind for kind in kinds if kind not in NOT_OURS)
    listed = plane.kubectl(
        "get", wanted, "-A", "-o", "jsonpath={range .items[*]}{.metadata.namespace}|{.kind}|{.metadata.name}{'\\n'}{end}"
    )
    return set(listed.stdout.split())


def test_stacks_come_and_go_by_cdks_own_handlers(
    plane: ControlPlane, nodes: kubelet.Kubelet, daemon: dict[str, str], assembly: Assembly, tmp_path: Path
) -> None:
    before = everything(plane)
    cloud, api = Cloud(LOCAL), plane.api()
    cloud.prepare(assembly)
    # The Observability stack brings an add-on of EKS, dashboards and alarms: nothing that this API server would see.
    stacks = {name: template for name, template in assembly.templates.items() if name != "Observability"}
    for stack, template in stacks.items():
        assert cloud.create(stack, template) == "CREATE_COMPLETE", "\n".join(cloud.failures(stack))

    assert cloud.client("eks").describe_cluster(name=names.eks_cluster(LOCAL))["cluster"]["endpoint"] == plane.url
    releases = {item["metadata"]["labels"]["name"] for item in api.items("/api/v1/secrets?labelSelector=owner=helm")}
    assert {"kuberay-operator", "hyperpod-dependencies"} <= releases
    what_was_applied_is_dist_with_its_placeholders_filled(plane, cloud, tmp_path)

    claim = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{names.SHARED_CLAIM}"
    wait_for(lambda: api.get(claim)["status"].get("phase") == "Bound", "the claim is bound", plane.alive)
    volume = api.get(f"/api/v1/persistentvolumes/{api.get(claim)['spec']['volumeName']}")
    systems = cloud.client("fsx").describe_file_systems()["FileSystems"]
    assert volume["spec"]["csi"]["volumeHandle"] in [system["FileSystemId"] for system in systems]
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    wait_for(lambda: [job for job in api.items(jobs) if job["status"].get("succeeded") == 1], "/shared is prepared", plane.alive)
    for verb, what, group, answer in (
        ("delete", "rayclusters.ray.io", "hyperpod-rl:drain", "yes"),
        ("get", "secrets", "hyperpod-rl:drain", "no"),
        ("get", "pods", f"{names.PREFIX}:readers", "yes"),
        ("delete", "pods", f"{names.PREFIX}:readers", "no"),
    ):
        said = plane.kubectl("auth", "can-i", verb, what, "-n", NAMESPACE, "--as=x", f"--as-group={group}", check=False)
        assert said.stdout.strip() == answer, (verb, what, group)

    template = assembly.templates["Platform"]
    assert cloud.update("Platform", labelled(template)) == "UPDATE_COMPLETE", "\n".join(cloud.failures("Platform"))
    assert api.get(f"/api/v1/namespaces/{NAMESPACE}")["metadata"]["labels"]["team"] == "mazes"
    upgraded = [
        item["metadata"]["labels"]["version"] for item in api.items("/api/v1/secrets?labelSelector=owner=helm,name=kuberay-operator")
    ]
    assert sorted(upgraded) == ["1", "2"]

    # A user of the cloud: the token of `aws eks get-token` lets the launcher in.
    up = run(daemon, "hyperpod-rl", "cluster", "up")
    assert up.returncode == 0, up.stdout
    assert f"RayCluster {NAMESPACE}/{CLUSTER} is ready: head ready, 2 of 2 workers ready, 4 GPUs" in up.stdout
    nothing_is_applied_over_what_another_manager_owns(plane, daemon)
    a_pod_that_crashes_tells_why(plane, daemon)

    # The RayCluster is still there, and a supervisor, whose pod mounts the claim: the drain takes them along.
    plane.kubectl("apply", "--server-side", "-f", str(write(tmp_path / "supervisor", charts("local")["supervisor"])))
    supervisors = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=supervisor"
    wait_for(lambda: api.items(supervisors), "a supervisor's pod is there", plane.alive)
    for stack in reversed(list(stacks)):
        assert cloud.delete(stack) == "DELETE_COMPLETE", "\n".join(cloud.failures(stack))
    for namespace in LOCAL.namespaces:
        wait_for(lambda name=namespace: api.gone(f"/api/v1/namespaces/{name}"), f"namespace {namespace} is gone", plane.alive)

    def left() -> list[str]:
        return [f for f in everything(plane) - before if not f.startswith(LEFT_BY_HELM) and f.split("|")[2] not in ALWAYS]

    wait_for(lambda: not left(), "nothing is left", plane.alive, said=left)


def what_was_applied_is_dist_with_its_placeholders_filled(plane: ControlPlane, cloud: Cloud, folder: Path) -> None:
    """kubectl notes at each object what it was given: that is the file of dist/, the deploy's values in it, and CDK's mark."""
    ssm = cloud.client("ssm")
    values = {
        name: ssm.get_parameter(Name=names.parameter(LOCAL, parameter))["Parameter"]["Value"] for name, parameter in PLACEHOLDERS.items()
    }
    written = [yaml.safe_load(path.read_text()) for path in sorted((manifests.write(LOCAL, folder) / "platform").glob("*.yaml"))]
    assert len([member for member in written if "${" in manifests.dump(member)]) == len(LOCAL.namespaces), "the volumes have placeholders"
    wanted = [fill(member, values) for member in written]
    listed = json.loads(plane.kubectl("get", "-f", str(write(folder / "filled", wanted)), "-o", "json").stdout)["items"]
    given = [json.loads(found["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]) for found in listed]
    for found in given:
        assert found["metadata"].pop("annotations", {}) == {}
        found["metadata"]["labels"] = {key: v for key, v in found["metadata"]["labels"].items() if not key.startswith("aws.cdk.eks/prune")}
    assert given == wanted


def labelled(template: Mapping[str, Any]) -> Json:
    """A Platform stack whose namespaces carry one label more, and whose KubeRay has one value more."""
    changed: Json = json.loads(json.dumps(template))
    for resource in changed["Resources"].values():
        properties = resource["Properties"]
        if resource["Type"] == custom_resources.CHART and properties["Release"] == "kuberay-operator":
            properties["Values"] = json.dumps({**json.loads(properties.get("Values", "{}")), "batchScheduler": {"enabled": False}})
        if resource["Type"] == custom_resources.MANIFEST and '"kind":"Namespace"' in str(properties["Manifest"]):
            objects = json.loads(properties["Manifest"])
            for member in objects:
                member["metadata"]["labels"]["team"] = "mazes"
            properties["Manifest"] = json.dumps(objects)
    return changed


def nothing_is_applied_over_what_another_manager_owns(plane: ControlPlane, daemon: dict[str, str]) -> None:
    """One sentence with the field, its owner and the way out; the object stays as it was."""
    path, label = ray_path(NAMESPACE, "rayclusters", CLUSTER), "app.kubernetes.io/part-of"
    before = plane.api().get(path)["metadata"]["labels"]
    theirs = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": CLUSTER, "labels": {label: "theirs"}}}
    plane.api().call("PATCH", f"{path}?fieldManager=somebody&force=true", theirs, kind="application/apply-patch+yaml")
    refused = run(daemon, "hyperpod-rl", "cluster", "up")
    assert refused.returncode == 2, refused.stdout
    said = refused.stdout.strip().splitlines()[-1]
    assert f"`somebody` owns .metadata.labels.{label} on the cluster" in said
    assert "--force-conflicts" in said
    assert plane.api().get(path)["metadata"]["labels"] == before | {label: "theirs"}


def a_pod_that_crashes_tells_why(plane: ControlPlane, daemon: dict[str, str]) -> None:
    """What the kubelet writes of a container that was killed for its memory reaches `hyperpod-rl status`."""
    worker = pods(plane, NAMESPACE, role="worker", cluster=CLUSTER)[0]
    (was,) = worker["status"]["containerStatuses"]
    crashed = was | {
        "ready": False, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 1m20s"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": kubelet.NOW, "finishedAt": kubelet.NOW}},
    }  # fmt: skip
    conditions = [c | {"status": "False"} if "Ready" in c["type"] else c for c in worker["status"]["conditions"]]
    status = {"containerStatuses": [crashed], "conditions": conditions}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{worker['metadata']['name']}/status"
    plane.api("kubelet").merge(path, {"status": status})
    cluster = ray_path(NAMESPACE, "rayclusters", CLUSTER)
    wait_for(lambda: plane.api().get(cluster)["status"].get("readyWorkerReplicas") == 1, "KubeRay has seen it", plane.alive)
    told = run(daemon, "hyperpod-rl", "status")
    assert f"pod {worker['metadata']['name']}: CrashLoopBackOff, back-off 1m20s, it ended with exit code 137 (OOMKilled)" in told.stdout


def run(environment: dict[str, str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One of the programs beside this Python, as a user of the local cloud runs it."""
    command = [str(Path(sys.executable).parent / program), *arguments]
    return subprocess.run(
        command, cwd=state.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
