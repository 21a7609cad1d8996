"""Commands of the pages that need a real API server: KubeRay's kinds exchanged while a RayCluster is there, a Secret from a file."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import command
from tests.kubernetes.control_plane import ControlPlane, wait_for

KIND, FIELD = "rayclusters.ray.io", "headServiceAnnotations"


def _served(plane: ControlPlane) -> bool:
    explained = plane.kubectl("explain", f"raycluster.spec.{FIELD}", "--api-version=ray.io/v1", check=False)
    return explained.returncode == 0


def test_newer_kinds_come_by_the_pages_command_and_leave_what_is_there_alone(plane: ControlPlane, tmp_path: Path) -> None:
    newer: list[dict[str, Any]] = [yaml.safe_load(path.read_text()) for path in sorted(plane.binaries.crds.glob("*.yaml"))]
    older = yaml.safe_load(yaml.safe_dump(next(each for each in newer if each["metadata"]["name"] == KIND)))
    for version in older["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop(FIELD, None)
    (tmp_path / "older.yaml").write_text(yaml.safe_dump(older))
    # As Helm installed it once, with its own field manager.
    plane.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", str(tmp_path / "older.yaml"))
    wait_for(lambda: not _served(plane), "the older kind is served", plane.alive)
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray", "image": "ray"}]}}}
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "kept", "namespace": "default"},
               "spec": {"suspend": True, "headGroupSpec": head}}  # fmt: skip
    (tmp_path / "kept.yaml").write_text(yaml.safe_dump(cluster))
    plane.kubectl("apply", "-f", str(tmp_path / "kept.yaml"))
    where = ("get", "raycluster", "kept", "-n", "default", "-o", "jsonpath={.metadata.uid} {.spec.headGroupSpec.template}")
    before = plane.kubectl(*where).stdout

    (tmp_path / "crds.yaml").write_text("---\n".join(yaml.safe_dump(each) for each in newer))
    line = command("11-upgrade.md", "kubectl apply --server-side --force-conflicts").replace("crds.yaml", str(tmp_path / "crds.yaml"))
    plane.kubectl(*shlex.split(line)[1:])
    wait_for(lambda: _served(plane), "the newer kind is served", plane.alive)
    assert plane.kubectl(*where).stdout == before, "the same object, as it was"
    plane.kubectl("delete", "raycluster", "kept", "-n", "default")


def test_keys_for_the_endpoint_are_made_by_the_pages_command(plane: ControlPlane, tmp_path: Path) -> None:
    """kubectl sends its own kinds as protobuf, which the local cloud's API server does not read."""
    (tmp_path / "keys.txt").write_text("one\ntwo\n")
    line = command("06-serve.md", "kubectl -n serving create secret").replace("=keys.txt", f"={tmp_path / 'keys.txt'}")
    plane.kubectl(*shlex.split(line.replace("-n serving", "-n default"))[1:])
    made = plane.kubectl("get", "secret", "maze-vlm-api-keys", "-n", "default", "-o", "jsonpath={.data.keys}").stdout
    assert base64.b64decode(made) == b"one\ntwo\n"
    plane.kubectl("delete", "secret", "maze-vlm-api-keys", "-n", "default")
