"""IAM, enforced: a role's session may do what its policies say, here and in the services that ministack answers.

ministack evaluates policies itself (AUTH); it is asked for the services of ours, too. An account's own key may do everything, as the
root user may. What it does not know is which resource some calls are about: those are named here, as the service authorization
reference has them (https://docs.aws.amazon.com/service-authorization/latest/reference/).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from local.cloud import REGION, accounts
from local.cloud.wire import Request, Response, access_key_of, operation, service_of

SESSION_SECONDS = 3600.0
# Signing name -> prefix of its actions, where they differ.
PREFIXES = {"servicequotas": "servicequotas", "eks-auth": "eks-auth"}
Parameters = Mapping[str, Any]


def _cluster(given: Parameters) -> str:
    return f"sagemaker:{{}}:cluster/{given['ClusterName'].rpartition('/')[2]}"


def _file_systems(given: Parameters) -> str:
    return f"fsx:{{}}:file-system/{given['FileSystemId']}"


# Our own services: operation -> the resource, with the place for region and account. Everything else knows no resource (`*`).
RESOURCES: Mapping[str, Callable[[Parameters], str]] = {
    **{
        f"sagemaker:{name}": _cluster
        for name in (
            "DescribeCluster", "ListClusterNodes", "DescribeClusterNode", "ListClusterEvents", "UpdateCluster", "DeleteCluster",
            "BatchDeleteClusterNodes", "BatchReplaceClusterNodes", "BatchAddClusterNodes",
        )
    },
    **{f"sagemaker:{name}": lambda given: f"sagemaker:{{}}:domain/{given['DomainId']}" for name in ("DescribeDomain", "DeleteDomain")},
    "sagemaker:DescribeTrainingPlan": lambda given: f"sagemaker:{{}}:training-plan/{given['TrainingPlanName']}",
    "sagemaker:DeleteUserProfile": lambda given: f"sagemaker:{{}}:user-profile/{given['DomainId']}/{given['UserProfileName']}",
    "sagemaker:DeleteSpace": lambda given: f"sagemaker:{{}}:space/{given['DomainId']}/{given['SpaceName']}",
    "fsx:CreateBackup": _file_systems,
    "fsx:DescribeFileSystems": lambda given: f"fsx:{{}}:file-system/{(given.get('FileSystemIds') or ['*'])[0]}",
    "fsx:DeleteBackup": lambda given: f"fsx:{{}}:backup/{given['BackupId']}",
    "aps:DescribeWorkspace": lambda given: f"aps:{{}}:workspace/{given['workspaceId']}",
    **{
        f"grafana:{name}": lambda given: f"grafana:{{}}:/workspaces/{given['workspaceId']}"
        for name in (
            "DescribeWorkspace", "ListWorkspaceServiceAccounts", "CreateWorkspaceServiceAccount", "CreateWorkspaceServiceAccountToken",
            "DeleteWorkspaceServiceAccount", "DeleteWorkspaceServiceAccountToken",
        )
    },
    "eks-auth:AssumeRoleForPodIdentity": lambda given: f"eks:{{}}:cluster/{given['clusterName']}",
    "eks:DeleteCluster": lambda given: f"eks:{{}}:cluster/{given['name']}",
}  # fmt: skip


def install() -> None:
    """Name the resources of calls that ministack takes for calls about everything."""
    from ministack.core import iam_actions

    known = iam_actions.extract_resource_arn

    def extract_resource_arn(service: str, method: str, path: str, headers: Any, body: bytes, query: Any, region: str, account: str) -> str:
        if service == "codebuild" and headers.get("x-amz-target", "").endswith(".BatchGetBuilds"):
            # A build belongs to its project; of several projects the first one is judged.
            identifiers = json.loads(body or b"{}").get("ids") or [":"]
            return f"arn:aws:codebuild:{region}:{account}:project/{str(identifiers[0]).partition(':')[0]}"
        return str(known(service, method, path, headers, body, query, region, account))

    iam_actions.extract_resource_arn = extract_resource_arn


def refusal(request: Request) -> Response | None:
    """The refusal of a call of ours whose caller may not make it; None for one that may."""
    service = service_of(request.headers)
    if service is None:
        return None  # the Pod Identity agent's own path, which a token guards
    name, given = operation(service, request)
    action = f"{service}:{name}"
    denied = _denied(access_key_of(request.headers), service, action, _resource(action, given))
    if denied is None:
        return None
    body = json.dumps({"__type": "AccessDeniedException", "message": denied, "Message": denied}).encode()
    if service == "ec2":
        text = f"<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>{denied}</Message></Error></Errors></Response>"
        return Response(403, text.encode(), "text/xml")
    return Response(403, body, headers={"x-amzn-errortype": "AccessDeniedException"})


def _resource(action: str, given: Parameters) -> str:
    try:
        rest = RESOURCES[action](given)
    except KeyError:
        return "*"
    return "arn:aws:" + rest.format(f"{REGION}:{accounts.current()}")


def _denied(access_key: str, service: str, action: str, resource: str) -> str | None:
    from ministack.core import iam_actions, iam_evaluator

    found = iam_evaluator.enforce(access_key, action, service, REGION, resource_arn=resource)
    if found is None:
        return None
    if isinstance(found, iam_evaluator.AuthError):
        return str(found.message)
    return str(iam_actions.identity_denial_message(action, found.principal_arn, resource, found.decision == "Deny"))


def session(role_arn: str, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Credentials of a role that a service assumed. Who may assume it is for the caller to check."""
    from ministack.services import sts

    account, role = role_arn.split(":")[4], role_arn.rsplit("/", 1)[-1]
    key = f"ASIA{secrets.token_hex(8).upper()}"
    expires = time.time() + SESSION_SECONDS
    arn = f"arn:aws:sts::{account}:assumed-role/{role}/{name}"
    made = {"SecretAccessKey": secrets.token_hex(20), "SessionToken": secrets.token_hex(32)}
    sts.register_session(key, {
        "Arn": arn,
        "UserId": f"AROA{role[:12].upper()}:{name}",
        "AccountId": account,
        "Expiration": expires,
        "SessionTags": [{"Key": tag, "Value": value} for tag, value in tags.items()],
        **made,
    })  # fmt: skip
    return {"AccessKeyId": key, "Expiration": expires, "Arn": arn, **made}


def conditions_met(conditions: Mapping[str, Any], keys: Mapping[str, str]) -> bool:
    """Whether the conditions of a trust policy hold; keys in lower case, as `aws:sourcearn`."""
    from ministack.core import iam_evaluator

    context = iam_evaluator.EvalContext("", "Service", accounts.current(), "sts:AssumeRole", "*", REGION, service_context=dict(keys))
    return bool(iam_evaluator._conditions_met(dict(conditions), context))
