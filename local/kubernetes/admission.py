"""What the API server checks beyond the schema: names, labels, references inside an object, fields that must not change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from config import kubernetes_rules
from local.kubernetes.kinds import Kind
from local.kubernetes.scheduling import matches_selector, quantity
from local.kubernetes.schemas import POD_TEMPLATE, problems

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DNS_1123_LABEL = re.compile(_LABEL)
_DNS_1035_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_ANNOTATIONS_LIMIT = 256 * 1024  # bytes, over all annotations of one object
_RAY_PODS = {
    "RayCluster": ("spec",),
    "RayService": ("spec", "rayClusterConfig"),
    "RayJob": ("spec", "rayClusterSpec"),
}


def check(kind: Kind, value: Mapping[str, Any]) -> list[str]:
    """Every problem of one complete object, in the API server's words where it has them."""
    found: list[str] = []
    if kind.schema is not None:
        found += problems(dict(value), kind.schema)
    else:
        found += problems(value.get("metadata"), "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", at="metadata")
    if not any(problem.startswith("metadata") for problem in found):
        found += _names(kind, value["metadata"])
    if found:
        return found  # the checks below read the object as its schema promises
    if kind.group == "ray.io":
        found += _ray(kind, value)
    for at, spec in pod_specs(kind, value):
        found += _pod(at, spec)
    found += _workload(kind, value)
    return found


def _names(kind: Kind, metadata: Mapping[str, Any]) -> Iterator[str]:
    name = metadata.get("name", "")
    rule = _name_rule(kind, name)
    if rule:
        yield f"metadata.name: Invalid value: {json.dumps(name)}: {rule}"
    for key, label in (metadata.get("labels") or {}).items():
        yield from _qualified("metadata.labels", key)
        if len(label or "") > 63 or not _LABEL_VALUE.fullmatch(label or ""):
            rule = "a label's value holds at most 63 of A-Z, a-z, 0-9, '-', '_', '.', and starts and ends alphanumeric"
            yield f"metadata.labels: Invalid value: {json.dumps(label)}: {rule}"
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        yield from _qualified("metadata.annotations", key)
    if sum(len(k.encode()) + len((v or "").encode()) for k, v in annotations.items()) > _ANNOTATIONS_LIMIT:
        yield f"metadata.annotations: Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"


def _name_rule(kind: Kind, name: str) -> str:
    """The rule that a name of this kind breaks, or ''."""
    characters = "hold only a-z, 0-9 and '-', start and end alphanumeric, and be at most 63 characters long"
    if kind.kind == "Service":
        good = len(name) <= 63 and _DNS_1035_LABEL.fullmatch(name)
        return "" if good else f"a DNS-1035 label must start with a letter, {characters}"
    if kind.kind == "Namespace":
        good = len(name) <= 63 and _DNS_1123_LABEL.fullmatch(name)
        return "" if good else f"a lowercase RFC 1123 label must {characters}"
    if kind.group == "rbac.authorization.k8s.io":
        return "must be a path segment, without / and %" if name in ("", ".", "..") or "/" in name or "%" in name else ""
    good = len(name) <= 253 and _SUBDOMAIN.fullmatch(name)
    return "" if good else "a lowercase RFC 1123 subdomain must hold only a-z, 0-9, '-' and '.', and be at most 253 characters long"


def _qualified(at: str, key: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    good = len(name) <= 63 and _QUALIFIED.fullmatch(name) and (not slash or (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix)))
    if not good:
        yield f"{at}: Invalid value: {json.dumps(key)}: a qualified name is [dns-subdomain/]name with a name of at most 63 characters"


