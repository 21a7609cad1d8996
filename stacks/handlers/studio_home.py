"""Takes a Studio domain away whole: CloudFormation keeps its home directories, an EFS file system whose mount targets keep the VPC.

The domain is deleted here, with its file system, and CloudFormation then finds it gone, which is as good. A running app stops it all:
what is open in it would be lost.
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DeleteDomain.html (by default everything is retained)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
from botocore.exceptions import ClientError

from .custom_resource import LOG, answering

PATIENCE_SECONDS = 13 * 60
POLL_SECONDS = 5
ENDED = ("Deleted", "Failed")
# What SageMaker calls the groups of the mount targets and of their clients (seen in accounts; no page says so).
GROUPS = ("security-group-for-inbound-nfs-{}", "security-group-for-outbound-nfs-{}")


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Nothing on create and update. Raises RuntimeError naming the apps that run, or what did not go in time."""
    domain = event["ResourceProperties"]["DomainId"]
    if event["RequestType"] == "Delete":
        client = boto3.client("sagemaker")
        refuse(running_apps(client, domain))
        deadline = time.monotonic() + PATIENCE_SECONDS
        for kind, key in (("space", "SpaceName"), ("user_profile", "UserProfileName")):
            _delete_all(client, domain, kind=kind, key=key, deadline=deadline)
        _delete_domain(client, domain, deadline=deadline)
        _delete_groups(boto3.client("ec2"), domain)
    return f"studio-home/{domain}", {}


def refuse(running: list[str]) -> None:
    """Raises RuntimeError that names the apps."""
    if running:
        raise RuntimeError(f"nothing was deleted: Studio runs {', '.join(running)}. Stop it in Studio, then destroy again")


def running_apps(client: Any, domain: str) -> list[str]:
    """Apps that have not ended, as `type name of user or space`."""
    found = _pages(client, "list_apps", "Apps", domain)
    return sorted(
        f"{app['AppType']} {app['AppName']} of {app.get('UserProfileName') or app.get('SpaceName')}"
        for app in found
        if app["Status"] not in ENDED
    )


def _delete_all(client: Any, domain: str, *, kind: str, key: str, deadline: float) -> None:
    """Every space, or every user profile: a domain that has one cannot be deleted."""

    def left() -> list[str]:
        listing = {"space": ("list_spaces", "Spaces"), "user_profile": ("list_user_profiles", "UserProfiles")}[kind]
        return [item[key] for item in _pages(client, *listing, domain)]

    for name in left():
        with_gone(getattr(client, f"delete_{kind}"), DomainId=domain, **{key: name})
    _wait(left, deadline=deadline)


def _delete_domain(client: Any, domain: str, *, deadline: float) -> None:
    with_gone(client.delete_domain, DomainId=domain, RetentionPolicy={"HomeEfsFileSystem": "Delete"})
    _wait(lambda: [domain] if with_gone(client.describe_domain, DomainId=domain) else [], deadline=deadline)


def _delete_groups(client: Any, domain: str) -> None:
    """The two groups name each other, so their rules go first."""
    names = [name.format(domain) for name in GROUPS]
    groups = client.describe_security_groups(Filters=[{"Name": "group-name", "Values": names}])["SecurityGroups"]
    for group in groups:
        for rules, revoke in (("IpPermissions", "revoke_security_group_ingress"), ("IpPermissionsEgress", "revoke_security_group_egress")):
            if group.get(rules):
                getattr(client, revoke)(GroupId=group["GroupId"], IpPermissions=group[rules])
    for group in groups:
        client.delete_security_group(GroupId=group["GroupId"])


def with_gone(call: Callable[..., Any], **given: Any) -> Any:
    """The call's answer, or None where there is no such thing (any more)."""
    try:
        return call(**given)
    except ClientError as error:
        if str(error.response["Error"]["Code"]).startswith("ResourceNotFound"):
            return None
        raise


def _pages(client: Any, operation: str, items: str, domain: str) -> Iterator[Any]:
    for page in client.get_paginator(operation).paginate(DomainIdEquals=domain):
        yield from page.get(items, ())


def _wait(left: Callable[[], list[str]], *, deadline: float) -> None:
    while names := left():
        if time.monotonic() > deadline:
            raise RuntimeError(f"still there after {PATIENCE_SECONDS // 60} minutes: {', '.join(names)}; destroy again")
        LOG.info("waiting for %s", ", ".join(names))
        time.sleep(POLL_SECONDS)


handler = answering(work)
