"""EKS Pod Identity: credentials for a pod's service account.

A pod's SDK asks the agent of its node (`AWS_CONTAINER_CREDENTIALS_FULL_URI`), the agent asks
`eks-auth:AssumeRoleForPodIdentity`: https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html
Here the daemon is both. The token, which on AWS is a signed service-account token, names cluster, namespace and service
account in the clear: this endpoint is bound to the loopback interface and guards nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import Any

from local.cloud import REGION, accounts, iam
from local.cloud.store import Cloud
from local.cloud.wire import Answer, Operation, ServiceError

CREDENTIALS_PATH = "/v1/credentials"


def token(cluster: str, namespace: str, service_account: str) -> str:
    """What a process that stands for a pod sends as AWS_CONTAINER_AUTHORIZATION_TOKEN."""
    return base64.urlsafe_b64encode(json.dumps([cluster, namespace, service_account]).encode()).decode()


def environment(cloud_port: int, *, cluster: str, namespace: str, service_account: str) -> dict[str, str]:
    """The variables that the Pod Identity webhook puts into a pod whose service account has an association."""
    return {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{cloud_port}{CREDENTIALS_PATH}",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": token(cluster, namespace, service_account),
    }


def _subject(given: str) -> tuple[str, str, str]:
    try:
        cluster, namespace, account = json.loads(base64.urlsafe_b64decode(given.encode()))
    except (ValueError, binascii.Error) as error:
        raise ServiceError("InvalidTokenException", "The token is not valid.", 400) from error
    return str(cluster), str(namespace), str(account)


def assume(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """Credentials of the role that is associated with the token's service account."""
    cluster, namespace, account = _subject(str(given.get("token", "")))
    with accounts.acting_as(cloud.account_of(cluster)):
        return _assumed(cloud, given, cluster, namespace, account)


def _assumed(cloud: Cloud, given: dict[str, Any], cluster: str, namespace: str, account: str) -> Answer:
    if given.get("clusterName") not in (None, cluster):
        raise ServiceError("AccessDeniedException", "The token was issued by another cluster.", 403)
    eks = cloud.client("eks")
    try:
        found = eks.list_pod_identity_associations(clusterName=cluster, namespace=namespace, serviceAccount=account)
    except eks.exceptions.ResourceNotFoundException as error:
        raise ServiceError("ResourceNotFoundException", f"No cluster found for name: {cluster}.", 404) from error
    if found["associations"]:
        identifier = found["associations"][0]["associationId"]
        association = eks.describe_pod_identity_association(clusterName=cluster, associationId=identifier)["association"]
    else:
        association = of_addon(cloud, cluster, account)
    if association is None:
        message = f"No Pod Identity association for service account {account} in namespace {namespace} of cluster {cluster}."
        raise ServiceError("ResourceNotFoundException", message, 404)
    _check_trust(cloud, str(association["roleArn"]), cluster)
    arn = f"arn:aws:eks:{REGION}:{accounts.current()}:cluster/{cluster}"
    # https://docs.aws.amazon.com/eks/latest/userguide/pod-id-abac.html
    tags = {"eks-cluster-arn": arn, "eks-cluster-name": cluster, "kubernetes-namespace": namespace, "kubernetes-service-account": account}
    credentials = iam.session(str(association["roleArn"]), f"eks-{cluster}-{account}"[:64], tags)
    return {
        "subject": {"namespace": namespace, "serviceAccount": account},
        "audience": "pods.eks.amazonaws.com",
        "podIdentityAssociation": {"associationArn": association["associationArn"], "associationId": association["associationId"]},
        "assumedRoleUser": {"arn": credentials["Arn"], "assumeRoleId": credentials["AccessKeyId"]},
        "credentials": {
            "accessKeyId": credentials["AccessKeyId"],
            "secretAccessKey": credentials["SecretAccessKey"],
            "sessionToken": credentials["SessionToken"],
            "expiration": datetime.fromtimestamp(credentials["Expiration"], UTC),
        },
    }


def of_addon(cloud: Cloud, cluster: str, service_account: str) -> dict[str, Any] | None:
    """The association that an add-on owns: it names a service account of the add-on's own namespace."""
    for resource in cloud.store.where("AWS::EKS::Addon", ClusterName=cluster):
        for owned in resource.properties.get("PodIdentityAssociations") or ():
            if owned.get("ServiceAccount") == service_account:
                name = f"a-{resource.properties['AddonName']}"
                arn = f"arn:aws:eks:{REGION}:{accounts.current()}:podidentityassociation/{cluster}/{name}"
                return {"roleArn": owned["RoleArn"], "associationArn": arn, "associationId": name}
    return None


def _check_trust(cloud: Cloud, role: str, cluster: str) -> None:
    """The role must let EKS assume it and tag the session: https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html"""
    client = cloud.client("iam")
    try:
        trust = client.get_role(RoleName=role.rsplit("/", 1)[-1])["Role"]["AssumeRolePolicyDocument"]
    except client.exceptions.NoSuchEntityException:
        trust = {}
    keys = {
        "aws:sourceaccount": accounts.current(),
        "aws:sourcearn": f"arn:aws:eks:{REGION}:{accounts.current()}:cluster/{cluster}",
    }
    allowed: set[str] = set()
    for statement in trust.get("Statement", []):
        named = "pods.eks.amazonaws.com" in json.dumps(statement.get("Principal", {}))
        if statement.get("Effect") == "Allow" and named and iam.conditions_met(statement.get("Condition") or {}, keys):
            actions = statement.get("Action", [])
            allowed |= {actions} if isinstance(actions, str) else set(actions)
    if not {"sts:AssumeRole", "sts:TagSession"} <= allowed:
        message = f"Unauthorized Exception! EKS does not have permissions to assume the associated role {role}."
        raise ServiceError("AccessDeniedException", message, 403)


def agent(cloud: Cloud, authorization: str) -> Answer:
    """What the node's agent answers to an SDK."""
    found = assume(cloud, {"token": authorization})["credentials"]
    return {
        "AccessKeyId": found["accessKeyId"],
        "SecretAccessKey": found["secretAccessKey"],
        "Token": found["sessionToken"],
        "Expiration": found["expiration"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "AccountId": cloud.account_of(_subject(authorization)[0]),
    }


OPERATIONS: dict[str, Operation] = {"AssumeRoleForPodIdentity": assume}
