"""Helm releases: installing, upgrading and uninstalling a chart, and where Helm would fail."""

from __future__ import annotations

from local.kubernetes.bundles import Object, namespace
from local.kubernetes.charts import CHARTS, RAY_KINDS, Release
from local.kubernetes.cluster import Cluster
from local.kubernetes.errors import Rejected


def install(cluster: Cluster, release: Release, *, wait: bool, create_namespace: bool) -> None:
    """Install or upgrade a release. Raises `Rejected` as Helm would fail."""
    render = CHARTS.get(release.chart_name)
    if render is None:
        known = ", ".join(sorted(CHARTS))
        text = f'chart "{release.chart_name}" of release {release.name} is not known to the local cloud, which knows {known}'
        raise Rejected(text, reason="NotFound")
    if wait and not cluster.ready_nodes():
        text = (
            f"release {release.name}: context deadline exceeded: `wait` is set and no node is Ready, so no pod of"
            f" {release.chart_name} can start"
        )
        raise Rejected(text)
    if release.brings_cert_manager and "cert-manager" in cluster.addons:
        text = f"release {release.name}: cert-manager is installed by the EKS add-on already; set cert-manager.enabled to false"
        raise Rejected(text, reason="Conflict")
    content = render(release)
    with cluster.api.lock:
        if cluster.get("Namespace", None, release.namespace) is None:
            if not create_namespace:
                raise Rejected(
                    f'release {release.name}: create: failed to create: namespaces "{release.namespace}" not found',
                    reason="NotFound",
                )
            cluster.apply([namespace(release.namespace)], manager="helm")
        objects = [_labelled(value, release) for value in content.objects]
        _refuse_foreign(cluster, release, objects)
        missing = [crd for crd in content.definitions if cluster.get("CustomResourceDefinition", None, crd["metadata"]["name"]) is None]
        cluster.apply([*missing, *objects], manager="helm")
        before = cluster.releases.get((release.name, release.namespace))
        if before is not None:
            kept = {_identity(value) for value in objects}
            cluster.delete([value for value in CHARTS[before.chart_name](before).objects if _identity(value) not in kept])
        cluster.releases[release.name, release.namespace] = release
    if wait:
        _refuse_unavailable(cluster, release, objects)


def _labelled(value: Object, release: Release) -> Object:
    metadata = value["metadata"]
    marks = {"meta.helm.sh/release-name": release.name, "meta.helm.sh/release-namespace": release.namespace}
    labels = {
        **metadata.get("labels", {}),
        "app.kubernetes.io/managed-by": "Helm",
        "app.kubernetes.io/instance": release.name,
    }
    return {
        **value,
        "metadata": {**metadata, "labels": labels, "annotations": {**metadata.get("annotations", {}), **marks}},
    }


def _identity(value: Object) -> tuple[str, str, str]:
    return value["kind"], value["metadata"].get("namespace", ""), value["metadata"]["name"]


def _refuse_foreign(cluster: Cluster, release: Release, objects: list[Object]) -> None:
    """Helm does not take over objects of another release or of nobody."""
    found: list[str] = []
    for value in objects:
        kind, place, name = _identity(value)
        live = cluster.get(kind, place or None, name)
        if live is None:
            continue
        wanted = value["metadata"]["annotations"]
        marks = live["metadata"].get("annotations") or {}
        if any(marks.get(key) != text for key, text in wanted.items()):
            found.append(
                f'{kind} "{name}" in namespace "{place}" exists and cannot be imported into the current release: invalid ownership'
                f" metadata (it belongs to {marks.get('meta.helm.sh/release-name', 'no release')}"
                f" in {marks.get('meta.helm.sh/release-namespace', 'no namespace')})"
            )
    if found:
        raise Rejected(
            [f"release {release.name}: Unable to continue with install: {problem}" for problem in found],
            reason="Conflict",
        )


def _refuse_unavailable(cluster: Cluster, release: Release, objects: list[Object]) -> None:
    found: list[str] = []
    for value in objects:
        if value["kind"] != "Deployment":
            continue
        live = cluster.get("Deployment", value["metadata"]["namespace"], value["metadata"]["name"])
        status = live.get("status", {}) if live else {}
        if status.get("availableReplicas", 0) < (live["spec"]["replicas"] if live else 1):
            found.append(f"release {release.name}: context deadline exceeded: deployment {value['metadata']['name']} is not available")
    if found:
        raise Rejected(found)


def uninstall(cluster: Cluster, name: str, place: str) -> None:
    """Remove a release's objects; its CRDs stay (https://helm.sh/docs/chart_best_practices/custom_resource_definitions/)."""
    with cluster.api.lock:
        release = cluster.releases.get((name, place))
        if release is None:
            return
        if release.chart_name == "kuberay-operator":
            left = [
                f"{kind} {o['metadata']['namespace']}/{o['metadata']['name']}"
                for kind in RAY_KINDS
                for o in cluster.store.select(kind=kind)
            ]
            if left:
                text = (
                    f"release {name}: {', '.join(left)} still exist; without their operator nothing ends what they run and a later"
                    " delete hangs on AWS: delete them first"
                )
                raise Rejected(text, reason="Conflict")
        objects = CHARTS[release.chart_name](release).objects
        # Helm leaves namespaces alone only when it made them by --create-namespace; those of templates go.
        cluster.delete(list(reversed(objects)))
        del cluster.releases[name, place]
