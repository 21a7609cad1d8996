"""Waiting for something in the cluster, with what it waits for in words; and how a pod that is not ready tells why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from config.problems import Failed, Unreachable

# KubeRay writes `observedGeneration` only when something else in the status changes (ray-operator, utils/consistency.go), so after an
# edit that moves no pod (a toleration) it stays old for ever. An edit that does move pods shows within a second or two.
UNSEEN_SECONDS: Final = 30.0
POLL_SECONDS: Final = 2.0
# So many more ends of one container while somebody waits, and it will not come up by waiting: the kubelet's back-off makes that 10
# minutes and more, and the nodes cost money meanwhile.
HOPELESS_RESTARTS: Final = 6
Note = Callable[[str], None]


@dataclass(frozen=True)
class Clock:
    """Time, so that tests need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


CLOCK: Final = Clock()


class Standing(Protocol):
    """How something in the cluster stands."""

    @property
    def waiting_for(self) -> Sequence[str]:
        """What is missing, a sentence each."""

    @property
    def restarts(self) -> Mapping[str, int]:
        """How often the containers of each pod that waits in a back-off have been started again."""

    def sentence(self) -> str:
        """For people, on one line."""


Stands = TypeVar("Stands", bound=Standing)


def until(
    look: Callable[[], Stands], done: Callable[[Stands], bool], word: str, *, timeout_seconds: float, note: Note, clock: Clock
) -> Stands:
    """Look again and again until it is done, noting each change.

    Raises Unreachable naming what is missing if the time is over, and Failed with its last words where a container ends again and again.
    """
    start, said = clock.now(), ""
    before: dict[str, int] = {}
    while True:
        current = look()
        if done(current):
            return current
        line = "; ".join((current.sentence(), *current.waiting_for[:3]))
        if line != said:
            note(line)
            said = line
        for pod, count in current.restarts.items():
            if count - before.setdefault(pod, count) >= HOPELESS_RESTARTS:
                why = next((each for each in current.waiting_for if each.startswith(f"pod {pod}:")), f"pod {pod} does not stay up")
                raise Failed(
                    f"{current.sentence()}; in this wait it was started {count - before[pod]} times and ended each time. {why}. "
                    "What was applied is still there: mend the cause and run this again, or take it down"
                )
        if clock.now() - start >= timeout_seconds:
            missing = "; ".join(current.waiting_for) or "nothing more is known"
            raise Unreachable(f"{current.sentence()}; it was not {word} within {timeout_seconds / 60:.0f} min. It waits for: {missing}")
        clock.sleep(POLL_SECONDS)


def pod_reason(pod: Mapping[str, Any]) -> str:
    """Why a pod is not ready; '' for one that is."""
    status = pod.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    if conditions.get("Ready", {}).get("status") == "True":
        return ""
    if (scheduled := conditions.get("PodScheduled", {})).get("status") == "False":
        return f"not scheduled, {scheduled.get('message') or scheduled.get('reason') or 'no reason given'}"
    # KubeRay puts a container before Ray's into each worker, from the same image: while that one waits, Ray's says PodInitializing only.
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if reason := _container_reason(container):
            return reason
    return f"{str(status.get('phase') or 'Pending').lower()}, not ready yet"


def _container_reason(container: Mapping[str, Any]) -> str:
    """Why a container does not run, and how it ended before; '' where that is not its own doing."""
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    before = _ending((container.get("lastState") or {}).get("terminated") or {})
    if ended.get("exitCode"):
        return _ending(ended)
    if waiting.get("reason") in (None, "PodInitializing"):
        return before
    said = [str(waiting["reason"]), str(waiting.get("message") or ""), f"it {before}" if before else ""]
    return ", ".join(part for part in said if part)


def _ending(terminated: Mapping[str, Any]) -> str:
    """`ended with exit code 137 (OOMKilled)`, and the last words of the container where it left some."""
    if "exitCode" not in terminated:
        return ""
    reason, words = str(terminated.get("reason") or ""), " ".join(str(terminated.get("message") or "").split())
    why = "" if reason in ("", "Error", "Completed") else f" ({reason})"
    return f"ended with exit code {terminated['exitCode']}{why}" + (f": {words[-300:]}" if words else "")


def waiting_pods(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of these pods each that is not ready, and why."""
    return [f"pod {pod['metadata']['name']}: {reason}" for pod in pods if (reason := pod_reason(pod))]


def backing_off(pods: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of these pods each that waits in CrashLoopBackOff, and how often its containers have been started again."""
    found = {}
    for pod in pods:
        status = pod.get("status") or {}
        states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        if any(((each.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff" for each in states):
            found[str(pod["metadata"]["name"])] = sum(int(each.get("restartCount") or 0) for each in states)
    return found


def left_pods(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a deletion still waits for."""
    return [f"pod {pod['metadata']['name']} is still there" for pod in pods]
