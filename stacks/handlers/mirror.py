"""Runs the CodeBuild projects that mirror charts and images, and waits for their end.

Charts within Lambda's 15 minutes (`handler`); images, which take longer, in CDK's provider framework (`begin` and `ended`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import boto3

from .custom_resource import answering

PATIENCE_SECONDS = 13 * 60
POLL_SECONDS = 5


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Nothing on delete: the repositories go with their stack. Raises RuntimeError with where to read on when the build fails."""
    project = event["ResourceProperties"]["Project"]
    if event["RequestType"] == "Delete":
        return f"mirror/{project}", {}
    client = boto3.client("codebuild")
    build_id = client.start_build(projectName=project)["build"]["id"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        build = client.batch_get_builds(ids=[build_id])["builds"][0]
        if _succeeded(build):
            return f"mirror/{project}", {"Build": build_id}
        time.sleep(POLL_SECONDS)
    raise RuntimeError(
        f"build {build_id} did not end within {PATIENCE_SECONDS // 60} minutes; see the project {project}, then deploy again"
    )


def _succeeded(build: Mapping[str, Any]) -> bool:
    """Whether a build ended well; False while it runs. Raises RuntimeError with where to read on when it failed."""
    if build["buildStatus"] == "SUCCEEDED":
        return True
    if build["buildStatus"] == "IN_PROGRESS":
        return False
    failed = [phase["phaseType"] for phase in build.get("phases", ()) if phase.get("phaseStatus") == "FAILED"]
    link = build.get("logs", {}).get("deepLink", "its log group")
    raise RuntimeError(
        f"build {build['id']} ended as {build['buildStatus']} in {', '.join(failed) or 'an unknown phase'}; read {link}, then deploy again"
    )


def begin(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Start the build; nothing on delete."""
    project = event["ResourceProperties"]["Project"]
    answer = {"PhysicalResourceId": f"mirror/{project}"}
    if event["RequestType"] == "Delete":
        return answer
    return {**answer, "Build": boto3.client("codebuild").start_build(projectName=project)["build"]["id"]}


def ended(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Whether the build that `begin` started has ended well. Raises RuntimeError when it failed."""
    if event["RequestType"] == "Delete":
        return {"IsComplete": True}
    return {"IsComplete": _succeeded(boto3.client("codebuild").batch_get_builds(ids=[event["Build"]])["builds"][0])}


handler = answering(work)
