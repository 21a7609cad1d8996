"""Watches and logs: the answers of the API that do not end by themselves.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from local.kubernetes.cluster import Cluster
from local.kubernetes.errors import Rejected
from local.kubernetes.kinds import Kind
from local.kubernetes.requests import Request, chosen, selected, shown
from local.kubernetes.store import Change, Listener

LONGEST_SECONDS = 3600.0
LOG_POLL_SECONDS = 0.3


async def watch(http: web.Request, cluster: Cluster, request: Request) -> web.StreamResponse:
    """Stream the changes of a kind as JSON lines until the client leaves or its `timeoutSeconds` are over."""
    kind = cluster.api.kind_of_resource(request.target.group, request.target.version, request.target.plural)
    if kind is None:
        raise Rejected("the server could not find the requested resource", reason="NotFound")
    queue: asyncio.Queue[Change] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    with cluster.store.lock:
        first, gone = _first(cluster, kind, request)
        stop = cluster.store.listen(_into(queue, loop))
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    seen = {value["metadata"]["uid"] for verb, value in first if verb != "DELETED"}
    limit = loop.time() + min(float(request.query.get("timeoutSeconds") or LONGEST_SECONDS), LONGEST_SECONDS)
    try:
        writer = await response.prepare(http)
        if writer is not None:
            writer.send_headers()  # else they wait for the first event, and the client's timeout for headers with them
        if gone:
            await _send(response, "ERROR", status(Rejected("too old resource version", reason="Conflict"), code=410, reason="Expired"))
            return response
        for verb, value in first:
            await _send(response, verb, _shape(cluster, kind, value, request))
        if request.query.get("sendInitialEvents") == "true":
            mark = {"annotations": {"k8s.io/initial-events-end": "true"}, "resourceVersion": str(cluster.store.version)}
            bookmark = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": mark}
            await _send(response, "BOOKMARK", _shape(cluster, kind, bookmark, request) if not request.wants_table else bookmark)
        while (left := limit - loop.time()) > 0:
            try:
                change = await asyncio.wait_for(queue.get(), timeout=left)
            except TimeoutError:
                break
            event = _event(change, kind, request, seen)
            if event is not None:
                await _send(response, event[0], _shape(cluster, kind, event[1], request))
        await response.write_eof()
    except (ConnectionResetError, ConnectionError):
        return response  # the client has left
    finally:
        stop()
    return response


def _into(queue: asyncio.Queue[Change], loop: asyncio.AbstractEventLoop) -> Listener:
    def put(change: Change) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, change)

    return put


def _first(cluster: Cluster, kind: Kind, request: Request) -> tuple[list[tuple[str, dict[str, Any]]], bool]:
    """What comes first: everything that exists, or what happened since the resource version; and whether that is too old."""
    since = request.query.get("resourceVersion", "")
    if since in ("", "0") or request.query.get("sendInitialEvents") == "true":
        return [("ADDED", value) for value in selected(cluster, kind, request)], False
    if not since.isdigit():
        raise Rejected(f"resourceVersion: Invalid value: {since!r}", reason="BadRequest")
    history = cluster.store.since(int(since))
    if history is None:
        return [], True
    # What the client has seen before is not known here, so a change that no longer matches is told as deleted.
    events = [_event(change, kind, request, None) for change in history]
    return [event for event in events if event is not None], False


def _event(change: Change, kind: Kind, request: Request, seen: set[str] | None) -> tuple[str, dict[str, Any]] | None:
    key, asked = change.key, request.target
    if (key.group, key.kind) != (kind.group, kind.kind) or (asked.namespace and kind.namespaced and key.namespace != asked.namespace):
        return None
    uid = change.value["metadata"]["uid"]
    if not chosen(change.value, request):
        if seen is not None and uid not in seen:
            return None
        if seen is not None:
            seen.discard(uid)
        return ("DELETED", change.value) if seen is not None else None
    if change.verb == "DELETED":
        if seen is not None:
            seen.discard(uid)
        return "DELETED", change.value
    if seen is None:
        return change.verb, change.value
    verb = "MODIFIED" if uid in seen else "ADDED"
    seen.add(uid)
    return verb, change.value


def _shape(cluster: Cluster, kind: Kind, value: dict[str, Any], request: Request) -> dict[str, Any]:
    return shown(cluster, kind, [value], request) if request.wants_table else value


async def _send(response: web.StreamResponse, verb: str, value: dict[str, Any]) -> None:
    await response.write(json.dumps({"type": verb, "object": value}).encode() + b"\n")


def status(refused: Rejected, *, code: int | None = None, reason: str | None = None) -> dict[str, Any]:
    """A Kubernetes Status object that says why."""
    causes = [{"reason": "FieldValueInvalid", "message": problem} for problem in refused.problems] if len(refused.problems) > 1 else []
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(refused),
        "reason": reason or refused.reason, "code": code or refused.code, **({"details": {"causes": causes}} if causes else {}),
    }  # fmt: skip


async def log(http: web.Request, cluster: Cluster, request: Request, path: Path | None) -> web.StreamResponse:
    """`kubectl logs` of a Ray pod: what `ray start` printed. Other pods run nothing and have no log."""
    asked = request.target
    assert asked.name is not None
    kind = cluster.api.kind("v1", "Pod")
    pod = cluster.api.require(kind, asked.namespace, asked.name)
    containers = [container["name"] for container in pod["spec"]["containers"]]
    wanted = request.query.get("container") or containers[0]
    if wanted not in containers:
        raise Rejected(f"container {wanted} is not valid for pod {asked.name}", reason="BadRequest")
    if path is not None and request.query.get("previous") == "true":
        path = path.with_suffix(".previous.log")
        if not path.is_file():
            raise Rejected(f'previous terminated container "{wanted}" in pod "{asked.name}" not found', reason="BadRequest")
    if path is None:
        text = f"pod {asked.name} runs no process on this machine, so it has no log; only Ray's pods are run"
        raise Rejected(text, reason="BadRequest")
    data = await asyncio.to_thread(_read, path)
    tail = request.query.get("tailLines", "")
    if tail.isdigit():
        data = b"".join(data.splitlines(keepends=True)[-int(tail) :]) if int(tail) else b""
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(http)
    position = path.stat().st_size if path.exists() else 0
    await response.write(data)
    while request.query.get("follow") == "true" and path.exists():
        await asyncio.sleep(LOG_POLL_SECONDS)
        more = await asyncio.to_thread(_read, path, position)
        position += len(more)
        try:
            await response.write(more)
        except ConnectionError:
            break
    await response.write_eof()
    return response


def _read(path: Path, position: int = 0) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read()
    except OSError:
        return b""
