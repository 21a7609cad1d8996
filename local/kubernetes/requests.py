"""One HTTP request to the Kubernetes API as a value, and the answers to everything but watches and logs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.kubernetes import patches, protobuf, subresources, tables
from local.kubernetes.cluster import Cluster
from local.kubernetes.errors import Rejected
from local.kubernetes.kinds import Kind
from local.kubernetes.selectors import fields_match, labels_match
from local.kubernetes.store import Key

Object = dict[str, Any]
Answer = tuple[int, Object]


@dataclass(frozen=True)
class Target:
    """What a URL below a cluster names: a kind, and perhaps a namespace, a name, a subresource."""

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None


@dataclass(frozen=True)
class Request:
    """One request. `identity` is who asks: an access key id."""

    method: str
    target: Target
    query: Mapping[str, str] = field(default_factory=dict)
    accept: str = ""
    content_type: str = "application/json"
    body: bytes = b""
    agent: str = ""
    identity: str = ""

    @property
    def manager(self) -> str:
        """The field manager: as asked, else the program's name, as the API server takes it."""
        return self.query.get("fieldManager") or self.agent.split("/")[0][:128] or "unknown"

    @property
    def dry_run(self) -> bool:
        """Whether only the answer is wanted."""
        asked = self.query.get("dryRun", "")
        if asked not in ("", "All"):
            raise Rejected(f'dryRun: Unsupported value: "{asked}": supported values: "All"', reason="BadRequest")
        return asked == "All"

    @property
    def wants_table(self) -> bool:
        """Whether kubectl asked for columns."""
        return "as=Table" in self.accept

    def content(self) -> Any:
        """The body as JSON, or as YAML or protobuf where the content type says so."""
        if not self.body:
            return {}
        if self.content_type.split(";")[0].strip() == protobuf.CONTENT_TYPE:
            return protobuf.decode(self.body)
        try:
            if "yaml" in self.content_type and not self.body.lstrip().startswith(b"{"):
                import yaml

                return yaml.safe_load(self.body)
            return json.loads(self.body)
        except ValueError as error:
            raise Rejected(f"the object provided is unrecognized: {error}", reason="BadRequest") from None
        except Exception as error:
            if type(error).__module__.startswith("yaml"):
                raise Rejected(f"error decoding YAML: {error}", reason="BadRequest") from None
            raise


