"""Waiting for something in the cluster, with what it waits for in words; and how a pod that is not ready tells why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from config.problems import Failed, Unreachable

# KubeRay writes `observedGeneration` only when something else in the status changes (ray-operator, utils/consistency.go), so after an
# edit that moves no pod (a toleration) it stays old for ever. An edit that does move pods shows within a second or two.
UNSEEN_SECONDS: Final = 30.0
POLL_SECONDS: Final = 2.0
# So many more ends of one container while somebody waits, and it will not come up by waiting: the kubelet's back-off makes that 10
# minutes and more, and the nodes cost money meanwhile.
HOPELESS_RESTARTS: Final = 6
# A wait of an hour outlives a lost connection or an API server that is replaced.
UNREACHED_SECONDS: Final = 120.0
GROUP_LABEL: Final = "ray.io/group"
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

    @property
    def members(self) -> Mapping[str, Sequence[str]]:
        """Names of the pods of each group, while it is not ready."""

    @property
    def given_up(self) -> str:
        """Why no waiting helps: somebody else has given it up, and says so; '' else."""

    def sentence(self) -> str:
        """For people, on one line."""


Stands = TypeVar("Stands", bound=Standing)


def until(
    look: Callable[[], Stands], done: Callable[[Stands], bool], word: str, *, timeout_seconds: float, note: Note, clock: Clock
) -> Stands:
    """Look again and again until it is done, noting each change. A server that is not reached for a while is asked again.

    Raises Unreachable naming what is missing if the time is over, and Failed where no waiting helps: a container ends again and again, or
    pods do under ever new names, or who runs it has given it up.
    """
    start, said = clock.now(), ""
    answered: float | None = None
    watch = _Watch()
    while True:
        try:
            current = look()
        except Unreachable as error:
            if answered is None or clock.now() - answered >= UNREACHED_SECONDS or clock.now() - start >= timeout_seconds:
                raise
            note(f"{error}; trying again")
            clock.sleep(POLL_SECONDS)
            continue
        answered = clock.now()
        if done(current):
            return current
        line = "; ".join((current.sentence(), *current.waiting_for[:3]))
        if line != said:
            note(line)
            said = line
        if why := watch.hopeless(current, answered):
            raise Failed(
                f"{current.sentence()}; {why}. What was applied is still there: mend the cause and run this again, or take it down"
            )
        if clock.now() - start >= timeout_seconds:
            missing = "; ".join(current.waiting_for) or "nothing more is known"
            raise Unreachable(f"{current.sentence()}; it was not {word} within {timeout_seconds / 60:.0f} min. It waits for: {missing}")
        clock.sleep(POLL_SECONDS)


@dataclass
class _Watch:
    """What one wait has seen: only what happens in it counts."""

    restarts: dict[str, int] = field(default_factory=dict)
    old: frozenset[str] | None = None
    fresh: dict[str, set[str]] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    given_up_since: float | None = None

    def hopeless(self, current: Standing, now: float) -> str:
        """Why no waiting helps; '' while it may."""
        for pod, count in current.restarts.items():
            before = self.restarts.setdefault(pod, count)
            if count - before >= HOPELESS_RESTARTS:
                why = next((each for each in current.waiting_for if each.startswith(f"pod {pod}:")), f"pod {pod} does not stay up")
                return f"in this wait it was started {count - before} times and ended each time. {why}"
        if self.old is None:
            self.old = frozenset(name for its in current.members.values() for name in its)
        for group, its in current.members.items():
            fresh = self.fresh.setdefault(group, set())
            fresh.update(name for name in its if name not in self.old)
            self.most[group] = max(len(its), self.most.get(group, 1))
            if len(fresh) > HOPELESS_RESTARTS * self.most[group]:
                why = "; ".join(each for each in current.waiting_for if any(each.startswith(f"pod {name}:") for name in its))
                return f"in this wait {len(fresh)} pods of group {group} were made, and none stayed up. {why or 'nothing more is known'}"
        # Right after a change the state is that of before it.
        if not current.given_up:
            self.given_up_since = None
        elif self.given_up_since is None:
            self.given_up_since = now
        elif now - self.given_up_since >= UNSEEN_SECONDS:
            return current.given_up
        return ""


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


def members(pods: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of these pods by their group; those that are going away are none of it any more."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        if not metadata.get("deletionTimestamp"):
            found.setdefault(str((metadata.get("labels") or {}).get(GROUP_LABEL) or ""), []).append(str(metadata["name"]))
    return found


def left_pods(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a deletion still waits for."""
    return [f"pod {pod['metadata']['name']} is still there" for pod in pods]
