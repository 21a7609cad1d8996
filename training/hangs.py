"""HyperPod's own word on a hung job: its HANG_DETECTED events, which the monitoring agent writes to the cluster's log group.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency.html: log group
`/aws/sagemaker/Clusters/<name>/<id>`, streams `SageMakerHangJobDetectionEvents/...`. Its rules are the user's (the training
toolkit's log monitoring); where there are none, nothing is ever written, and the supervisor goes by the median step time alone.
"""

from __future__ import annotations

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
# A log line reaches CloudWatch some time after what it tells of.
LATE_SECONDS: Final = 120.0


@dataclass
class Hangs:
    """Asks CloudWatch now and then. `told` says once that it cannot be asked; supervising goes on without it."""

    environment: Environment
    told: Callable[[str], None] = lambda _: None
    now: Callable[[], float] = time.time
    aws: Any = None
    _client: Any = None
    _group: str = ""
    _asked: float = float("-inf")
    _off: bool = False

    def __call__(self, since: float) -> str | None:
        """The newest event after `since` (seconds since the epoch), on one line; None if there is none, or if it is too early to ask."""
        if self._off or self.now() - self._asked < EVERY_SECONDS:
            return None
        self._asked = self.now()
        try:
            with deployed.reaching("CloudWatch Logs"):
                return self._newest(since)
        except (Unreachable, Refused) as error:
            self._off = True
            self.told(f"HyperPod's hang detection is not asked: {error}")
            return None

    def _newest(self, since: float) -> str | None:
        if self._client is None:
            found = deployed.lookup(self.environment, self.aws)
            cluster = found[Parameter.HYPERPOD_ARN].rpartition("/")[2]
            self._group = f"/aws/sagemaker/Clusters/{names.hyperpod_cluster(self.environment)}/{cluster}"
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


def watcher(env: Environment, told: Callable[[str], None]) -> Callable[[float], str | None] | None:
    """What the supervisor asks; None where there is no HyperPod to ask: the local cloud, an environment without an account."""
    return None if env.local or env.account == DOCUMENTATION_ACCOUNT else Hangs(env, told)
