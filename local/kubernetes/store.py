"""The objects, with resource versions and a history for watches. Nothing is checked here."""

from __future__ import annotations

import copy
import datetime
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
HISTORY = 4000


@dataclass(frozen=True, order=True)
class Key:
    """Which object: `namespace` is empty for cluster-scoped kinds."""

    group: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Change:
    """One entry of the history: `verb` is ADDED, MODIFIED or DELETED; `value` is not to be changed."""

    version: int
    verb: str
    key: Key
    value: Object = field(compare=False)


Listener = Callable[[Change], None]


def now() -> str:
    """The time as Kubernetes writes it (UTC, whole seconds)."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Objects by key. Every method takes the lock; callers that do several things hold `lock` around them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._objects: dict[Key, Object] = {}
        self._version = 1
        self._history: deque[Change] = deque(maxlen=HISTORY)
        self._listeners: list[Listener] = []

    @property
    def version(self) -> int:
        """The newest resource version."""
        with self.lock:
            return self._version

    def get(self, key: Key) -> Object | None:
        """A copy of the object."""
        with self.lock:
            found = self._objects.get(key)
            return copy.deepcopy(found) if found is not None else None

    def select(self, *, group: str | None = None, kind: str | None = None, namespace: str | None = None) -> list[Object]:
        """Copies of all objects that match, in the order of their names."""
        with self.lock:
            keys = [
                key
                for key in self._objects
                if (group is None or key.group == group)
                and (kind is None or key.kind == kind)
                and (namespace is None or key.namespace == namespace)
            ]
            return [copy.deepcopy(self._objects[key]) for key in sorted(keys)]

    def all_keys(self) -> list[Key]:
        """Every key, sorted."""
        with self.lock:
            return sorted(self._objects)

    def put(self, key: Key, value: Object) -> Object:
        """Store an object, new or changed, under the next resource version; the same content again changes nothing."""
        with self.lock:
            before = self._objects.get(key)
            kept = copy.deepcopy(value)
            metadata = kept.setdefault("metadata", {})
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            if before is not None:
                metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
                if kept == before:
                    return copy.deepcopy(before)
            self._version += 1
            metadata["resourceVersion"] = str(self._version)
            self._objects[key] = kept
            self._tell(Change(self._version, "ADDED" if before is None else "MODIFIED", key, kept))
            return copy.deepcopy(kept)

    def remove(self, key: Key) -> Object | None:
        """Take an object out; its last state goes to the watchers."""
        with self.lock:
            gone = self._objects.pop(key, None)
            if gone is None:
                return None
            self._version += 1
            last = copy.deepcopy(gone)
            last["metadata"]["resourceVersion"] = str(self._version)
            self._tell(Change(self._version, "DELETED", key, last))
            return last

    def _tell(self, change: Change) -> None:
        self._history.append(change)
        for listener in tuple(self._listeners):
            listener(change)

    def since(self, version: int) -> Iterator[Change] | None:
        """The changes after a resource version, or None when the history no longer reaches back that far."""
        with self.lock:
            if self._history and len(self._history) == HISTORY and self._history[0].version > version + 1:
                return None
            return iter([change for change in self._history if change.version > version])

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` at every change, under the lock and so never blocking; returns what ends that."""
        with self.lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self.lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop
