"""A real API server behind the EKS clusters of the local cloud, in place of the stand-in. `make test-kubernetes` has one.

$HYPERPOD_RL_LOCAL_KUBERNETES names a kubeconfig. EKS clusters then answer with its address and certificate authority, and CDK's own
kubectl and Helm handlers carry their objects there. The API server asks this cloud whose a token is (`token_review`), as EKS's asks
IAM; it is started with `--authentication-token-webhook-config-file` for that. A folder `crds/<chart>` beside the kubeconfig holds the
real definitions of a chart's kinds, where the stand-in has some that take everything.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import yaml

from local.cloud import ACCOUNT, SECRET, access
from local.cloud.store import Cloud, Properties
from local.kubernetes import charts, custom_resources, tokens
from local.kubernetes.errors import Rejected

VARIABLE = "HYPERPOD_RL_LOCAL_KUBERNETES"
REVIEWS = "token-review/"
# Kubernetes group of whoever has one of EKS's access policies on the whole cluster; RBAC in the cluster says what that may.
POLICY_GROUP = "eks-access-policy:"


def kubeconfig() -> Path | None:
    """The kubeconfig of the real API server; None where the stand-in answers."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else None


def endpoint(cluster: str) -> tuple[str, str]:
    """URL and certificate authority (PEM), as `Endpoint.of` gives them for the stand-in. Raises OSError, KeyError for a bad file."""
    path = kubeconfig()
    assert path is not None
    described = yaml.safe_load(path.read_text())["clusters"][0]["cluster"]
    return described["server"], base64.b64decode(described["certificate-authority-data"]).decode()


def prepare(temporary: Path) -> None:
    """What the handlers, kubectl and helm write goes into the state folder, not to /tmp and the user's home."""
    folder = temporary / "kubernetes"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update({
        "TEST_OUTDIR": str(folder), "KUBECACHEDIR": str(folder / "kubectl"), "HELM_CACHE_HOME": str(folder / "helm-cache"),
        "HELM_CONFIG_HOME": str(folder / "helm-config"), "HELM_DATA_HOME": str(folder / "helm-data"),
    })  # fmt: skip


def handed_over(cloud: Cloud, resource_type: str, properties: Properties) -> Properties:
    """Properties as CDK's handler gets them: a chart, which is in no registry that this machine reaches, as an archive on disk.

    The archive holds what the stand-in would install, so that Helm itself installs it.
    """
    if kubeconfig() is None or resource_type != custom_resources.CHART or not properties.get("Chart"):
        return properties
    release = _release(properties)
    if release.chart_name not in charts.CHARTS:
        raise Rejected(f'chart "{release.chart_name}" of release {release.name} is not known to the local cloud', reason="NotFound")
    assert cloud.folder is not None
    folder = cloud.folder / "tmp" / "kubernetes" / "charts"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{release.chart_name}.tgz"
    archive.write_bytes(packed(release))
    changed = {**properties, "Chart": str(archive)}
    for name in ("Repository", "Version"):
        changed.pop(name, None)
    return changed


def noted(cloud: Cloud, resource_type: str, properties: Properties, *, gone: bool = False) -> None:
    """Remember a release that Helm installed: HyperPod refuses a cluster without its dependency chart."""
    cluster = cloud.clusters.get(str(properties.get("ClusterName"))) if cloud.clusters is not None else None
    if kubeconfig() is None or resource_type != custom_resources.CHART or cluster is None:
        return
    release = _release(properties)
    if gone:
        cluster.releases.pop((release.name, release.namespace), None)
    else:
        cluster.releases[release.name, release.namespace] = release


def _release(properties: Properties) -> charts.Release:
    return charts.Release(
        str(properties["Release"]), str(properties.get("Namespace") or "default"), str(properties.get("Chart") or ""),
        properties.get("Repository"), properties.get("Version"), json.loads(properties.get("Values") or "{}"),
    )  # fmt: skip


def packed(release: charts.Release) -> bytes:
    """A Helm chart archive of what `local.kubernetes.charts` says that a chart holds. Raises Rejected for values that it refuses."""
    content = charts.CHARTS[release.chart_name](release)
    name = release.chart_name.lower()
    files = {"Chart.yaml": {"apiVersion": "v2", "name": name, "version": (release.version or "0.0.0").removeprefix("v")}}
    files |= {f"crds/{number:02d}.yaml": found for number, found in enumerate(_definitions(release.chart_name) or content.definitions)}
    # The namespace of the release is Helm's to make (--create-namespace).
    own = [o for o in content.objects if (o["kind"], o["metadata"]["name"]) != ("Namespace", release.namespace)]
    files |= {f"templates/{number:02d}.yaml": found for number, found in enumerate(own)}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, found in files.items():
            data = json.dumps(found).encode()
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def _definitions(chart: str) -> list[dict[str, Any]]:
    path = kubeconfig()
    files = sorted((path.parent / "crds" / chart).glob("*.yaml")) if path is not None else []
    return [yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) for file in files]  # noqa: S506 - both are safe


def token_review(cloud: Cloud, cluster: str, body: bytes) -> dict[str, Any]:
    """Answer to a TokenReview (authentication.k8s.io/v1) of the API server behind an EKS cluster."""
    asked = json.loads(body)
    try:
        identity = tokens.identity(str(asked["spec"]["token"]), cluster, secret_of=lambda key: SECRET if key == ACCOUNT else None)
        name, groups = access.user(cloud, cluster, identity)
        status: dict[str, Any] = {"authenticated": True, "user": {"username": name, "uid": identity, "groups": groups}}
    except Rejected as refused:
        status = {"authenticated": False, "error": str(refused)}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}
