"""CDK's own kubectl and Helm handlers, unmodified, carry the Platform stack of the synthesized assembly onto a real API server.

What runs is the code that runs in Lambda, with the stack's own resources, in the order of the template; `aws eks update-kubeconfig`
is answered by a script that writes this server's kubeconfig. The KubeRay chart is not on this machine: a chart of the same name
stands in for it, so what is proven of Helm is how it is called, not what KubeRay's chart holds.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import names
from config.load import load
from config.placeholders import PLACEHOLDERS
from tests.kubernetes import kubelet
from tests.kubernetes.conftest import DEPLOYED
from tests.kubernetes.control_plane import ControlPlane, wait_for
from tests.stacks.assembly import Assembly, synthesize

Json = dict[str, Any]
REFERENCE = load("reference")
MANIFEST, CHART = "Custom::AWSCDK-EKS-KubernetesResource", "Custom::AWSCDK-EKS-HelmChart"
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import index
index.handler(json.load(sys.stdin), None)
"""


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    return synthesize(REFERENCE, tmp_path_factory.mktemp("assembly"))


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Helm repository on the loopback interface with one chart, named and numbered as KubeRay's."""
    folder = tmp_path_factory.mktemp("charts")
    version = REFERENCE.version_set.platform.kuberay
    source = folder / "kuberay-operator"
    (source / "templates").mkdir(parents=True)
    (source / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "kuberay-operator", "version": version}))
    template = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stand-in"}, "data": {"release": "{{ .Release.Name }}"}}
    (source / "templates" / "map.yaml").write_text(yaml.safe_dump(template))
    archive = folder / f"kuberay-operator-{version}.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source, "kuberay-operator")
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        entry = {"apiVersion": "v2", "name": "kuberay-operator", "version": version, "urls": [f"{url}/{archive.name}"]}
        (folder / "index.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "entries": {"kuberay-operator": [entry]}}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield url
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Handler:
    """The provider's function: one process for each event, as Lambda's first start."""

    def __init__(self, assembly: Assembly, plane: ControlPlane, folder: Path) -> None:
        (apply,) = {path.parent for path in assembly.folder.glob("asset.*/apply/__init__.py")}
        self.code, self.folder = apply.parent, folder
        self.home = folder / "home"
        self.home.mkdir()
        tools = folder / "bin"
        tools.mkdir()
        script = tools / "aws"
        script.write_text(
            "#!/bin/sh\n"
            '[ "$1 $2" = "eks update-kubeconfig" ] || exit 9\n'
            f'[ "$4" = {names.eks_cluster(REFERENCE)} ] || exit 8\n'
            f'cp {plane.kubeconfig()} "$6"\n'
        )
        script.chmod(0o755)
        self.environment = {
            "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "TEST_OUTDIR": str(folder), "HOME": str(self.home), "AWS_REGION": "us-west-2", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    def __call__(self, request: str, kind: str, properties: Mapping[str, Any]) -> None:
        event = {"RequestType": request, "ResourceType": kind, "ResourceProperties": properties, "ResponseURL": "none"}
        command = (sys.executable, "-c", RUN, str(self.code))
        done = subprocess.run(command, input=json.dumps(event), env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        self.log = done.stderr


def resolved(value: Any, template: Json) -> Any:
    """Properties as CloudFormation hands them to the function: SSM parameters are what a deploy of the lower stacks wrote."""
    if isinstance(value, dict):
        if "Ref" in value:
            default = template.get("Parameters", {}).get(value["Ref"], {}).get("Default", "")
            return next((DEPLOYED[name] for name, key in PLACEHOLDERS.items() if default.endswith(key.value)), value["Ref"])
        if "Fn::Join" in value:
            separator, parts = value["Fn::Join"]
            return separator.join(str(resolved(part, template)) for part in parts)
        return {key: resolved(item, template) for key, item in value.items()}
    if isinstance(value, bool | int):
        return str(value).lower()  # CloudFormation makes texts of all
    return value


def ordered(template: Json) -> list[tuple[str, Json]]:
    """The objects and charts of a stack, each after what it depends on."""
    resources = template["Resources"]
    done: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        needs = resources[name].get("DependsOn", [])
        for other in [needs] if isinstance(needs, str) else needs:
            visit(other)
        done.append(name)

    for name in resources:
        visit(name)
    return [(name, resources[name]) for name in done if resources[name]["Type"] in (MANIFEST, CHART)]


def test_platform_comes_and_goes_by_cdks_own_handlers(
    plane: ControlPlane, nodes: kubelet.Kubelet, assembly: Assembly, charts: str, tmp_path: Path
) -> None:
    nodes.set_nodes(kubelet.nodes(REFERENCE))
    template = assembly.templates[names.Stack.PLATFORM.value]
    handler, api = Handler(assembly, plane, tmp_path), plane.api()
    steps = [(body["Type"], resolved(body["Properties"], template)) for _, body in ordered(template)]
    assert {kind for kind, _ in steps} == {MANIFEST, CHART}
    for kind, properties in steps:
        if kind == CHART:
            assert properties["Repository"] == REFERENCE.version_set.platform.kuberay_repository
            properties["Repository"] = charts
        handler("Create", kind, properties)
        handler("Update", kind, properties)  # the same once more: what a deploy without a change may do

    release = api.get(f"/api/v1/namespaces/{names.KUBERAY_NAMESPACE}/configmaps/stand-in")
    assert release["data"]["release"] == "kuberay-operator"
    namespace = REFERENCE.ray_cluster.namespace
    claim = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{names.SHARED_CLAIM}"
    wait_for(lambda: api.get(claim)["status"].get("phase") == "Bound", "the claim is bound", plane.alive)
    volume = api.get(f"/api/v1/persistentvolumes/{api.get(claim)['spec']['volumeName']}")
    assert volume["spec"]["csi"]["volumeHandle"] == DEPLOYED["FILE_SYSTEM_ID"]
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    wait_for(lambda: [job for job in api.items(jobs) if job["status"].get("succeeded") == 1], "/shared is prepared", plane.alive)
    # The drain's rights, as its function would have them in its group.
    allowed = plane.kubectl("auth", "can-i", "delete", "rayclusters.ray.io", "-n", namespace, "--as=x", "--as-group=hyperpod-rl:drain")
    assert allowed.stdout.strip() == "yes"
    denied = plane.kubectl("auth", "can-i", "get", "secrets", "-n", namespace, "--as=x", "--as-group=hyperpod-rl:drain", check=False)
    assert denied.stdout.strip() == "no"
    reader = plane.kubectl("auth", "can-i", "get", "pods", "-n", namespace, "--as=x", f"--as-group={names.PREFIX}:readers")
    assert reader.stdout.strip() == "yes"

    for kind, properties in reversed(steps):
        handler("Delete", kind, properties)
        assert "delete error" not in handler.log, handler.log[-2000:]
    for namespace in REFERENCE.namespaces:
        wait_for(lambda name=namespace: api.gone(f"/api/v1/namespaces/{name}"), f"namespace {namespace} is gone", plane.alive)
    wait_for(lambda: not api.items("/api/v1/persistentvolumes"), "no volumes", plane.alive)
    assert api.gone("/apis/rbac.authorization.k8s.io/v1/clusterroles/hyperpod-rl-drain")
    assert api.gone(f"/api/v1/namespaces/{names.KUBERAY_NAMESPACE}/configmaps/stand-in")
    api.delete(f"/api/v1/namespaces/{names.KUBERAY_NAMESPACE}")  # Helm leaves the namespace that it made
