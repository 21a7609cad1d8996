"""What a pod that is not ready says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from config.problems import Failed, Unreachable
from tests.training.scripted import Time
from training.waiting import UNREACHED_SECONDS, UNSEEN_SECONDS, members, pod_reason, until

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


@dataclass(frozen=True)
class Stand:
    ready: bool = False
    waiting_for: Sequence[str] = ()
    restarts: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    given_up: str = ""

    def sentence(self) -> str:
        return "ready" if self.ready else "not ready"


def waited(look: Callable[[float], Stand], *, minutes: float = 45.0) -> tuple[float, list[str]]:
    """Seconds until it was ready, and what was noted. `look` is told how many seconds have passed."""
    time, notes = Time(), list[str]()
    until(
        lambda: look(time.seconds), lambda stand: stand.ready, "ready", timeout_seconds=minutes * 60, note=notes.append, clock=time  # type: ignore[attr-defined]
    )  # fmt: skip
    return time.seconds, notes  # type: ignore[attr-defined]


def unreached() -> Stand:
    raise Unreachable("the API server did not answer")


def test_an_api_server_that_goes_for_a_minute_does_not_end_the_wait() -> None:
    seconds, notes = waited(lambda now: unreached() if 10 < now < 70 else Stand(ready=now > 100))
    assert 100 < seconds < 105
    assert "the API server did not answer; trying again" in notes
    with pytest.raises(Unreachable) as gone:
        waited(lambda now: unreached() if now > 10 else Stand())
    assert str(gone.value) == "the API server did not answer"
    with pytest.raises(Unreachable):  # nobody waits for one that has never answered
        waited(lambda now: unreached() if now < 5 else Stand(ready=True))
    assert UNREACHED_SECONDS < 45 * 60


def test_pods_that_fail_under_ever_new_names_are_not_waited_for() -> None:
    """With restartPolicy Never, and after an eviction, KubeRay makes a pod of another name: no container's count ever grows."""

    def look(now: float) -> Stand:
        name = f"head-{int(now // 20)}"
        return Stand(members={"headgroup": [name]}, waiting_for=[f"pod {name}: failed, ended with exit code 1: no module ray"])

    with pytest.raises(Failed) as gave_up:
        waited(look)
    assert "7 pods of group headgroup were made, and none stayed up. pod head-7: failed, ended with exit code 1" in str(gave_up.value)


def test_pods_that_are_replaced_by_upgrades_and_lost_nodes_are_waited_for() -> None:
    def look(now: float) -> Stand:
        generation = min(int(now // 100), 4)  # four edits, each of which makes all workers anew
        return Stand(ready=now > 600, members={"workers": [f"w-{generation}-{number}" for number in range(3)]})

    assert 600 < waited(look)[0] < 605


def test_what_somebody_else_has_given_up_is_not_waited_for() -> None:
    with pytest.raises(Failed) as gave_up:
        waited(lambda now: Stand(given_up="Serve has given it up: no such bucket"))
    assert "Serve has given it up: no such bucket" in str(gave_up.value)
    # Right after a change the old state still stands there.
    assert waited(lambda now: Stand(ready=now > 60, given_up="from before" if now < UNSEEN_SECONDS - 5 else ""))[0] > 60


def test_members_by_group_without_those_that_go() -> None:
    def one(name: str, **more: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {"ray.io/group": "workers"}, **more}}

    assert members([one("a"), one("b", deletionTimestamp="2026-01-01T00:00:00Z"), {"metadata": {"name": "c"}}]) == {
        "workers": ["a"], "": ["c"],
    }  # fmt: skip
