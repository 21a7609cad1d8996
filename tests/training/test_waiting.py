"""What a pod that is not ready says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from training.waiting import pod_reason

KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
FAILED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "ModuleNotFoundError:\n no module ray\n"}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


@pytest.mark.parametrize(
    ("init", "own", "said"),
    [
        ({}, BACK_OFF | {"last": KILLED}, "CrashLoopBackOff, back-off 5m0s, it ended with exit code 137 (OOMKilled)"),
        ({}, {"running": {}, "last": {}}, "pending, not ready yet"),
        ({}, FAILED, "ended with exit code 1: ModuleNotFoundError: no module ray"),
        ({}, NO_IMAGE, "ImagePullBackOff, no such image"),
        (NO_IMAGE, INITIALIZING, "ImagePullBackOff, no such image"),
        (BACK_OFF | {"last": FAILED}, INITIALIZING, "it ended with exit code 1: ModuleNotFoundError"),
        ({"terminated": {"exitCode": 0, "reason": "Completed"}}, BACK_OFF, "CrashLoopBackOff"),
        ({"running": {}}, INITIALIZING, "pending, not ready yet"),
    ],
)  # fmt: skip
def test_a_pod_tells_why_it_is_not_ready_and_how_it_ended_before(init: dict[str, Any], own: dict[str, Any], said: str) -> None:
    def container(state: dict[str, Any]) -> dict[str, Any]:
        return {"state": {key: value for key, value in state.items() if key != "last"}, "lastState": state.get("last", {})}

    status = {"phase": "Pending", "initContainerStatuses": [container(init)] if init else [], "containerStatuses": [container(own)]}
    assert said in pod_reason({"metadata": {"name": "w"}, "status": status})


def test_a_ready_pod_gives_no_reason() -> None:
    assert pod_reason({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}) == ""
