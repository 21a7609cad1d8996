"""The account itself: whose it is, CDK's bootstrap, service-linked roles, IAM Identity Center."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from config.environment import DOCUMENTATION_ACCOUNT, Environment
from operations.aws import Unanswered
from operations.doctor.check import Finding, Subject, failed, ok, warning

# What the synthesized stacks ask for (`requiresBootstrapStackVersion` in a cloud assembly of aws-cdk-lib 2.x).
BOOTSTRAP_VERSION = 6
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
IDENTITY_CENTER_PAGE = "https://console.aws.amazon.com/singlesignon/home (enable it in the organization's management account)"


def credentials(subject: Subject) -> Iterator[Finding]:
    """The credentials' account is the environment's."""
    env, identity = subject.environment, subject.identity
    assert identity is not None
    if identity.account == env.account:
        yield ok(f"account {identity.account} as {identity.arn}")
    elif env.account == DOCUMENTATION_ACCOUNT:
        yield failed(
            f"environment {env.name} still names AWS's documentation account {env.account}; the credentials belong to {identity.account}",
            f'write account: "{identity.account}" into the environment file',
        )
    else:
        yield failed(
            f"environment {env.name} is in account {env.account}, and the credentials belong to {identity.account}",
            "set AWS_PROFILE to the right one",
        )


def bootstrap(subject: Subject) -> Iterator[Finding]:
    """The toolkit stack is there and new enough."""
    env = subject.environment
    command = f"cdk bootstrap aws://{env.account}/{env.region}"
    try:
        version = int(subject.account.call("ssm", "get_parameter", Name=BOOTSTRAP_PARAMETER)["Parameter"]["Value"])
    except Unanswered as error:
        if error.code != "ParameterNotFound":
            raise
        yield failed(f"account {env.account} is not bootstrapped in {env.region}: there is no parameter {BOOTSTRAP_PARAMETER}", command)
        return
    if version < BOOTSTRAP_VERSION:
        yield failed(f"the toolkit stack has version {version}, and the stacks need {BOOTSTRAP_VERSION}", command)
    else:
        yield ok(f"version {version}, at least {BOOTSTRAP_VERSION} is needed")


def linked_roles(env: Environment) -> dict[str, str]:
    """Role name -> service principal. HyperPod's is inferred from its managed policy's name; the others are in IAM's list.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_aws-services-that-work-with-iam.html
    """
    wanted = {
        "AWSServiceRoleForAmazonEKS": "eks.amazonaws.com",
        "AWSServiceRoleForAmazonFSx": "fsx.amazonaws.com",
        "AWSServiceRoleForSageMakerHyperPod": "hyperpod.sagemaker.amazonaws.com",
    }
    if env.observability.enabled and env.observability.grafana != "none":
        wanted["AWSServiceRoleForAmazonGrafana"] = "grafana.amazonaws.com"
    if env.remote_access.domain is not None:
        wanted["AWSServiceRoleForElasticLoadBalancing"] = "elasticloadbalancing.amazonaws.com"
    return wanted


def service_linked_roles(subject: Subject) -> Iterator[Finding]:
    """Services make these at first use, if the deploying role may; where it may not, somebody else has to before."""
    missing = []
    for name, principal in linked_roles(subject.environment).items():
        try:
            subject.account.call("iam", "get_role", RoleName=name)
        except Unanswered as error:
            if error.code not in ("NoSuchEntity", "NoSuchEntityException"):
                raise
            missing.append((name, principal))
    for name, principal in missing:
        yield warning(
            f"{name} is not there yet: the first deploy makes it, if the deploying role may (iam:CreateServiceLinkedRole)",
            f"aws iam create-service-linked-role --aws-service-name {principal}",
        )
    if not missing:
        yield ok("all there")


def identity_center(subject: Subject) -> Iterator[Finding]:
    """Managed Grafana with AWS_SSO needs an organization's instance: an account's own one is refused."""
    observability = subject.environment.observability
    if not observability.enabled or observability.grafana != "identity-center":
        yield ok(f"not needed: observability.grafana is {observability.grafana if observability.enabled else 'off'}")
        return
    instances = _instances(subject)
    other = "or set observability.grafana to saml or none"
    if not instances:
        yield failed(
            "no instance is seen in any region, and observability.grafana is identity-center",
            f"{IDENTITY_CENTER_PAGE}, {other}",
        )
        return
    owner = str(instances[0].get("OwnerAccountId", ""))
    if owner == subject.environment.account and not _manages(subject):
        yield failed(
            "the instance belongs to this account alone, and Grafana takes an organization's only", f"{IDENTITY_CENTER_PAGE}, {other}"
        )
        return
    yield ok(f"instance of account {owner}")


def _instances(subject: Subject) -> list[dict[str, Any]]:
    """An organization has one instance, in one region, and only there is it listed. Regions that are not enabled do not count."""
    own = list(subject.account.pages("sso-admin", "list_instances", "Instances"))
    if own:
        return own

    def look(region: str) -> list[dict[str, Any]]:
        try:
            return list(subject.account.call("sso-admin", "list_instances", in_region=region)["Instances"])
        except Unanswered:
            return []

    others = [region for region in subject.account.regions("sso-admin") if region != subject.environment.region]
    with ThreadPoolExecutor(8) as pool:
        return [instance for found in pool.map(look, others) for instance in found]


def _manages(subject: Subject) -> bool:
    """Whether this account is its organization's management account."""
    try:
        organization = subject.account.call("organizations", "describe_organization")["Organization"]
    except Unanswered as error:
        if error.code == "AWSOrganizationsNotInUseException":
            return False
        raise
    return str(organization.get("MasterAccountId", organization.get("ManagementAccountId", ""))) == subject.environment.account
