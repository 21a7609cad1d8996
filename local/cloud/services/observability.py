"""Managed Prometheus and Managed Grafana: workspaces, and Grafana's service accounts with their tokens.

https://docs.aws.amazon.com/prometheus/latest/APIReference/ and https://docs.aws.amazon.com/grafana/latest/APIReference/
"""

from __future__ import annotations

import time
from typing import Any

from local.cloud.attributes import drawn
from local.cloud.store import Cloud, Resource, tags
from local.cloud.wire import Answer, Operation, ServiceError

PROMETHEUS_TYPE = "AWS::APS::Workspace"
GRAFANA_TYPE = "AWS::Grafana::Workspace"


def _prometheus(resource: Resource) -> Answer:
    p, a = resource.properties, resource.attributes
    return {
        "workspaceId": a["WorkspaceId"],
        "arn": a["Arn"],
        "alias": p.get("Alias", ""),
        "status": {"statusCode": "ACTIVE"},
        "prometheusEndpoint": a["PrometheusEndpoint"],
        "createdAt": resource.created,
        "tags": tags(p),
    }


def _list_prometheus(cloud: Cloud, given: dict[str, Any]) -> Answer:
    found = [_prometheus(r) for r in cloud.store.all(PROMETHEUS_TYPE)]
    return {"workspaces": [w for w in found if str(w["alias"]).startswith(str(given.get("alias", "")))]}


def _describe_prometheus(cloud: Cloud, given: dict[str, Any]) -> Answer:
    for resource in cloud.store.where(PROMETHEUS_TYPE, WorkspaceId=given.get("workspaceId")):
        return {"workspace": _prometheus(resource)}
    raise ServiceError("ResourceNotFoundException", f"workspace {given.get('workspaceId')} does not exist", 404)


def _grafana_workspace(cloud: Cloud, given: dict[str, Any]) -> Resource:
    found = cloud.store.get(GRAFANA_TYPE, str(given.get("workspaceId")))
    if found is None:
        raise ServiceError("ResourceNotFoundException", f"Workspace {given.get('workspaceId')} does not exist.", 404)
    return found


def _grafana(resource: Resource) -> Answer:
    p = resource.properties
    return {
        "id": resource.id,
        "name": p.get("Name", ""),
        "description": p.get("Description", ""),
        "status": "ACTIVE",
        "endpoint": resource.attributes["Endpoint"],
        "grafanaVersion": p.get("GrafanaVersion", "10.4"),
        "accountAccessType": p.get("AccountAccessType"),
        "permissionType": p.get("PermissionType"),
        "authentication": {"providers": p.get("AuthenticationProviders", []), "samlConfigurationStatus": "NOT_CONFIGURED"},
        "dataSources": p.get("DataSources", []),
        "workspaceRoleArn": p.get("RoleArn", ""),
        "created": resource.created,
        "modified": resource.created,
        "tags": tags(p),
    }


def _describe_grafana(cloud: Cloud, given: dict[str, Any]) -> Answer:
    return {"workspace": _grafana(_grafana_workspace(cloud, given))}


def _list_grafana(cloud: Cloud, given: dict[str, Any]) -> Answer:
    return {"workspaces": [_grafana(r) for r in cloud.store.all(GRAFANA_TYPE)]}


def _accounts(resource: Resource) -> dict[str, Answer]:
    found: dict[str, Answer] = resource.owned.setdefault("service_accounts", {})
    return found


def _account(resource: Resource, given: dict[str, Any]) -> Answer:
    found = _accounts(resource).get(str(given.get("serviceAccountId")))
    if found is None:
        raise ServiceError("ResourceNotFoundException", f"Service account {given.get('serviceAccountId')} does not exist.", 404)
    return found


def _create_account(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _grafana_workspace(cloud, given)
    if any(a["name"] == given.get("name") for a in _accounts(resource).values()):
        raise ServiceError("ConflictException", f"Service account {given.get('name')} already exists.", 409)
    identifier = str(len(_accounts(resource)) + 1)
    made: Answer = {
        "id": identifier,
        "name": given.get("name"),
        "grafanaRole": given.get("grafanaRole"),
        "isDisabled": "false",
        "tokens": {},
    }
    _accounts(resource)[identifier] = made
    return {"id": identifier, "name": made["name"], "grafanaRole": made["grafanaRole"], "workspaceId": resource.id}


def _delete_account(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _grafana_workspace(cloud, given)
    _account(resource, given)
    del _accounts(resource)[str(given["serviceAccountId"])]
    return {"serviceAccountId": str(given["serviceAccountId"]), "workspaceId": resource.id}


def _list_accounts(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _grafana_workspace(cloud, given)
    shown = ("id", "name", "isDisabled", "grafanaRole")
    listed = [{name: a[name] for name in shown} for a in _accounts(resource).values()]
    return {"serviceAccounts": listed, "workspaceId": resource.id}


def _create_token(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _grafana_workspace(cloud, given)
    account = _account(resource, given)
    identifier = str(len(account["tokens"]) + 1)
    key = f"glsa_{drawn('alnum', 32)}"
    expires = time.time() + int(given["secondsToLive"])
    account["tokens"][identifier] = {"id": identifier, "name": given.get("name"), "expires": expires, "key": key}
    made = {"id": identifier, "name": given.get("name"), "key": key}
    return {"serviceAccountId": account["id"], "workspaceId": resource.id, "serviceAccountToken": made}


def _delete_token(cloud: Cloud, given: dict[str, Any]) -> Answer:
    resource = _grafana_workspace(cloud, given)
    account = _account(resource, given)
    if account["tokens"].pop(str(given.get("tokenId")), None) is None:
        raise ServiceError("ResourceNotFoundException", f"Token {given.get('tokenId')} does not exist.", 404)
    return {"tokenId": str(given["tokenId"]), "serviceAccountId": account["id"], "workspaceId": resource.id}


PROMETHEUS: dict[str, Operation] = {"ListWorkspaces": _list_prometheus, "DescribeWorkspace": _describe_prometheus}
GRAFANA: dict[str, Operation] = {
    "ListWorkspaces": _list_grafana,
    "DescribeWorkspace": _describe_grafana,
    "CreateWorkspaceServiceAccount": _create_account,
    "DeleteWorkspaceServiceAccount": _delete_account,
    "ListWorkspaceServiceAccounts": _list_accounts,
    "CreateWorkspaceServiceAccountToken": _create_token,
    "DeleteWorkspaceServiceAccountToken": _delete_token,
}
