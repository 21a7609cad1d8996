"""Who may do what in an EKS cluster: access entries for callers, Pod Identity for pods. Reads records only, so it never blocks."""

from __future__ import annotations

import re
from typing import Any

from local.cloud import ACCOUNT, SECRET, accounts
from local.cloud.services import pod_identity
from local.cloud.store import Cloud

_ASSUMED = re.compile(r"arn:aws:sts::(\d{12}):assumed-role/([^/]+)/.*")


def allowed(cloud: Cloud, cluster: str, access_key: str) -> bool:
    """Whether an access key may enter a cluster: its account's own key may, a role needs an access entry.

    https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html. What its policies then allow is not looked at.
    """
    account = cloud.account_of(cluster)
    if accounts.is_root(access_key):
        return access_key == account
    from ministack.services import eks, sts

    match = _ASSUMED.fullmatch(str(sts._sessions.get(access_key, {}).get("Arn", "")))
    if match is None:
        return False
    with accounts.acting_as(account):
        principals = [str(entry.get("principalArn", "")) for key, entry in eks._access_entries.items() if key.startswith(f"{cluster}\0")]
    # A session's ARN has lost the path of its role's.
    found = (re.fullmatch(r"arn:aws:iam::(\d{12}):role/(?:.*/)?([^/]+)", principal) for principal in principals)
    return any(entry is not None and entry.groups() == match.groups() for entry in found)


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
