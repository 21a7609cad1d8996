"""Runs the CodeBuild project that mirrors charts and waits for its end, within Lambda's 15 minutes."""

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
        if build["buildStatus"] == "SUCCEEDED":
            return f"mirror/{project}", {"Build": build_id}
        if build["buildStatus"] != "IN_PROGRESS":
            failed = [phase["phaseType"] for phase in build.get("phases", ()) if phase.get("phaseStatus") == "FAILED"]
            link = build.get("logs", {}).get("deepLink", "its log group")
            raise RuntimeError(
                f"build {build_id} ended as {build['buildStatus']} in {', '.join(failed) or 'an unknown phase'}; "
                f"read {link}, then deploy again"
            )
        time.sleep(POLL_SECONDS)
    raise RuntimeError(
        f"build {build_id} did not end within {PATIENCE_SECONDS // 60} minutes; see the project {project}, then deploy again"
    )


handler = answering(work)
