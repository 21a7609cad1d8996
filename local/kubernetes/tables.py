"""The columns of `kubectl get`: Table responses (https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables)."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from local.kubernetes.jsonpath import read
from local.kubernetes.kinds import Kind

Object = Mapping[str, Any]
Cell = Callable[[Object], Any]


def age(value: str | None, *, now: datetime.datetime | None = None) -> str:
    """`45s`, `12m`, `3h5m`, `2d`, as kubectl writes a duration."""
    if not value:
        return "<unknown>"
    then = datetime.datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    seconds = max(0, int(((now or datetime.datetime.now(datetime.UTC)) - then).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d"


def _name(value: Object) -> Any:
    return value["metadata"]["name"]


def _age(value: Object) -> Any:
    return age(value["metadata"].get("creationTimestamp"))


def _at(path: str, default: Any = "") -> Cell:
    return lambda value: read(value, path) or default


def _number(path: str) -> Cell:
    return lambda value: int(read(value, path) or 0)


def _ready(value: Object) -> str:
    states = value.get("status", {}).get("containerStatuses", ())
    return f"{sum(bool(s['ready']) for s in states)}/{len(value['spec']['containers'])}"


def _pod_status(value: Object) -> str:
    if value["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = value.get("status", {})
    for state in status.get("containerStatuses", ()):
        for what in ("waiting", "terminated"):
            if state["state"].get(what, {}).get("reason"):
                return str(state["state"][what]["reason"])
    return str(status.get("phase", "Unknown"))


def _restarts(value: Object) -> str:
    return str(sum(s.get("restartCount", 0) for s in value.get("status", {}).get("containerStatuses", ())))


def _node_status(value: Object) -> str:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in value.get("status", {}).get("conditions", ()))
    return ("Ready" if ready else "NotReady") + (",SchedulingDisabled" if value.get("spec", {}).get("unschedulable") else "")


def _replicas(ready: str, wanted: str) -> Cell:
    return lambda value: f"{read(value, ready) or 0}/{read(value, wanted) or 0}"


def _ports(value: Object) -> str:
    return ",".join(f"{p['port']}/{p.get('protocol', 'TCP')}" for p in value["spec"].get("ports") or ()) or "<none>"


def _modes(value: Object) -> str:
    short = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    return ",".join(short.get(mode, mode) for mode in value["spec"].get("accessModes") or ())


def _claim(value: Object) -> str:
    reference = value["spec"].get("claimRef")
    return f"{reference['namespace']}/{reference['name']}" if reference else ""


def _about(value: Object) -> str:
    return f"{value['involvedObject']['kind'].lower()}/{value['involvedObject']['name']}"


def _data(value: Object) -> int:
    return len(value.get("data") or {}) + len(value.get("binaryData") or {})


_WORKLOAD: Sequence[tuple[str, Cell]] = (
    ("Ready", _replicas(".status.readyReplicas", ".spec.replicas")),
    ("Up-to-date", _number(".status.updatedReplicas")),
    ("Available", _number(".status.availableReplicas")),
)
COLUMNS: Mapping[str, Sequence[tuple[str, Cell]]] = {
    "Pod": (
        ("Ready", _ready), ("Status", _pod_status), ("Restarts", _restarts), ("Age", _age),
        ("IP", _at(".status.podIP", "<none>")), ("Node", _at(".spec.nodeName", "<none>")),
    ),
    "Node": (
        ("Status", _node_status), ("Roles", lambda _: "<none>"), ("Age", _age), ("Version", _at(".status.nodeInfo.kubeletVersion")),
        ("Instance-type", _at(r".metadata.labels.node\.kubernetes\.io/instance-type", "<none>")),
    ),
    "Deployment": (*_WORKLOAD, ("Age", _age)),
    "StatefulSet": (_WORKLOAD[0], ("Age", _age)),
    "DaemonSet": (
        ("Desired", _number(".status.desiredNumberScheduled")), ("Current", _number(".status.currentNumberScheduled")),
        ("Ready", _number(".status.numberReady")), ("Age", _age),
    ),
    "Job": (
        ("Status", lambda v: "Complete" if read(v, ".status.completionTime") else "Running"),
        ("Completions", lambda v: f"{read(v, '.status.succeeded') or 0}/{read(v, '.spec.completions') or 1}"), ("Age", _age),
    ),
    "Service": (
        ("Type", _at(".spec.type")), ("Cluster-IP", _at(".spec.clusterIP", "<none>")), ("External-IP", lambda _: "<none>"),
        ("Port(s)", _ports), ("Age", _age),
    ),
    "Namespace": (("Status", _at(".status.phase", "Active")), ("Age", _age)),
    "PersistentVolumeClaim": (
        ("Status", _at(".status.phase", "Pending")), ("Volume", _at(".spec.volumeName")), ("Capacity", _at(".status.capacity.storage")),
        ("Access Modes", _modes), ("StorageClass", _at(".spec.storageClassName")), ("Age", _age),
    ),
    "PersistentVolume": (
        ("Capacity", _at(".spec.capacity.storage")), ("Access Modes", _modes),
        ("Reclaim Policy", _at(".spec.persistentVolumeReclaimPolicy", "Retain")), ("Status", _at(".status.phase")), ("Claim", _claim),
        ("StorageClass", _at(".spec.storageClassName")), ("Age", _age),
    ),
    "ConfigMap": (("Data", _data), ("Age", _age)),
    "Secret": (("Type", _at(".type", "Opaque")), ("Data", _data), ("Age", _age)),
    "Event": (
        ("Last Seen", lambda v: age(v.get("lastTimestamp"))), ("Type", _at(".type")), ("Reason", _at(".reason")),
        ("Object", _about), ("Message", _at(".message")),
    ),
    "CustomResourceDefinition": (("Created At", _at(".metadata.creationTimestamp")),),
}  # fmt: skip
_WIDE = {("Pod", "IP"), ("Pod", "Node"), ("Node", "Instance-type")}
_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


def columns_of(kind: Kind, definition: Object | None) -> list[tuple[dict[str, Any], Cell]]:
    """Name first, then the kind's own columns; those of custom kinds come from their definition."""
    found: list[tuple[dict[str, Any], Cell]] = [({"name": "Name", "type": "string", "format": "name", "priority": 0}, _name)]
    if kind.kind == "Event":
        found = []
    if definition is not None:
        versions = [v for v in definition["spec"]["versions"] if v["name"] == kind.version]
        for column in versions[0].get("additionalPrinterColumns", ()):
            header = {"name": column["name"], "type": column["type"], "format": "", "priority": column.get("priority", 0)}
            found.append((header, _custom(column)))
        if len(found) > 1:
            return found
    for name, cell in COLUMNS.get(kind.kind, (("Age", _age),)):
        found.append(({"name": name, "type": "string", "format": "", "priority": int((kind.kind, name) in _WIDE)}, cell))
    return found


def _custom(column: Object) -> Cell:
    path, kind = column["jsonPath"], column["type"]
    if kind == "date":
        return lambda value: age(read(value, path) or None)
    if kind == "integer":
        return lambda value: int(read(value, path)) if read(value, path) else None
    return lambda value: read(value, path)


def table(kind: Kind, definition: Object | None, objects: Sequence[Object], *, version: str, include: str) -> dict[str, Any]:
    """A Table of these objects; `include` is `Metadata` (the default), `Object` or `None`."""
    columns = columns_of(kind, definition)
    rows = []
    for value in objects:
        carried: Object | None = value if include == "Object" else {**_PARTIAL, "metadata": value["metadata"]}
        rows.append({"cells": [cell(value) for _, cell in columns], **({} if include == "None" else {"object": carried})})
    return {
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version},
        "columnDefinitions": [{**header, "description": header["name"]} for header, _ in columns], "rows": rows,
    }  # fmt: skip