def target(path: str) -> Target | None:
    """The target of a path such as `apis/apps/v1/namespaces/x/deployments/y/status`, or None for any other path."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api" and parts[1] == "v1":
        group, version, rest = "", "v1", parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        if len(rest) > 5:
            return None
        return Target(group, version, rest[2], rest[1], *rest[3:5])
    if len(rest) > 3:
        return None
    return Target(group, version, rest[0], None, *rest[1:3])


def answer(cluster: Cluster, request: Request) -> Answer:
    """Status code and body. Raises `Rejected`."""
    asked = request.target
    kind = cluster.api.kind_of_resource(asked.group, asked.version, asked.plural)
    if kind is None or (kind.namespaced and asked.name and asked.namespace is None):
        raise Rejected("the server could not find the requested resource", reason="NotFound")
    if asked.subresource not in (None, "status", "finalize"):
        return _subresource(cluster, kind, request)
    match request.method:
        case "GET" if asked.name:
            found = cluster.api.require(kind, asked.namespace, asked.name)
            return 200, shown(cluster, kind, [found], request) if request.wants_table else found
        case "GET":
            return 200, _list(cluster, kind, request)
        case "POST" if not asked.name:
            value = _for_target(kind, request)
            made = cluster.api.create(value, manager=request.manager, dry_run=request.dry_run)
            _remember(cluster, made, request)
            return 201, made
        case "PUT" if asked.name:
            value = _for_target(kind, request)
            return 200, cluster.api.replace(
                value, manager=request.manager, status_only=asked.subresource == "status", dry_run=request.dry_run
            )
        case "PATCH" if asked.name:
            return _patch(cluster, kind, request)
        case "DELETE":
            return _delete(cluster, kind, request)
    raise Rejected("the server does not allow this method on the requested resource", reason="MethodNotAllowed")


def _subresource(cluster: Cluster, kind: Kind, request: Request) -> Answer:
    """Scale and eviction; what needs a process in a container is refused with the reason."""
    asked = request.target
    assert asked.name is not None
    assert asked.subresource is not None
    live = cluster.api.require(kind, asked.namespace, asked.name)
    if asked.subresource == "scale" and kind.kind in subresources.SCALED:
        if request.method == "GET":
            return 200, subresources.scale(live)
        if request.method in ("PUT", "PATCH"):
            content = request.content()
            wanted = subresources.replicas(content if request.method == "PUT" else patches.patched(
                subresources.scale(live), content, style=patches.STYLES.get(request.content_type.split(";")[0].strip(), ""), schema={}
            ))  # fmt: skip
            done = cluster.api.patch(
                kind, asked.namespace, asked.name, {"spec": {"replicas": wanted}}, style="merge", manager=request.manager,
                dry_run=request.dry_run,
            )  # fmt: skip
            return 200, subresources.scale(done)
    if asked.subresource == "eviction" and kind.kind == "Pod" and request.method == "POST":
        subresources.check_eviction(cluster.store, live)
        options = request.content()
        dry_run = request.dry_run or bool((options.get("deleteOptions") or {}).get("dryRun"))
        cluster.api.delete(kind, asked.namespace, asked.name, dry_run=dry_run)
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    raise subresources.refusal(kind, asked.name, asked.subresource)


def _for_target(kind: Kind, request: Request) -> Object:
    """The body, with the kind and namespace that the URL says where it leaves them out."""
    value = request.content()
    if not isinstance(value, dict):
        raise Rejected("the body must be one object", reason="BadRequest")
    value.setdefault("apiVersion", kind.api_version)
    value.setdefault("kind", kind.kind)
    metadata = value.setdefault("metadata", {})
    if (value["apiVersion"], value["kind"]) != (kind.api_version, kind.kind):
        text = f"{value['kind']} in version {value['apiVersion']} cannot be handled as a {kind.kind}"
        raise Rejected(text, reason="BadRequest")
    asked = request.target
    for name, given in (("namespace", asked.namespace), ("name", asked.name)):
        if given and isinstance(metadata, dict) and metadata.setdefault(name, given) != given:
            text = f"the {name} of the provided object does not match the {name} sent on the request"
            raise Rejected(text, reason="BadRequest")
    return value


def _remember(cluster: Cluster, made: Object, request: Request) -> None:
    if not request.dry_run:
        cluster.creators.setdefault(made["metadata"]["uid"], request.identity)


def _patch(cluster: Cluster, kind: Kind, request: Request) -> Answer:
    asked = request.target
    assert asked.name is not None
    style = request.content_type.split(";")[0].strip()
    if style == "application/apply-patch+yaml":
        if not request.query.get("fieldManager"):
            raise Rejected("fieldManager: Required value: is required for apply patch", reason="BadRequest")
        value = _for_target(kind, request)
        existed = cluster.api.get(kind, asked.namespace, asked.name) is not None
        force = request.query.get("force", "false") == "true"
        made = cluster.api.apply(value, manager=request.manager, force=force, dry_run=request.dry_run)
        _remember(cluster, made, request)
        return 200 if existed else 201, made
    if style not in patches.STYLES:
        known = ", ".join(["application/apply-patch+yaml", *patches.STYLES])
        text = f"the body of the request was in an unknown format - accepted media types include: {known}"
        raise Rejected(text, reason="UnsupportedMediaType")
    if style == "application/strategic-merge-patch+json" and kind.schema is None:
        text = f"{kind.kind} is a custom resource: it takes application/merge-patch+json, not a strategic merge patch"
        raise Rejected(text, reason="UnsupportedMediaType")
    done = cluster.api.patch(
        kind, asked.namespace, asked.name, request.content(), style=patches.STYLES[style], manager=request.manager,
        status_only=asked.subresource == "status", dry_run=request.dry_run,
    )  # fmt: skip
    cluster.api.collect()  # the last finalizer may have gone
    return 200, done


def _delete(cluster: Cluster, kind: Kind, request: Request) -> Answer:
    asked = request.target
    options = request.content() if request.body else {}
    orphan = (request.query.get("propagationPolicy") or options.get("propagationPolicy")) == "Orphan"
    dry_run = request.dry_run or bool(options.get("dryRun"))
    if asked.name is None:
        gone = selected(cluster, kind, request)
        for value in gone:
            cluster.api.delete(kind, value["metadata"].get("namespace"), value["metadata"]["name"], orphan=orphan, dry_run=dry_run)
        return 200, {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": {}, "items": gone}
    live = cluster.api.require(kind, asked.namespace, asked.name)
    wanted = (options.get("preconditions") or {}).get("uid")
    if wanted and wanted != live["metadata"]["uid"]:
        text = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {live['metadata']['uid']}"
        raise Rejected(text, reason="Conflict")
    last = cluster.api.delete(kind, asked.namespace, asked.name, orphan=orphan, dry_run=dry_run)
    if cluster.api.get(kind, asked.namespace, asked.name) is not None and not dry_run:
        return 200, last
    details = {"name": asked.name, "group": kind.group, "kind": kind.plural, "uid": live["metadata"]["uid"]}
    return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def selected(cluster: Cluster, kind: Kind, request: Request) -> list[Object]:
    """The objects of a kind that the request's namespace, name and selectors choose."""
    asked = request.target
    labels_match({}, request.query.get("labelSelector", ""))  # a selector that cannot be read is refused on an empty list too
    found = cluster.store.select(group=kind.group, kind=kind.kind, namespace=asked.namespace if kind.namespaced else None)
    return [value for value in found if chosen(value, request)]


def chosen(value: Object, request: Request) -> bool:
    """Whether the request's selectors take an object."""
    labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    if request.target.name and value["metadata"]["name"] != request.target.name:
        return False
    return labels_match(value["metadata"].get("labels"), labels) and fields_match(value, fields)


def _list(cluster: Cluster, kind: Kind, request: Request) -> Object:
    with cluster.store.lock:
        version = str(cluster.store.version)
        found = selected(cluster, kind, request)
    if request.wants_table:
        return {**shown(cluster, kind, found, request), "metadata": {"resourceVersion": version}}
    return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": {"resourceVersion": version}, "items": found}


def shown(cluster: Cluster, kind: Kind, objects: list[Object], request: Request) -> Object:
    """A Table of objects."""
    key = Key("apiextensions.k8s.io", "CustomResourceDefinition", "", f"{kind.plural}.{kind.group}")
    version = str(cluster.store.version)
    include = request.query.get("includeObject", "Metadata")
    return tables.table(kind, cluster.store.get(key), objects, version=version, include=include)
