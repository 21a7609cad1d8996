"""Refuses a change that would replace what has no physical name to keep it: an FSx file system with everything on it.

CloudFormation refuses to replace a resource that has a name of its own, such as the EKS and the HyperPod cluster; FSx takes no name. This
custom resource carries the properties that cannot change in place, comes before the file system, and fails when one of them does. Its
physical id is a digest of them, so that the rollback, which brings them back, passes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .custom_resource import answering


def digest(kept: Mapping[str, Any]) -> str:
    """Physical id for these properties."""
    return f"guard/{hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]}"


def work(event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Raises RuntimeError naming what may not change."""
    properties = event["ResourceProperties"]
    kept = properties["Kept"]
    if event["RequestType"] != "Update" or digest(kept) == event["PhysicalResourceId"]:
        # Of a delete too, since there the physical id is that of what is deleted.
        return event.get("PhysicalResourceId") or digest(kept), {}
    before = event.get("OldResourceProperties", {}).get("Kept", {})
    changed = sorted(name for name in {*kept, *before} if kept.get(name) != before.get(name))
    raise RuntimeError(
        f"changing {', '.join(changed) or 'this'} would replace the {properties['What']} and lose what is on it; nothing was changed. "
        f"{properties['Fix']}"
    )


handler = answering(work)
