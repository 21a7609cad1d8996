"""The kinds that the API serves: the built-in ones of Kubernetes 1.34, and those that CustomResourceDefinitions add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from local.kubernetes.schemas import definitions

# The JSON schemas do not say which kinds live outside namespaces: `kubectl api-resources --namespaced=false`.
CLUSTER_SCOPED = frozenset({
    "Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "StorageClass", "CSIDriver",
    "CSINode", "VolumeAttachment", "VolumeAttributesClass", "CustomResourceDefinition", "APIService", "PriorityClass",
    "RuntimeClass", "IngressClass", "IPAddress", "ServiceCIDR", "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema",
    "PriorityLevelConfiguration", "CertificateSigningRequest", "DeviceClass", "ResourceSlice",
})  # fmt: skip
# Requests rather than stored objects, or served elsewhere.
NOT_STORED = frozenset({
    "Binding", "Eviction", "Scale", "Status", "TokenRequest", "TokenReview", "SelfSubjectReview",
    "LocalSubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview",
    "ComponentStatus", "StorageVersion",
})  # fmt: skip
# One version a group: the one that EKS prefers; a second one would need conversion.
SERVED_VERSIONS = {"autoscaling": "v2"}
SHORT_NAMES = {
    "ConfigMap": "cm", "CustomResourceDefinition": "crd,crds", "CronJob": "cj", "DaemonSet": "ds", "Deployment": "deploy",
    "Endpoints": "ep", "Event": "ev", "HorizontalPodAutoscaler": "hpa", "Ingress": "ing", "LimitRange": "limits",
    "Namespace": "ns", "NetworkPolicy": "netpol", "Node": "no", "PersistentVolume": "pv", "PersistentVolumeClaim": "pvc",
    "Pod": "po", "PodDisruptionBudget": "pdb", "PriorityClass": "pc", "ReplicaSet": "rs", "ReplicationController": "rc",
    "ResourceQuota": "quota", "Service": "svc", "ServiceAccount": "sa", "StatefulSet": "sts", "StorageClass": "sc",
}  # fmt: skip
CATEGORY_ALL = frozenset({
    "Pod", "ReplicationController", "Service", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet",
    "HorizontalPodAutoscaler", "CronJob", "Job", "RayCluster", "RayJob", "RayService", "RayCronJob",
})  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One kind in one version. `plural` is its name in URLs; `schema` the definition that its objects are held against."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    schema: str | None = None
    has_status: bool = True

    @property
    def api_version(self) -> str:
        """`v1` for the core group, else `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`deployments.apps`: the name that error messages of the API server use."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def plural_of(kind: str) -> str:
    """The plural that the API uses for a kind (`NetworkPolicy` -> `networkpolicies`)."""
    word = kind.lower()
    if word.endswith("endpoints"):
        return word
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


@cache
def built_in() -> Mapping[tuple[str, str], Kind]:
    """The built-in kinds by (group, kind)."""
    found: dict[tuple[str, str], Kind] = {}
    for name, schema in definitions().items():
        properties = schema.get("properties", {})
        for entry in schema.get("x-kubernetes-group-version-kind", ()):
            group, version, kind = entry["group"], entry["version"], entry["kind"]
            if version != SERVED_VERSIONS.get(group, "v1") or "metadata" not in properties or "items" in properties:
                continue
            if kind in NOT_STORED or group == "events.k8s.io":
                continue
            found[group, kind] = Kind(
                group=group,
                version=version,
                kind=kind,
                plural=plural_of(kind),
                namespaced=kind not in CLUSTER_SCOPED,
                short_names=tuple(filter(None, SHORT_NAMES.get(kind, "").split(","))),
                schema=name,
                has_status="status" in properties,
            )
    return found


def kinds_of_definition(crd: Mapping[str, Any]) -> list[Kind]:
    """The kinds that one CustomResourceDefinition object brings (its storage version)."""
    spec = crd["spec"]
    names = spec["names"]
    return [
        Kind(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames", ())),
            has_status="status" in version.get("subresources", {}),
        )
        for version in spec["versions"]
        if version.get("storage")
    ]
