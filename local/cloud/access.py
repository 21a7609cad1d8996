"""Who may do what in an EKS cluster: access entries for callers, Pod Identity for pods. Reads records only, so it never blocks."""

from __future__ import annotations

import re
from typing import Any

from local.cloud import ACCOUNT, SECRET, accounts
from local.cloud.services import pod_identity
from local.cloud.store import Cloud
from local.kubernetes.errors import Rejected

_ASSUMED = re.compile(r"arn:aws:sts::(\d{12}):assumed-role/([^/]+)/.*")


def allowed(cloud: Cloud, cluster: str, access_key: str) -> bool:
    """Whether an access key may enter a cluster: its account's own key may, a role needs an access entry.

    https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html. What its policies then allow is not looked at.
    """
    if accounts.is_root(access_key):
        return access_key == cloud.account_of(cluster)
    return _entry(cloud, cluster, access_key) is not None


def user(cloud: Cloud, cluster: str, access_key: str) -> tuple[str, list[str]]:
    """Kubernetes' name and groups of an access key: those of its access entry, and one for each policy on the whole cluster.

    Raises Rejected where no entry lets it in.
    """
    if not allowed(cloud, cluster, access_key):
        raise Rejected(f"no access entry of cluster {cluster} lets {access_key} in", reason="Unauthorized")
    entry = None if accounts.is_root(access_key) else _entry(cloud, cluster, access_key)
    if entry is None:
        return f"arn:aws:iam::{access_key}:root", ["system:masters"]
    principal = str(entry["principalArn"])
    policies = _policies(cloud, cluster, principal)
    return principal, [*entry.get("kubernetesGroups", ()), *(f"eks-access-policy:{name}" for name in policies)]


def _policies(cloud: Cloud, cluster: str, principal: str) -> list[str]:
    with accounts.acting_as(cloud.account_of(cluster)):
        found = cloud.client("eks").list_associated_access_policies(clusterName=cluster, principalArn=principal)
    return [
        str(policy["policyArn"]).rsplit("/", 1)[-1]
        for policy in found["associatedAccessPolicies"]
        if policy["accessScope"]["type"] == "cluster"
    ]


def _entry(cloud: Cloud, cluster: str, access_key: str) -> dict[str, Any] | None:
    from ministack.services import eks, sts

    match = _ASSUMED.fullmatch(str(sts._sessions.get(access_key, {}).get("Arn", "")))
    if match is None:
        return None
    with accounts.acting_as(cloud.account_of(cluster)):
        entries = [entry for key, entry in eks._access_entries.items() if key.startswith(f"{cluster}\0")]
    for entry in entries:
        # A session's ARN has lost the path of its role's.
        principal = re.fullmatch(r"arn:aws:iam::(\d{12}):role/(?:.*/)?([^/]+)", str(entry.get("principalArn", "")))
        if principal is not None and principal.groups() == match.groups():
            found: dict[str, Any] = entry
            return found
    return None


def pod_environment(cloud: Cloud, cluster: str, namespace: str, service_account: str) -> dict[str, str]:
    """What a pod of this service account gets to reach AWS with.

    With a Pod Identity association the variables that EKS adds to it; without one the account's own key, which stands for
    the role of the node. Only where that is not the key that pods have anyway.
    """
    account = cloud.account_of(cluster)
    with accounts.acting_as(account):
        if _association(cluster, namespace, service_account) is not None:
            return pod_identity.environment(cloud.port, cluster=cluster, namespace=namespace, service_account=service_account)
    return {} if account == ACCOUNT else {"AWS_ACCESS_KEY_ID": account, "AWS_SECRET_ACCESS_KEY": SECRET}


def _association(cluster: str, namespace: str, service_account: str) -> dict[str, Any] | None:
    from ministack.services import eks

    for key, record in list(eks._pod_identity_associations.items()):
        if key.startswith(f"{cluster}\0") and (record.get("namespace"), record.get("serviceAccount")) == (namespace, service_account):
            found: dict[str, Any] = record
            return found
    return None
