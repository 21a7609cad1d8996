"""EKS add-ons: which kinds and objects appear while one is installed.

Names of objects follow the add-ons' public charts; only what other parts refer to is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from local.kubernetes.bundles import Object, cert_manager_definitions, daemon_set, definition, deployment, namespace
from local.kubernetes.cluster import Cluster
from local.kubernetes.errors import Rejected

MANAGER = "eks"
OBSERVABILITY_NAMESPACE = "hyperpod-observability"


def _cert_manager() -> list[Object]:
    names = ("cert-manager", "cert-manager-cainjector", "cert-manager-webhook")
    workloads = [deployment(name, "cert-manager", image=f"cert-manager/{name}") for name in names]
    return [namespace("cert-manager"), *cert_manager_definitions(), *workloads]


def _csi(name: str, driver: str) -> list[Object]:
    csi = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": driver},
        "spec": {"attachRequired": False},
    }
    return [
        csi,
        deployment(f"{name}-csi-controller", "kube-system", image=f"{name}-csi-driver"),
        daemon_set(f"{name}-csi-node", "kube-system", image=f"{name}-csi-driver"),
    ]


def _metrics_server() -> list[Object]:
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"name": "metrics-server", "namespace": "kube-system"},
        },
    }  # fmt: skip
    return [service, deployment("metrics-server", "kube-system", image="metrics-server")]


def _observability() -> list[Object]:
    place = OBSERVABILITY_NAMESPACE
    collector = deployment("hyperpod-observability-operator", place, image="hyperpod-observability-operator")
    return [namespace(place), collector, daemon_set("hyperpod-node-exporter", place, image="node-exporter")]


def _spaces() -> list[Object]:
    place = "jupyter-k8s-system"
    kinds = [
        definition("workspace.jupyter.org", kind, version="v1alpha1")
        for kind in ("Workspace", "WorkspaceTemplate", "WorkspaceAccessStrategy")
    ]
    return [namespace(place), *kinds, deployment("jupyter-k8s-controller-manager", place, image="jupyter-k8s")]


def _task_governance() -> list[Object]:
    kinds = [definition("kueue.x-k8s.io", kind, version="v1beta1") for kind in ("LocalQueue", "Workload")]
    kinds += [
        definition("kueue.x-k8s.io", kind, version="v1beta1", scope="Cluster") for kind in ("ClusterQueue", "ResourceFlavor", "Cohort")
    ]
    return [namespace("kueue-system"), *kinds, deployment("kueue-controller-manager", "kueue-system", image="kueue")]


ADDONS: Mapping[str, Callable[[], list[Object]]] = {
    "vpc-cni": lambda: [daemon_set("aws-node", "kube-system", image="amazon-k8s-cni")],
    "kube-proxy": lambda: [daemon_set("kube-proxy", "kube-system", image="kube-proxy")],
    "coredns": lambda: [deployment("coredns", "kube-system", image="coredns")],
    "eks-pod-identity-agent": lambda: [daemon_set("eks-pod-identity-agent", "kube-system", image="eks-pod-identity-agent")],
    "aws-fsx-csi-driver": lambda: _csi("fsx", "fsx.csi.aws.com"),
    "aws-ebs-csi-driver": lambda: _csi("ebs", "ebs.csi.aws.com"),
    "cert-manager": _cert_manager,
    "metrics-server": _metrics_server,
    "external-dns": lambda: [
        namespace("external-dns"),
        deployment("external-dns", "external-dns", image="external-dns"),
    ],
    "amazon-sagemaker-hyperpod-observability": _observability,
    "amazon-sagemaker-spaces": _spaces,
    "amazon-sagemaker-hyperpod-taskgovernance": _task_governance,
}


def install(cluster: Cluster, name: str) -> None:
    """Make what an add-on brings. An add-on that is not in the table brings nothing that this machine knows of."""
    if name in cluster.addons:
        return
    if name == "cert-manager" and any(release.brings_cert_manager for release in cluster.releases.values()):
        raise Rejected("cert-manager is installed by the HyperPod dependency chart already; switch it off there", reason="Conflict")
    cluster.apply(ADDONS.get(name, list)(), manager=MANAGER)
    cluster.addons.add(name)


def remove(cluster: Cluster, name: str) -> None:
    """Delete what an add-on brought, its kinds (and so their objects) too; once is enough."""
    if name in cluster.addons:
        cluster.addons.discard(name)
        cluster.delete(list(reversed(ADDONS.get(name, list)())))
