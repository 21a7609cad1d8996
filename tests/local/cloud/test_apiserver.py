"""What is put between CDK's own handlers and a real API server. `make test-kubernetes` runs the whole of it."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from local.cloud import apiserver
from local.cloud.store import Cloud
from local.kubernetes import charts, custom_resources

CHART = {"ClusterName": "c", "Release": "kuberay-operator", "Namespace": "kuberay", "Chart": "kuberay-operator", "Version": "1.7.1",
         "Repository": "https://ray-project.github.io/kuberay-helm/", "Values": "{}"}  # fmt: skip


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(port=1, folder=tmp_path)


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig that names a real API server."""
    authority = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": authority}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({"clusters": [{"name": "x", "cluster": cluster}]}))
    monkeypatch.setenv(apiserver.VARIABLE, str(path))
    return path


def members(archive: Path) -> dict[str, object]:
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as packed:
        return {entry.name: json.loads(packed.extractfile(entry).read()) for entry in packed}  # type: ignore[union-attr]


def test_the_stand_in_answers_unless_a_real_api_server_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(apiserver.VARIABLE, raising=False)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/somewhere")
    assert apiserver.kubeconfig() is None, "binaries that somebody has are no cluster"
    assert apiserver.handed_over(cloud, custom_resources.CHART, CHART) is CHART


def test_clusters_answer_with_the_named_servers_address(real: Path) -> None:
    assert apiserver.endpoint("any") == ("https://127.0.0.1:6443", "-----BEGIN CERTIFICATE-----")


def test_a_chart_becomes_an_archive_that_helm_installs(cloud: Cloud, real: Path) -> None:
    given = apiserver.handed_over(cloud, custom_resources.CHART, CHART)
    assert {"Repository", "Version"}.isdisjoint(given)
    found = members(Path(given["Chart"]))
    assert found["kuberay-operator/Chart.yaml"] == {"apiVersion": "v2", "name": "kuberay-operator", "version": "1.7.1"}
    kinds = [value["kind"] for value in found.values() if isinstance(value, dict) and "kind" in value]
    assert kinds.count("CustomResourceDefinition") == len(charts.RAY_KINDS)
    assert "Deployment" in kinds
    manifest = {"ClusterName": "c", "Manifest": "[]"}
    assert apiserver.handed_over(cloud, custom_resources.MANIFEST, manifest) is manifest


def test_real_definitions_take_the_place_of_the_stand_ins(cloud: Cloud, real: Path) -> None:
    folder = real.parent / "crds" / "kuberay-operator"
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text("kind: CustomResourceDefinition\nmetadata: {name: real}\n")
    found = members(Path(apiserver.handed_over(cloud, custom_resources.CHART, CHART)["Chart"]))
    assert [value for name, value in found.items() if "/crds/" in name] == [
        {"kind": "CustomResourceDefinition", "metadata": {"name": "real"}}
    ]


@pytest.mark.parametrize("token", ["", "eyJhbGciOi", "k8s-aws-v1.aHR0cHM6Ly9leGFtcGxlLmNvbS8"])
def test_a_token_that_is_none_lets_nobody_in(cloud: Cloud, token: str) -> None:
    answer = apiserver.token_review(cloud, "c", json.dumps({"spec": {"token": token}}).encode())
    assert answer["status"]["authenticated"] is False
    assert "Unauthorized" in answer["status"]["error"]
    assert "user" not in answer["status"]
