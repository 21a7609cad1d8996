"""What surrounds a synthesis: the local environment is for the local cloud alone."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from config.environment import LOCAL_ACCOUNT, Environment
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
