"""The one look-up of what a deployed environment is called: SSM parameters that the stacks write, read with the user's credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from config import names
from config.environment import DOCUMENTATION_ACCOUNT, Environment
from config.names import Parameter
from config.problems import Problem, Refused, Unreachable
from training import refusals


@dataclass(frozen=True)
class Deployed:
    """What the stacks of one environment made, as far as they are there."""

    environment: str
    account: str
    region: str
    parameters: Mapping[Parameter, str]

    def __getitem__(self, which: Parameter) -> str:
        """One value. Raises Unreachable naming the step that writes it."""
        try:
            return self.parameters[which]
        except KeyError:
            path = f"/{names.PREFIX}/{self.environment}/{which.value}"
            raise Unreachable(
                f"environment {self.environment} is not deployed as far as this needs: there is no SSM parameter {path} in {self.region}"
                f" of account {self.account}; run `cdk deploy --all -c env={self.environment}`"
            ) from None


def check_endpoint(env: Environment) -> None:
    """The local cloud's account speaks to a loopback endpoint only, every other account never to one. Raises Refused."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    local = bool(endpoint) and is_loopback(endpoint)
    if env.local and not local:
        rule = f"environment {env.name} speaks to the local cloud on this machine only"
        fix = 'run `hyperpod-rl local up`, then `eval "$(hyperpod-rl local env)"`'
        raise Refused(Problem("AWS_ENDPOINT_URL", endpoint or "(not set)", rule, fix))
    if endpoint and not _is_url(endpoint):
        raise Refused(Problem("AWS_ENDPOINT_URL", endpoint, "it is no address that begins with http:// or https://", "mend or unset it"))
    if not env.local and local:
        raise Refused(Problem("AWS_ENDPOINT_URL", endpoint, f"environment {env.name} is in AWS, and this endpoint is the local cloud's",
                              "unset AWS_ENDPOINT_URL, or choose environment local"))  # fmt: skip


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine by its loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def session(env: Environment) -> Any:
    """A boto3 session in the environment's region, after the check of the endpoint. Raises Refused, Unreachable."""
    check_endpoint(env)
    import boto3

    with reaching("AWS"):  # an AWS_PROFILE that is not there, a file that cannot be read
        return boto3.Session(region_name=env.region)


def client(env: Environment, service: str, aws: Any = None) -> Any:
    """A boto3 client that gives up within half a minute instead of several."""
    from botocore.config import Config

    limits = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 3, "mode": "standard"})
    return (aws or session(env)).client(service, config=limits)


def lookup(env: Environment, aws: Any = None) -> Deployed:
    """Read what is deployed.

    `aws` is a boto3 session; the user's own by default. Raises Refused where endpoint, credentials and environment do not belong
    together, Unreachable where AWS does not answer. What is not deployed is missing in the result, not an error.
    """
    aws = aws or session(env)
    with reaching("AWS"):
        account = str(client(env, "sts", aws).get_caller_identity()["Account"])
        check_account(env, account)
        pages = client(env, "ssm", aws).get_paginator("get_parameters_by_path").paginate(Path=names.parameter_path(env), Recursive=True)
        found = {item["Name"].removeprefix(names.parameter_path(env)): item["Value"] for page in pages for item in page["Parameters"]}
    known = {which: found[which.value] for which in Parameter if which.value in found}
    return Deployed(environment=env.name, account=account, region=env.region, parameters=known)


def check_account(env: Environment, account: str) -> None:
    """The credentials' account must be the environment's. Raises Refused."""
    if account == env.account:
        return
    if env.account == DOCUMENTATION_ACCOUNT:
        rule = f"environment {env.name} still names AWS's documentation account; your credentials belong to {account}"
        raise Refused(Problem("account", env.account, rule, f'write account: "{account}" into the environment file'))
    raise Refused(Problem("account", env.account, f"environment {env.name} is in this account, but your credentials belong to {account}",
                          "set AWS_PROFILE to the right one"))  # fmt: skip


class reaching:
    """Turns what boto3 raises into sentences: Unreachable for connection and credentials, Refused never."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        from botocore.exceptions import BotoCoreError, ClientError

        if isinstance(error, ClientError):
            detail = error.response.get("Error", {})
            code, message = str(detail.get("Code", "error")), str(detail.get("Message", "no reason given"))
            fix = refusals.fix(code, message, operation=error.operation_name)
            said = f"{self.what} refused {error.operation_name}: {code}, {message.rstrip('.') if fix else message}"
            raise Unreachable(f"{said}; {fix}" if fix else said) from None
        if isinstance(error, BotoCoreError):
            fix = refusals.fix("", type(error).__name__, operation="")
            raise Unreachable(f"{self.what} cannot be reached: {str(error).rstrip('.')}; {fix}") from None
