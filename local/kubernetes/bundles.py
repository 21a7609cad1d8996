"""The objects that charts and add-ons consist of, as far as something else could notice them: kinds, workloads, roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from local.kubernetes.kinds import plural_of

Object = dict[str, Any]


def definition(
    group: str,
    kind: str,
    *,
    version: str = "v1",
    scope: str = "Namespaced",
    short: Sequence[str] = (),
    columns: Sequence[Object] = (),
) -> Object:
    """A CustomResourceDefinition whose schema accepts everything: the operator's own schema is in no Python package."""
    plural = plural_of(kind)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower(), "shortNames": list(short)},
            "versions": [
                {
                    "name": version, "served": True, "storage": True, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    **({"additionalPrinterColumns": list(columns)} if columns else {}),
                }
            ],
        },
    }  # fmt: skip


def column(name: str, path: str, kind: str = "string") -> Object:
    """One column of `kubectl get`."""
    return {"name": name, "type": kind, "jsonPath": path}


def namespace(name: str) -> Object:
    """A Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def service_account(name: str, namespace: str) -> Object:
    """A ServiceAccount."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}


def cluster_role(name: str, group: str, resources: Sequence[str], verbs: Sequence[str] = ("*",)) -> Object:
    """A ClusterRole over some resources of one group."""
    rule = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [rule],
    }


def workload(kind: str, name: str, namespace: str, *, image: str, account: str = "", cpu: str = "50m", memory: str = "64Mi") -> Object:
    """A Deployment or DaemonSet of one container. DaemonSets of nodes tolerate every taint, as node agents do."""
    labels = {"app.kubernetes.io/name": name}
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    spec: Object = {"containers": [{"name": name[:63], "image": image, "resources": resources}]}
    if account:
        spec["serviceAccountName"] = account
    if kind == "DaemonSet":
        spec["tolerations"] = [{"operator": "Exists"}]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def deployment(name: str, namespace: str, *, image: str, account: str = "") -> Object:
    """A Deployment of one replica."""
    return workload("Deployment", name, namespace, image=image, account=account)


def daemon_set(name: str, namespace: str, *, image: str) -> Object:
    """A DaemonSet on every node."""
    return workload("DaemonSet", name, namespace, image=image)


def cert_manager_definitions() -> list[Object]:
    """The kinds of cert-manager: https://cert-manager.io/docs/reference/api-docs/"""
    found = [definition("cert-manager.io", kind) for kind in ("Certificate", "CertificateRequest", "Issuer")]
    found.append(definition("cert-manager.io", "ClusterIssuer", scope="Cluster"))
    return found + [definition("acme.cert-manager.io", kind) for kind in ("Challenge", "Order")]
