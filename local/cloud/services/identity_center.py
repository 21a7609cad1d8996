"""IAM Identity Center: this cloud has none, so that an environment which wants one hears of it here, not in its first deploy.

https://docs.aws.amazon.com/singlesignon/latest/APIReference/API_ListInstances.html
"""

from __future__ import annotations

from typing import Any

from local.cloud.store import Cloud
from local.cloud.wire import Answer, Operation


def list_instances(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """None."""
    return {"Instances": []}


OPERATIONS: dict[str, Operation] = {"ListInstances": list_instances}
