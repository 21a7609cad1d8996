"""The clock of waiters: CDK's provider framework waits in a Step Functions state machine, which here waits a hundredth of the time.

A handler that ends its own waiting after so many minutes has to see that shortened time too, or the state machine gives up
first, with `Operation timed out` in place of the handler's reason.
"""

from __future__ import annotations

import time
from typing import Any

# Poll intervals of state machines times this: a waiter that asks every 30 s asks every 0.3 s.
SCALE = 0.01
# Where the handlers of `stacks` keep the time at which they began, in seconds since 1970.
BEGAN = "Began"


def shortened(event: Any, *, now: float | None = None) -> Any:
    """The event of a waiter's call, its beginning moved back by the time that the state machine did not wait."""
    if not isinstance(event, dict) or BEGAN not in event:
        return event
    at = time.time() if now is None else now
    try:
        waited = at - float(event[BEGAN])
    except (TypeError, ValueError):
        return event
    return {**event, BEGAN: str(at - waited / SCALE)}


def install() -> None:
    """Give state machines' calls of functions the shortened time. Call it once, after `ministack.prepare`."""
    from ministack.services import stepfunctions

    call = stepfunctions._call_lambda

    def call_lambda(function: str, event: Any) -> Any:
        return call(function, shortened(event))

    stepfunctions._call_lambda = call_lambda
