"""CDK's custom resources for Kubernetes, answered without its Lambda functions.

Property names and effects are those of the kubectl handler inside aws-cdk-lib 2.275.0
(`custom-resource-handlers/dist/aws-eks-v2/kubectl-handler`): a manifest is created or applied as `kubectl` would, a chart is
installed as `helm upgrade --install`, a patch is patched, a value is polled for.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from local.kubernetes import charts, releases
from local.kubernetes.cluster import Cluster, Clusters
from local.kubernetes.errors import Rejected
from local.kubernetes.jsonpath import read
from local.kubernetes.kinds import Kind
from local.kubernetes.scheduling import matches_selector

MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
PATCH = "Custom::AWSCDK-EKS-KubernetesPatch"
VALUE = "Custom::AWSCDK-EKS-KubernetesObjectValue"
CHART = "Custom::AWSCDK-EKS-HelmChart"
TYPES = (MANIFEST, PATCH, VALUE, CHART)
MANAGER = "kubectl-client-side-apply"
POLL_SECONDS = 0.2  # the handler waits 10 s between two looks
Properties = Mapping[str, Any]


def create(resource_type: str, properties: Properties, clusters: Clusters) -> tuple[str, dict[str, Any]]:
    """Physical id and attributes of a new custom resource. Raises `Rejected` with what kubectl or helm would print."""
    return f"local-{uuid.uuid4()}", _put(resource_type, None, properties, clusters)


def update(resource_type: str, physical_id: str, old: Properties, new: Properties, clusters: Clusters) -> tuple[str, dict[str, Any]]:
    """The handler returns no physical id, so an update never replaces."""
    return physical_id, _put(resource_type, old, new, clusters)


def delete(resource_type: str, physical_id: str, properties: Properties, clusters: Clusters) -> None:
    """Undo. What does not exist any more is fine; a missing cluster is not, as `aws eks update-kubeconfig` would fail there."""
    cluster = _cluster(properties, clusters)
    match resource_type:
        case str() if resource_type == MANIFEST:
            cluster.delete(_manifest(properties))
        case str() if resource_type == PATCH:
            _patch(cluster, properties, "RestorePatchJson")
        case str() if resource_type == CHART:
            releases.uninstall(cluster, properties["Release"], properties.get("Namespace") or "default")
        case str() if resource_type == VALUE:
            return
        case _:
            raise Rejected(f"unknown resource type {resource_type}", reason="BadRequest")


def _put(resource_type: str, old: Properties | None, new: Properties, clusters: Clusters) -> dict[str, Any]:
    handlers: dict[str, Callable[[Cluster, Properties | None, Properties], dict[str, Any]]] = {
        MANIFEST: _put_manifest,
        PATCH: lambda cluster, _, properties: _patch(cluster, properties, "ApplyPatchJson"),
        VALUE: lambda cluster, _, properties: _value(cluster, properties),
        CHART: _put_chart,
    }
    handler = handlers.get(resource_type)
    if handler is None:
        raise Rejected(f"unknown resource type {resource_type}", reason="BadRequest")
    return handler(_cluster(new, clusters), old, new)


def _cluster(properties: Properties, clusters: Clusters) -> Cluster:
    name = properties.get("ClusterName")
    found = clusters.get(name) if isinstance(name, str) else None
    if found is None:
        raise Rejected(f"No cluster found for name: {name}.", reason="NotFound")
    return found


def _true(properties: Properties, name: str) -> bool:
    return str(properties.get(name, "false")).lower() == "true"


# ---- manifests -----------------------------------------------------------------------------------------------------


def _manifest(properties: Properties) -> list[dict[str, Any]]:
    try:
        objects = json.loads(properties["Manifest"])
    except (KeyError, TypeError, ValueError) as error:
        raise Rejected(f"Manifest: not a JSON list of objects: {error}", reason="BadRequest") from None
    if not isinstance(objects, list) or not all(isinstance(value, dict) for value in objects):
        raise Rejected("Manifest: not a JSON list of objects", reason="BadRequest")
    flat: list[dict[str, Any]] = []
    for value in objects:
        flat += value["items"] if value.get("kind") == "List" else [value]
    return flat


def _put_manifest(cluster: Cluster, old: Properties | None, new: Properties) -> dict[str, Any]:
    objects = _manifest(new)
    if old is None and not _true(new, "Overwrite"):
        _refuse_existing(cluster, objects)
    cluster.apply(objects, manager=MANAGER)
    if old is not None and new.get("PruneLabel"):
        _prune(cluster, objects, str(new["PruneLabel"]))
    return {}


def _refuse_existing(cluster: Cluster, objects: list[dict[str, Any]]) -> None:
    """`kubectl create` does not take over what exists (CDK's `overwrite` would)."""
    found: list[str] = []
    for value in objects:
        if not isinstance(value.get("kind"), str) or not isinstance(value.get("metadata"), dict):
            continue  # refused with a better sentence when it is applied
        try:
            kind = cluster.api.kind(str(value.get("apiVersion")), value["kind"])
        except Rejected:
            continue
        name = value["metadata"].get("name", "")
        if cluster.api.get(kind, value["metadata"].get("namespace"), name) is not None:
            found.append(f'Error from server (AlreadyExists): {kind.resource} "{name}" already exists')
    if found:
        raise Rejected(found, reason="AlreadyExists")


def _prune(cluster: Cluster, objects: list[dict[str, Any]], label: str) -> None:
    """`kubectl apply --prune -l`: delete what carries the label, was applied before, and is in the manifest no more."""
    key, _, text = label.partition("=")
    kept = {(v["kind"], v["metadata"].get("namespace") or "default", v["metadata"]["name"]) for v in objects}
    for kind in _prunable(cluster):
        for live in cluster.store.select(group=kind.group, kind=kind.kind):
            metadata = live["metadata"]
            labels = metadata.get("labels") or {}
            if not (matches_selector(labels, {"matchLabels": {key: text}}) if text else key in labels):
                continue
            if not any(entry["manager"] == MANAGER for entry in metadata.get("managedFields", ())):
                continue
            if (kind.kind, metadata.get("namespace") or "default", metadata["name"]) not in kept:
                cluster.delete([live])


def _prunable(cluster: Cluster) -> list[Kind]:
    """The kinds that `kubectl apply --prune` looks at by default (kubectl 1.34, pkg/util/prune)."""
    wanted = {
        "ConfigMap", "Endpoints", "Namespace", "PersistentVolumeClaim", "PersistentVolume", "Pod",
        "ReplicationController", "Secret", "Service", "Job", "CronJob", "Ingress", "DaemonSet", "Deployment",
        "ReplicaSet", "StatefulSet",
    }  # fmt: skip
    return [kind for kind in cluster.api.kinds() if kind.kind in wanted and kind.schema is not None]


# ---- charts --------------------------------------------------------------------------------------------------------


def _put_chart(cluster: Cluster, old: Properties | None, new: Properties) -> dict[str, Any]:
    chart, asset = new.get("Chart"), new.get("ChartAssetURL")
    if not chart and not asset:
        raise Rejected("chart or chartAsset must be specified", reason="BadRequest")
    if asset and not str(asset).startswith("s3://"):
        raise Rejected(f"ChartAssetURL must point to as s3 location but is {asset}", reason="BadRequest")
    try:
        values = json.loads(new.get("Values") or "{}")
    except ValueError as error:
        raise Rejected(f"Values: not JSON: {error}", reason="BadRequest") from None
    release = charts.Release(
        new["Release"],
        namespace=new.get("Namespace") or "default",
        chart=str(chart) if chart else chart_of_asset(new["Release"], values),
        repository=new.get("Repository"),
        version=new.get("Version"),
        values=values,
    )
    wait = _true(new, "Wait") or _true(new, "Atomic")
    releases.install(cluster, release, wait=wait, create_namespace=_true(new, "CreateNamespace"))
    return {}


def chart_of_asset(release: str, values: Mapping[str, Any]) -> str:
    """Which chart an archive in S3 is: told by the release's name, else by values that only one chart knows."""
    for name in charts.CHARTS:
        if name.lower() in release.lower():
            return name
    if isinstance(values.get("manager"), Mapping) and "enableEndpointsByDefault" in values["manager"]:
        return "hyperpod-ray-endpoint-operator"
    return "HyperPodHelmChart"


# ---- patches and values --------------------------------------------------------------------------------------------


def _find(cluster: Cluster, name: str) -> Kind:
    """A kind by what kubectl accepts: plural, singular, short name, or any of these with its group."""
    wanted, _, group = name.lower().partition(".")
    for kind in cluster.api.kinds():
        if wanted in (kind.plural, kind.kind.lower(), *kind.short_names) and (
            not group or group in (kind.group, f"{kind.version}.{kind.group}")
        ):
            return kind
    raise Rejected(f'the server doesn\'t have a resource type "{name}"', reason="NotFound")


def _patch(cluster: Cluster, properties: Properties, which: str) -> dict[str, Any]:
    resource, slash, name = str(properties["ResourceName"]).partition("/")
    if not slash:
        raise Rejected(f"ResourceName = {resource}: `kind/name` is needed", reason="BadRequest")
    kind = _find(cluster, resource)
    try:
        content = json.loads(properties[which])
    except ValueError as error:
        raise Rejected(f"{which}: not JSON: {error}", reason="BadRequest") from None
    style = str(properties.get("PatchType") or "strategic")
    cluster.api.patch(kind, properties.get("ResourceNamespace") or "default", name, content, style=style, manager="kubectl-patch")
    return {}


def _value(cluster: Cluster, properties: Properties) -> dict[str, Any]:
    """Poll until the JSONPath gives a text, for `TimeoutSeconds` at most; the attribute is called `Value`."""
    name, place = str(properties["ObjectName"]), str(properties.get("ObjectNamespace") or "default")
    limit = time.monotonic() + float(properties.get("TimeoutSeconds") or 300)
    error = "nothing found"
    while True:
        try:
            kind = _find(cluster, str(properties["ObjectType"]))
            text = read(cluster.api.require(kind, place, name), str(properties["JsonPath"]))
            if text:
                return {"Value": text}
        except Rejected as refused:
            error = str(refused)
        if time.monotonic() >= limit:
            where = f"{properties['ObjectType']} {place}/{name}"
            raise Rejected(f"Timeout waiting for output of {properties['JsonPath']} of {where} (last_error={error})")
        time.sleep(POLL_SECONDS)
