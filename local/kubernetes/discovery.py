"""What `/api`, `/apis` and `/openapi/v3` say: which kinds are served, and that patches take `dryRun` and `fieldValidation`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from local.kubernetes.kinds import CATEGORY_ALL, Kind
from local.kubernetes.schemas import definitions, schema_of
from local.kubernetes.subresources import LISTED

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
CONNECTION_GROUP = "connection.access.sagemaker.amazonaws.com"
CONNECTION_VERSION = "v1alpha1"
CONNECTION = Kind(CONNECTION_GROUP, CONNECTION_VERSION, "RayDashboardConnection", "raydashboardconnections", True)
AGGREGATED = "apidiscovery.k8s.io"
_VERBS_OF = {"scale": ["get", "patch", "update"], "eviction": ["create"], "log": ["get"]}


def _groups(kinds: Iterable[Kind]) -> dict[str, dict[str, list[Kind]]]:
    found: dict[str, dict[str, list[Kind]]] = {}
    for kind in kinds:
        found.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
    return dict(sorted(found.items()))


def versions() -> dict[str, Any]:
    """`GET /api`."""
    return {"kind": "APIVersions", "versions": ["v1"]}


def group_list(kinds: Iterable[Kind]) -> dict[str, Any]:
    """`GET /apis`."""
    groups = [group(name, list(found)) for name, found in _groups(kinds).items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(name: str, found: list[str]) -> dict[str, Any]:
    """One entry of the group list."""
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in found]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(kinds: Iterable[Kind], group_version: str) -> dict[str, Any] | None:
    """`GET /api/v1` and `GET /apis/<group>/<version>`; None when nothing of that is served."""
    found: list[dict[str, Any]] = []
    for kind in kinds:
        if kind.api_version != group_version:
            continue
        entry: dict[str, Any] = {
            "name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": ["create"] if kind == CONNECTION else VERBS,
        }  # fmt: skip
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.kind in CATEGORY_ALL:
            entry["categories"] = ["all"]
        found.append(entry)
        if kind.has_status and kind != CONNECTION:
            status = {"name": f"{kind.plural}/status", "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind}
            found.append({**status, "verbs": ["get", "patch", "update"]})
        for name, group, version, of in LISTED.get(kind.kind, ()):
            inner = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": True}
            found.append({**inner, "group": group, "version": version, "kind": of, "verbs": _VERBS_OF[name]})
    if not found:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}


def aggregated(kinds: Iterable[Kind], *, core: bool) -> dict[str, Any]:
    """The same in one answer (apidiscovery.k8s.io/v2), which saves kubectl a call for each group."""
    items: list[dict[str, Any]] = []
    for name, by_version in _groups(kinds).items():
        if (name == "") is not core:
            continue
        listed = [
            {"version": version, "freshness": "Current", "resources": [_aggregated_resource(kind) for kind in found]}
            for version, found in by_version.items()
        ]
        items.append({"metadata": {"name": name} if name else {}, "versions": listed})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": f"{AGGREGATED}/v2", "metadata": {}, "items": items}


def _aggregated_resource(kind: Kind) -> dict[str, Any]:
    shape = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    entry: dict[str, Any] = {
        "resource": kind.plural, "responseKind": shape, "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.kind.lower(), "verbs": ["create"] if kind == CONNECTION else VERBS,
    }  # fmt: skip
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.kind in CATEGORY_ALL:
        entry["categories"] = ["all"]
    if kind.has_status and kind != CONNECTION:
        entry["subresources"] = [{"subresource": "status", "responseKind": shape, "verbs": ["get", "patch", "update"]}]
    for name, group, version, of in LISTED.get(kind.kind, ()):
        inner = {"group": group, "version": version, "kind": of}
        entry.setdefault("subresources", []).append({"subresource": name, "responseKind": inner, "verbs": _VERBS_OF[name]})
    return entry


def openapi_root(kinds: Iterable[Kind]) -> dict[str, Any]:
    """`GET /openapi/v3`: one document for each group and version."""
    paths = sorted({_path(kind) for kind in kinds})
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def _path(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def openapi(kinds: Iterable[Kind], path: str) -> dict[str, Any] | None:
    """One document: the patch operation of each kind, from which kubectl learns that the server validates and can dry-run, and the
    schemas, which `kubectl explain` shows.
    """
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for kind in kinds:
        if _path(kind) != path:
            continue
        place = "namespaces/{namespace}/" if kind.namespaced else ""
        names = ("dryRun", "fieldManager", "fieldValidation", "force")
        parameters = [{"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in names]
        shape = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        operation = {"parameters": parameters, "responses": {"200": {"description": "OK"}}, "x-kubernetes-group-version-kind": shape}
        paths[f"/{path}/{place}{kind.plural}/{{name}}"] = {"patch": {**operation, "x-kubernetes-action": "patch"}}
        name = kind.schema or f"{kind.group}.{kind.version}.{kind.kind}"
        _describe(name, schema_of(kind.group, kind.kind, kind.schema), into=schemas)
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [shape]}
    if not paths:
        return None
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "local"}, "paths": paths, "components": {"schemas": schemas}}


def _describe(name: str, schema: Any, *, into: dict[str, Any]) -> None:
    """A definition as OpenAPI writes it, and those that it refers to."""
    into[name] = {}  # some refer to themselves
    into[name] = _as_openapi(schema, into=into)


def _as_openapi(schema: Any, *, into: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_as_openapi(each, into=into) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            of = str(value).rsplit("/", 1)[-1]
            if of not in into:
                _describe(of, definitions()[of], into=into)
            made[key] = f"#/components/schemas/{of}"
        elif key == "type" and isinstance(value, list):
            made[key] = next((each for each in value if each != "null"), "object")  # JSON schema's way to say nullable
        elif key in ("properties", "definitions"):
            made[key] = {each: _as_openapi(content, into=into) for each, content in value.items()}
        elif not (key == "additionalProperties" and value is False):
            made[key] = _as_openapi(value, into=into)
    if "properties" in made:
        made.setdefault("type", "object")
    return made
