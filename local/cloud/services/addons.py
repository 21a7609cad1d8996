"""EKS add-on catalog, the one call of EKS that ministack lacks: the versions that the version sets pin exist here, and older builds.

https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeAddonVersions.html
"""

from __future__ import annotations

from typing import Any

from config.versions import VERSION_SETS
from local.cloud.store import Cloud
from local.cloud.wire import Answer, Operation


def describe_versions(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """Add-ons of one Kubernetes version (all of them if none is named)."""
    kubernetes, name = given.get("kubernetesVersion"), given.get("addonName")
    found: dict[str, dict[str, set[str]]] = {}
    for each in VERSION_SETS.values():
        for addon, version in each.platform.addons.items():
            found.setdefault(addon, {}).setdefault(version, set()).add(each.platform.kubernetes)
    return {"addons": [
        {"addonName": addon, "type": "local", "addonVersions": [
            {"addonVersion": version, "architecture": ["amd64"],
             "compatibilities": [{"clusterVersion": k, "defaultVersion": True} for k in sorted(kubernetes_versions)]}
            for version, kubernetes_versions in sorted(versions.items(), reverse=True)
            if kubernetes is None or kubernetes in kubernetes_versions
        ]}
        for addon, versions in sorted(found.items())
        if name in (None, addon)
    ]}  # fmt: skip


OPERATIONS: dict[str, Operation] = {"DescribeAddonVersions": describe_versions}
