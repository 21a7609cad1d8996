"""Kubernetes objects of two revisions, field by field, and what they let through that they did not before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from operations.review.sides import Json, Object, Side
from operations.review.values import Difference, differences

# Rising strictness of https://kubernetes.io/docs/concepts/security/pod-security-standards/
_STANDARDS = ("privileged", "baseline", "restricted")
_POWERS = ("privileged", "hostNetwork", "hostPID", "hostIPC", "allowPrivilegeEscalation")


@dataclass(frozen=True)
class ObjectChange:
    """One object. `applied_by`: the command that brings the change to the cluster."""

    key: str
    action: Literal["added", "changed", "removed"]
    applied_by: str
    differences: tuple[Difference, ...] = ()
    before: Json = None  # type: ignore[assignment]
    after: Json = None  # type: ignore[assignment]

    @property
    def kind(self) -> str:
        """Kind of the object."""
        return self.key.partition(" ")[0]


def changes(base: Side, head: Side) -> tuple[ObjectChange, ...]:
    """All objects that are not as they were. A name that ends in a hash of the content counts as the same object."""
    before, after = _by_stem(base.objects), _by_stem(head.objects)
    found = []
    for stem, (key, new) in after.items():
        if stem not in before:
            found.append(ObjectChange(key, "added", new.applied_by, after=new.body))
            continue
        _, old = before[stem]
        if differs := tuple(differences(old.body, new.body)):
            found.append(ObjectChange(key, "changed", new.applied_by, differs, old.body, new.body))
    found += [ObjectChange(key, "removed", old.applied_by, before=old.body) for stem, (key, old) in before.items() if stem not in after]
    return tuple(found)


def _by_stem(objects: Mapping[str, Object]) -> dict[str, tuple[str, Object]]:
    return {_stem(key): (key, member) for key, member in objects.items()}


def _stem(key: str) -> str:
    """One-shot Jobs and what they mount carry a hash of their content in the name."""
    head, _, tail = key.rpartition("-")
    hashed = len(tail) == 10 and all(character in "0123456789abcdef" for character in tail)
    return head if hashed and key.startswith(("Job ", "ConfigMap ")) else key


def widened(base: Side, head: Side) -> Iterator[tuple[str, str]]:
    """(object, what it lets through more). Rights, network policies, pod security; an object of a new namespace opens what is new."""
    namespaces = {key for key in base.objects if key.startswith("Namespace ")}
    for key, new in head.objects.items():
        old = base.objects.get(key)
        before = old.body if old else {}
        metadata = new.body.get("metadata", {})
        if old is None and metadata.get("namespace") and f"Namespace {metadata['namespace']}" not in namespaces:
            continue
        for sentence in _opened(new.body, before):
            yield key, sentence
    for key, old in base.objects.items():
        metadata = old.body.get("metadata", {})
        gone = metadata.get("namespace") and f"Namespace {metadata['namespace']}" not in head.objects
        if key.startswith("NetworkPolicy ") and key not in head.objects and not gone:
            yield key, "the policy is gone: its pods can be reached from everywhere"


def _opened(new: Json, old: Json) -> Iterator[str]:
    kind = str(new.get("kind"))
    if kind in ("Role", "ClusterRole"):
        before = set(_rights(old))
        for right in _rights(new):
            if not any(_right_covers(one, right) for one in before):
                group, resource, verb, name = right
                yield f"{verb} {resource}{'.' + group if group else ''}{' ' + name if name else ''}"
    elif kind in ("RoleBinding", "ClusterRoleBinding"):
        for subject in new.get("subjects", ()):
            if subject not in old.get("subjects", ()) or new.get("roleRef") != old.get("roleRef"):
                yield f"{subject.get('kind')} {subject.get('name')} has {new.get('roleRef', {}).get('kind')} {new['roleRef'].get('name')}"
    elif kind == "NetworkPolicy" and old:
        yield from _reachable(new, old)
    elif kind == "Namespace":
        label = "pod-security.kubernetes.io/enforce"
        was, now = (each.get("metadata", {}).get("labels", {}).get(label, "privileged") for each in (old, new))
        if old and now in _STANDARDS and was in _STANDARDS and _STANDARDS.index(now) < _STANDARDS.index(was):
            yield f"pods may be {now}, not only {was}"
    powers = set(_powers(old))
    yield from (f"{path} is true" for path in _powers(new) if path not in powers)


def _rights(role: Json) -> Iterator[tuple[str, str, str, str]]:
    for rule in role.get("rules", ()):
        for group in rule.get("apiGroups", ("",)):
            for resource in rule.get("resources", ()):
                for verb in rule.get("verbs", ()):
                    for name in rule.get("resourceNames") or ("",):
                        yield group, resource, verb, name


def _right_covers(old: tuple[str, str, str, str], new: tuple[str, str, str, str]) -> bool:
    return all(one in (two, "*") for one, two in zip(old[:3], new[:3], strict=True)) and old[3] in ("", new[3])


def _reachable(new: Json, old: Json) -> Iterator[str]:
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        types = new.get("spec", {}).get("policyTypes", ()), old.get("spec", {}).get("policyTypes", ())
        word = direction.capitalize()
        if word in types[1] and word not in types[0]:
            yield f"{direction} is no longer restricted"
            continue
        before = set(_pairs(old, direction, peers))
        for peer, port in _pairs(new, direction, peers):
            if word in types[0] and not {(peer, port), (peer, ""), ("", port), ("", "")} & before:
                yield f"{direction} {'from' if peers == 'from' else 'to'} {peer or 'everywhere'} on {port or 'every port'}"
    if new.get("spec", {}).get("podSelector") != old.get("spec", {}).get("podSelector"):
        yield f"it holds for other pods: {json.dumps(new.get('spec', {}).get('podSelector'), sort_keys=True)}"


def _pairs(policy: Json, direction: str, peers: str) -> Iterator[tuple[str, str]]:
    for rule in policy.get("spec", {}).get(direction) or ():
        for peer in rule.get(peers) or (None,):
            for port in rule.get("ports") or (None,):
                yield ("" if peer is None else json.dumps(peer, sort_keys=True)), ("" if port is None else json.dumps(port, sort_keys=True))


def _powers(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = f"{path}/{key}" if path else str(key)
            if key in _POWERS and item is True:
                yield here
            yield from _powers(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _powers(item, f"{path}[{index}]")