def _ray(kind: Kind, value: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    cluster: Any = value
    for part in _RAY_PODS.get(kind.kind, ()):
        cluster = cluster.get(part) if isinstance(cluster, Mapping) else None
    if isinstance(cluster, Mapping):
        at = ".".join(_RAY_PODS[kind.kind])
        groups = cluster.get("workerGroupSpecs") or []
        templates = [(f"{at}.headGroupSpec", cluster.get("headGroupSpec"))]
        templates += [(f"{at}.workerGroupSpecs[{i}]", group) for i, group in enumerate(groups)] if isinstance(groups, list) else []
        for where, group in templates:
            template = group.get("template") if isinstance(group, Mapping) else None
            if template is None:
                found.append(f"{where}.template: Required value")
            else:
                found += problems(template, POD_TEMPLATE, at=f"{where}.template")
    return found + [str(problem) for problem in kubernetes_rules.problems(dict(value))]


def pod_specs(kind: Kind, value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The pod specs that an object carries, each with its path."""
    spec = value.get("spec") or {}
    match kind.kind:
        case "Pod":
            yield "spec", spec
        case "Deployment" | "DaemonSet" | "StatefulSet" | "ReplicaSet" | "Job":
            yield "spec.template.spec", spec["template"].get("spec") or {}
        case "CronJob":
            yield "spec.jobTemplate.spec.template.spec", spec["jobTemplate"]["spec"]["template"].get("spec") or {}


def _pod(at: str, spec: Mapping[str, Any]) -> Iterator[str]:
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    seen: set[str] = set()
    if not spec.get("containers"):
        yield f"{at}.containers: Required value"
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            here = f"{at}.{field}[{index}]"
            name = container["name"]
            if len(name) > 63 or not _DNS_1123_LABEL.fullmatch(name):
                yield f"{here}.name: Invalid value: {json.dumps(name)}: must be a lowercase RFC 1123 label"
            if name in seen:
                yield f"{here}.name: Duplicate value: {json.dumps(name)}"
            seen.add(name)
            if not container.get("image"):
                yield f"{here}.image: Required value"
            for number, mount in enumerate(container.get("volumeMounts") or ()):
                if mount["name"] not in volumes:
                    yield f"{here}.volumeMounts[{number}].name: Not found: {json.dumps(mount['name'])}"
            yield from _resources(here, container.get("resources") or {})


def _resources(at: str, resources: Mapping[str, Any]) -> Iterator[str]:
    limits = resources.get("limits") or {}
    for name, asked in (resources.get("requests") or {}).items():
        if name in limits and quantity(asked) > quantity(limits[name]):
            rule = f"must be less than or equal to {name} limit of {limits[name]}"
            yield f"{at}.resources.requests: Invalid value: {json.dumps(str(asked))}: {rule}"
        if "/" in name and limits.get(name) is None:
            yield f"{at}.resources.limits: Required value: Limit must be set for non overcommitable resources ({name})"
    for name, amount in {**limits, **(resources.get("requests") or {})}.items():
        if quantity(amount) < 0:
            yield f"{at}.resources: Invalid value: {json.dumps(str(amount))}: {name} must be greater than or equal to 0"


def _workload(kind: Kind, value: Mapping[str, Any]) -> Iterator[str]:
    spec = value.get("spec") or {}
    if kind.kind in ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet") and kind.group == "apps":
        selector = spec.get("selector") or {}
        labels = (spec["template"].get("metadata") or {}).get("labels") or {}
        if not selector:
            yield "spec.selector: Required value"
        elif not matches_selector(labels, selector):
            yield f"spec.template.metadata.labels: Invalid value: {json.dumps(labels)}: `selector` does not match template `labels`"
    if kind.kind in ("Deployment", "StatefulSet", "ReplicaSet") and (spec.get("replicas") or 0) < 0:
        yield f"spec.replicas: Invalid value: {spec['replicas']}: must be greater than or equal to 0"
    if kind.kind == "Job" and spec["template"].get("spec", {}).get("restartPolicy") not in ("Never", "OnFailure"):
        yield 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
    if kind.kind == "PersistentVolumeClaim":
        if not spec.get("accessModes"):
            yield "spec.accessModes: Required value: at least 1 access mode is required"
        if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
            yield "spec.resources[storage]: Required value"
    if kind.kind == "PersistentVolume":
        if not spec.get("accessModes"):
            yield "spec.accessModes: Required value"
        if "storage" not in (spec.get("capacity") or {}):
            yield "spec.capacity: Required value"


def changes_refused(kind: Kind, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Fields that the API server does not let change once the object exists."""
    old, new = before.get("spec") or {}, after.get("spec") or {}

    def differs(*path: str) -> bool:
        left: Any = old
        right: Any = new
        for part in path:
            left, right = (left or {}).get(part), (right or {}).get(part)
        return bool(left != right)

    if kind.kind in ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet") and differs("selector"):
        yield "spec.selector: Invalid value: field is immutable"
    if kind.kind == "Job":
        for name in ("template", "selector", "completionMode"):
            if differs(name):
                yield f"spec.{name}: Invalid value: field is immutable"
    if kind.kind == "PersistentVolumeClaim":
        fixed = {k: v for k, v in old.items() if k not in ("resources", "volumeName", "volumeAttributesClassName")}
        wanted = {k: v for k, v in new.items() if k not in ("resources", "volumeName", "volumeAttributesClassName")}
        renamed = old.get("volumeName") and old["volumeName"] != new.get("volumeName")
        had, asks = old["resources"]["requests"]["storage"], new["resources"]["requests"]["storage"]
        if fixed != wanted or renamed:
            allowed = "resources.requests and volumeAttributesClassName for bound claims"
            yield f"spec: Forbidden: spec is immutable after creation except {allowed}"
        elif quantity(asks) < quantity(had):
            yield f"spec.resources.requests.storage: Forbidden: field can not be less than status.capacity ({had})"
        elif quantity(asks) > quantity(had):
            # Only dynamically provisioned claims whose class allows it can grow; ours are static.
            rule = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
            yield f"spec.resources.requests.storage: Forbidden: {rule}"
    if kind.kind == "PersistentVolume":
        sources = {"accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity", "persistentVolumeReclaimPolicy",
                   "storageClassName", "volumeAttributesClassName", "volumeMode"}  # fmt: skip
        if {k: v for k, v in old.items() if k not in sources} != {k: v for k, v in new.items() if k not in sources}:
            yield "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"
    if kind.kind in ("RoleBinding", "ClusterRoleBinding") and before.get("roleRef") != after.get("roleRef"):
        yield "roleRef: Invalid value: cannot change roleRef"
    if kind.kind == "StorageClass":
        for name in ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"):
            if before.get(name) != after.get(name):
                yield f"{name}: Forbidden: updates to {name} are forbidden."
    fixed_data = kind.kind in ("ConfigMap", "Secret") and before.get("immutable")
    if fixed_data and any(before.get(name) != after.get(name) for name in ("data", "binaryData", "immutable")):
        yield "data: Forbidden: field is immutable when `immutable` is set"
    if kind.kind == "Secret" and before.get("type", "Opaque") != after.get("type", "Opaque"):
        yield "type: Invalid value: field is immutable"
    if kind.kind == "Pod":
        free = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "nodeName")
        if _without_images(old, free) != _without_images(new, free):
            free_text = "images, `spec.activeDeadlineSeconds`, `spec.terminationGracePeriodSeconds` and (additions to) `spec.tolerations`"
            yield f"spec: Forbidden: pod updates may not change fields other than {free_text}"


def _without_images(spec: Mapping[str, Any], free: tuple[str, ...]) -> dict[str, Any]:
    kept = {name: value for name, value in spec.items() if name not in free}
    for name in ("containers", "initContainers"):
        if kept.get(name):
            kept[name] = [{k: v for k, v in container.items() if k != "image"} for container in kept[name]]
    return kept
