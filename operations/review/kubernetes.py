"""Kubernetes objects of two revisions, field by field, and what they let through that they did not before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from operations.review.sides import Json, Object, Side
from operations.review.values import Difference, differences

# Rising strictness of https://kubernetes.io/docs/concepts/security/pod-security-standards/
_STANDARDS = ("privileged", "baseline", "restricted")
_POWERS = ("privileged", "hostNetwork", "hostPID", "hostIPC", "allowPrivilegeEscalation")
# What a pod reaches of its node, whatever the value.
_REACHES = ("hostPath", "hostPort")
# What the API server lets nobody change in an object that exists; `spec` for all of it.
# https://kubernetes.io/docs/reference/kubernetes-api/ ("immutable", "cannot be updated", "may not be changed")
_FIXED: Mapping[str, tuple[str, ...]] = {
    "PersistentVolume": ("spec/csi", "spec/nfs", "spec/hostPath", "spec/volumeMode", "spec/nodeAffinity"),
    # One that is bound to a volume without a storage class does not grow either.
    "PersistentVolumeClaim": ("spec",),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
    "Deployment": ("spec/selector",),
    "DaemonSet": ("spec/selector",),
    "StatefulSet": ("spec/selector", "spec/serviceName", "spec/volumeClaimTemplates"),
    "Job": ("spec/template", "spec/selector"),
    "StorageClass": ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
    "PriorityClass": ("value", "preemptionPolicy"),
}


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


def changes(base: Side, head: Side, moved: Mapping[str, tuple[Json, Json]] = MappingProxyType({})) -> tuple[ObjectChange, ...]:
    """All objects that are not as they were. A name that ends in a hash of the content counts as the same object.

    `moved`: those in which a reference to something replaced stands (a volume's file system), before and after; their text is the same.
    """
    before, after = _by_stem(base.objects), _by_stem(head.objects)
    found = []
    for stem, (key, new) in after.items():
        if stem not in before:
            found.append(ObjectChange(key, "added", new.applied_by, after=new.body))
            continue
        _, old = before[stem]
        if differs := tuple(dict.fromkeys((*differences(old.body, new.body), *differences(*moved.get(key, ({}, {})))))):
            found.append(ObjectChange(key, "changed", new.applied_by, differs, old.body, new.body))
    found += [ObjectChange(key, "removed", old.applied_by, before=old.body) for stem, (key, old) in before.items() if stem not in after]
    return tuple(found)


def refusal(change: ObjectChange) -> str:
    """Why the API server refuses the change of an object that exists, or nothing where it takes it."""
    before, after = (str((side or {}).get("metadata", {}).get("name")) for side in (change.before, change.after))
    if change.action != "changed" or before != after:
        return ""
    # A list's member stands behind its list: `mountOptions[]`.
    paths = [each.path.replace("[", "/[") for each in change.differences]
    fixed = [place for place in _FIXED.get(change.kind, ()) if any(f"{path}/".startswith(f"{place}/") for path in paths)]
    if not fixed:
        return ""
    first = ": `cdk destroy Platform` goes before it (docs/12-disaster.md, Restore)" if change.kind == "PersistentVolume" else ""
    return f"the API server refuses to change {', '.join(fixed)} of one that exists, so `{change.applied_by}` fails there{first}"


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
    olds = {stem: member for stem, (_, member) in _by_stem(base.objects).items()}
    for key, new in head.objects.items():
        old = olds.get(_stem(key))
        before = old.body if old else {}
        metadata = new.body.get("metadata", {})
        if old is None and metadata.get("namespace") and f"Namespace {metadata['namespace']}" not in namespaces:
            continue
        for sentence in _opened(new.body, before):
            yield key, sentence
        if old is None and key.startswith("NetworkPolicy "):
            # Policies add up: one more lets through to pods that others had closed.
            others = [each.body for name, each in base.objects.items() if name.startswith(f"NetworkPolicy {metadata.get('namespace')}/")]
            for sentence in _let_through(new.body, others):
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
    elif kind == "Service":
        yield from (each for each in _exposed(new) if each not in set(_exposed(old)))
    elif kind == "Ingress" and new.get("spec") != old.get("spec"):
        yield "whoever reaches the ingress controller reaches what stands behind it"
    elif kind == "Namespace":
        label = "pod-security.kubernetes.io/enforce"
        was, now = (each.get("metadata", {}).get("labels", {}).get(label, "privileged") for each in (old, new))
        if old and now in _STANDARDS and was in _STANDARDS and _STANDARDS.index(now) < _STANDARDS.index(was):
            yield f"pods may be {now}, not only {was}"
    powers = set(_powers(old))
    yield from (said for said in _powers(new) if said not in powers)


def _exposed(service: Json) -> Iterator[str]:
    spec = service.get("spec", {})
    if spec.get("type") in ("LoadBalancer", "NodePort"):
        scheme = next((str(value) for key, value in service["metadata"].get("annotations", {}).items() if key.endswith("-scheme")), "")
        yield f"it is a {spec['type']}: others than pods reach it" + (f" ({scheme})" if scheme else "")
        for source in spec.get("loadBalancerSourceRanges") or ("everybody who reaches it",):
            yield f"it answers {source}"
    for address in spec.get("externalIPs", ()):
        yield f"it answers on {address}"


def _let_through(new: Json, others: Sequence[Json]) -> Iterator[str]:
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        word = direction.capitalize()
        closed = [each for each in others if word in each.get("spec", {}).get("policyTypes", ())]
        known = {pair for each in closed for pair in _pairs(each, direction, peers)}
        for pair in _pairs(new, direction, peers) if closed else ():
            if not _paired(pair, known):
                yield _way(direction, peers, pair)


def _paired(pair: tuple[str, str], known: set[tuple[str, str]]) -> bool:
    peer, port = pair
    return bool({(peer, port), (peer, ""), ("", port), ("", "")} & known)


def _way(direction: str, peers: str, pair: tuple[str, str]) -> str:
    return f"{direction} {peers} {pair[0] or 'everywhere'} on {pair[1] or 'every port'}"


def _rights(role: Json) -> Iterator[tuple[str, str, str, str]]:
    for rule in role.get("rules", ()):
        for place in rule.get("nonResourceURLs", ()):
            yield from (("", place, verb, "") for verb in rule.get("verbs", ()))
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
        for pair in _pairs(new, direction, peers):
            if word in types[0] and not _paired(pair, before):
                yield _way(direction, peers, pair)
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
                yield f"{here} is true"
            if key in _REACHES:
                yield f"{here} is {item.get('path') if isinstance(item, Mapping) else item}"
            if key == "capabilities" and isinstance(item, Mapping):
                yield from (f"{here} has {name}" for name in item.get("add", ()))
            yield from _powers(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _powers(item, f"{path}[{index}]")
