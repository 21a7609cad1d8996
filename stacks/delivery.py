"""Who deploys without keys: two roles for a GitHub repository's workflows, taken on through OpenID Connect.

The plan role looks and makes change sets, and cannot execute one; the deploy role takes on the roles of CDK's bootstrap. GitHub says
in the token's subject which branch, or which protected environment, a job runs for:
https://docs.github.com/en/actions/reference/security/oidc. An account has one identity provider for that address, for
everything in it, so this stack names it and does not make it.
"""

from __future__ import annotations

from aws_cdk import aws_iam as iam

from config import names
from config.network import Delivery
from stacks.allow import Allow
from stacks.roles import role
from stacks.stack import EnvironmentStack

ISSUER = "token.actions.githubusercontent.com"
# The qualifier of the default bootstrap: https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-customizing.html
BOOTSTRAP = "cdk-hnb659fds"


def roles(stack: EnvironmentStack, wanted: Delivery) -> None:
    """The plan role for the branch, the deploy role for the GitHub environment of this environment's name."""
    account, region = stack.account, stack.region
    place = f"arn:{stack.partition}:iam::{account}:role/{BOOTSTRAP}"
    stacks = f"arn:{stack.partition}:cloudformation:{region}:{account}:stack/{names.PREFIX}-{stack.settings.name}-*/*"
    plan = role(
        stack,
        "PlanRole",
        principal=_principal(stack, f"repo:{wanted.repository}:ref:refs/heads/{wanted.branch}"),
        description=f"Workflows of {wanted.repository}: drift and change sets, nothing executed",
        managed=["ReadOnlyAccess"],
        allow=[
            Allow(
                [
                    "cloudformation:CreateChangeSet",
                    "cloudformation:DeleteChangeSet",
                    "cloudformation:DetectStackDrift",
                    "cloudformation:DetectStackResourceDrift",
                ],
                [stacks],
                why="a stack's ARN ends in an id that CloudFormation chooses",
            ),
            Allow(
                ["iam:PassRole"],
                [f"{place}-cfn-exec-role-{account}-{region}"],
                conditions={"StringEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}},
            ),
            Allow(["sts:AssumeRole"], [f"{place}-{kind}-role-{account}-{region}" for kind in ("file-publishing", "lookup")]),
        ],
    )
    deploy = role(
        stack,
        "DeployRole",
        principal=_principal(stack, f"repo:{wanted.repository}:environment:{stack.settings.name}"),
        description=f"Workflows of {wanted.repository}: cdk deploy",
        allow=[
            Allow(
                ["sts:AssumeRole"],
                [f"{place}-{kind}-role-{account}-{region}" for kind in ("deploy", "file-publishing", "image-publishing", "lookup")],
            ),
        ],
    )
    for made, kind in ((plan, "plan"), (deploy, "deploy")):
        # Fixed: the workflows make the ARN out of the account, the environment and the region.
        resource = made.node.default_child
        assert isinstance(resource, iam.CfnRole)
        resource.role_name = names.delivery_role(stack.settings, kind)
        resource.max_session_duration = 3 * 3600 if kind == "deploy" else 3600


def _principal(stack: EnvironmentStack, subject: str) -> iam.IPrincipal:
    provider = f"arn:{stack.partition}:iam::{stack.account}:oidc-provider/{ISSUER}"
    return iam.WebIdentityPrincipal(provider, conditions={"StringEquals": {f"{ISSUER}:aud": "sts.amazonaws.com", f"{ISSUER}:sub": subject}})
