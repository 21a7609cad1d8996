"""What surrounds a synthesis: the local environment is for the local cloud alone."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from config.environment import DOCUMENTATION_ACCOUNT, LOCAL_ACCOUNT, Environment
from config.problems import Problem, Refused

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def refuse_elsewhere(settings: Environment, variables: Mapping[str, str]) -> None:
    """The local environment is for the local cloud alone. Raises Refused if what surrounds us points anywhere else."""
    if not settings.local:
        return
    problems = []
    endpoint = variables.get("AWS_ENDPOINT_URL")
    if endpoint and urlsplit(endpoint).hostname not in LOOPBACK:
        problems.append(
            Problem(
                "AWS_ENDPOINT_URL",
                endpoint,
                f"environment {settings.name} runs against a loopback endpoint only",
                'eval "$(hyperpod-rl local env)"',
            )
        )
    account = variables.get("CDK_DEFAULT_ACCOUNT")
    if account and account != LOCAL_ACCOUNT:
        problems.append(
            Problem(
                "CDK_DEFAULT_ACCOUNT", account, f"environment {settings.name} is account {LOCAL_ACCOUNT}", 'eval "$(hyperpod-rl local env)"'
            )
        )
    if problems:
        raise Refused(problems)


def worth_knowing(settings: Environment) -> list[str]:
    """What a deploy takes as it is, but whoever deploys should know: one sentence each."""
    if settings.local:
        return []
    if settings.account == DOCUMENTATION_ACCOUNT:
        return [
            f"environment {settings.name} names no account: synthesizing for AWS's documentation account {DOCUMENTATION_ACCOUNT} "
            "(set `account` in the file, or -c account=ID)"
        ]
    found, access = [], settings.access
    if access.endpoint == "public" and (not access.public_cidrs or "0.0.0.0/0" in access.public_cidrs):
        found.append(
            f"environment {settings.name} lets every address ask its Kubernetes API, which then wants credentials: "
            "set access.public_cidrs, or access.endpoint: private"
        )
    if not (access.administrators or access.training_users or access.inference_users):
        found.append(
            f"environment {settings.name} lets nobody into its Kubernetes cluster, not even whoever deploys it: "
            "name roles in access.administrators, access.training_users or access.inference_users"
        )
    return found
