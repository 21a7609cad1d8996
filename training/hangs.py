"""HyperPod's own word on a hung job: its HANG_DETECTED events, which the monitoring agent writes to the cluster's log group.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency.html: log group
`/aws/sagemaker/Clusters/<name>/<id>`, streams `SageMakerHangJobDetectionEvents/...`. Its rules are the user's (the training
toolkit's log monitoring); where there are none, nothing is ever written, and the supervisor goes by the median step time alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from config import names
from config.environment import DOCUMENTATION_ACCOUNT, Environment
from config.names import Parameter
from config.problems import Refused, Unreachable
from training import deployed

STREAMS: Final = "SageMakerHangJobDetectionEvents/"
WORD: Final = "HANG_DETECTED"
EVERY_SECONDS: Final = 60.0
# A week of training outlives a network that is away for a minute.
AFTER_FAILURE_SECONDS: Final = 600.0
# A log line reaches CloudWatch some time after what it tells of.
LATE_SECONDS: Final = 120.0


@dataclass
class Hangs:
    """Asks CloudWatch now and then. `told` says once that it cannot be asked; supervising goes on, and it is asked again later."""

    environment: Environment
    told: Callable[[str], None] = lambda _: None
    now: Callable[[], float] = time.time
    aws: Any = None
    _client: Any = None
    _group: str = ""
    _asked: float = float("-inf")
    _failed: bool = False

    def __call__(self, since: float) -> str | None:
        """The newest event after `since` (seconds since the epoch), on one line; None if there is none, or if it is too early to ask."""
        passed = self.now() - self._asked
        if 0 <= passed < (AFTER_FAILURE_SECONDS if self._failed else EVERY_SECONDS):  # below 0: a clock was set back
            return None
        self._asked = self.now()
        try:
            with deployed.reaching("CloudWatch Logs"):
                found = self._newest(since)
        except (Unreachable, Refused) as error:
            if not self._failed:
                self.told(f"HyperPod's hang detection cannot be asked: {error}")
            self._failed = True
            return None
        self._failed = False
        return found

    def _newest(self, since: float) -> str | None:
        if self._client is None:
            self._group = os.environ.get(names.HANG_LOG_GROUP_VARIABLE) or log_group(self.environment, self.aws)
            self._client = deployed.client(self.environment, "logs", self.aws)
        try:
            pages = self._client.get_paginator("filter_log_events").paginate(
                logGroupName=self._group, logStreamNamePrefix=STREAMS, filterPattern=WORD, startTime=int((since - LATE_SECONDS) * 1000)
            )
            events = [event for page in pages for event in page["events"] if event["timestamp"] / 1000 >= since]
        except self._client.exceptions.ResourceNotFoundException:
            return None  # the group comes with the first line
        newest = max(events, key=lambda event: event["timestamp"], default=None)
        return " ".join(str(newest["message"]).split())[:300] if newest is not None else None


def log_group(env: Environment, aws: Any = None) -> str:
    """The HyperPod cluster's log group. Raises Refused or Unreachable where nobody can tell it."""
    return names.hang_log_groups(env) + deployed.lookup(env, aws)[Parameter.HYPERPOD_ARN].rpartition("/")[2]


def there(env: Environment) -> bool:
    """Whether there is a HyperPod to ask: not for the local cloud, nor for an environment without an account."""
    return not env.local and env.account != DOCUMENTATION_ACCOUNT


def watcher(env: Environment, told: Callable[[str], None]) -> Callable[[float], str | None] | None:
    """What the supervisor asks; None where there is no HyperPod to ask."""
    return Hangs(env, told) if there(env) else None
