"""Grafana's own HTTP API of a workspace, as far as one provisions it: data sources, folders, dashboards, alert rules.

It keeps what it is given and draws nothing. Calls need a token of a service account of the workspace that has not expired. What Grafana
itself refuses is refused: an unknown folder, a panel or a rule whose data source is not there, a uid that is taken.
https://grafana.com/docs/grafana/v10.4/developers/http_api/
"""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from local.cloud.store import Cloud, Resource
from local.cloud.wire import Request, Response

PREFIX = "/_hyperpod-rl/grafana/"
GRAFANA_TYPE = "AWS::Grafana::Workspace"
Json = dict[str, Any]
# What Grafana brings itself: built-in panels and expressions refer to them.
_BUILT_IN = {"__expr__", "grafana", "-- Grafana --"}
_KINDS = ("datasources", "folders", "dashboards", "rules")


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def endpoint(cloud: Cloud, workspace: str) -> str:
    """Where the workspace answers; with a scheme, since there is no certificate for it here."""
    return f"http://127.0.0.1:{cloud.port}{PREFIX}{workspace}"


def objects(resource: Resource) -> list[str]:
    """Everything that lies in a workspace, one line each."""
    return [f"{resource.id} {kind} {uid}" for kind in _KINDS for uid in sorted(_kept(resource, kind))]


def answer(cloud: Cloud, request: Request) -> Response:
    """Answer one call below PREFIX."""
    workspace, _, path = request.path.removeprefix(PREFIX).partition("/")
    resource = next((r for r in cloud.store.everything() if r.type == GRAFANA_TYPE and r.id == workspace), None)
    try:
        if resource is None:
            raise Refusal(404, f"there is no workspace {workspace}")
        _authenticate(resource, request)
        body = json.loads(request.body) if request.body else {}
        found = _route(resource, request.method, f"/{path}", urllib.parse.parse_qs(request.query), body)
    except Refusal as refusal:
        return Response(refusal.status, json.dumps({"message": str(refusal)}).encode())
    except ValueError:
        return Response(400, b'{"message": "bad request data"}')
    return Response(200, json.dumps(found).encode())


def _authenticate(resource: Resource, request: Request) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    for account in resource.owned.get("service_accounts", {}).values():
        for token in account["tokens"].values():
            if given and token.get("key") == given and token["expires"] > time.time():
                if request.method != "GET" and account["grafanaRole"] != "ADMIN":
                    raise Refusal(403, "Permission denied")
                return
    raise Refusal(401, "Invalid API key")


def _kept(resource: Resource, kind: str) -> dict[str, Json]:
    found: dict[str, Json] = resource.owned.setdefault("grafana", {}).setdefault(kind, {})
    return found


def _route(resource: Resource, method: str, path: str, query: dict[str, list[str]], body: Json) -> Any:
    boards = _kept(resource, "dashboards")
    if method == "GET" and path == "/api/search":
        wanted = query.get("folderUIDs", [])
        return [
            {"uid": uid, "title": kept["title"], "type": "dash-db", "folderUid": kept["folderUid"]}
            for uid, kept in boards.items() if not wanted or kept["folderUid"] in wanted
        ]  # fmt: skip
    if method == "POST" and path == "/api/dashboards/db":
        return _save_dashboard(resource, body)
    if match := re.fullmatch(r"/api/dashboards/uid/([\w-]+)", path):
        return _one(boards, method, match[1], "Dashboard not found")
    if path == "/api/datasources" or path.startswith("/api/datasources/uid/"):
        return _keep(
            _kept(resource, "datasources"),
            method,
            path.removeprefix("/api/datasources").removeprefix("/uid/"),
            body,
            needs=("name", "type"),
        )
    if path == "/api/folders" or path.startswith("/api/folders/"):
        return _keep(_kept(resource, "folders"), method, path.removeprefix("/api/folders").removeprefix("/"), body, needs=("title",))
    if path == "/api/v1/provisioning/alert-rules" or path.startswith("/api/v1/provisioning/alert-rules/"):
        if body:
            _check_rule(resource, body)
        uid = path.removeprefix("/api/v1/provisioning/alert-rules").removeprefix("/")
        return _keep(_kept(resource, "rules"), method, uid, body, needs=("title", "ruleGroup", "folderUID", "condition", "data", "for"))
    raise Refusal(404, f"Not found: {method} {path}")


def _one(kept: dict[str, Json], method: str, uid: str, missing: str) -> Any:
    if uid not in kept:
        raise Refusal(404, missing)
    return kept.pop(uid) if method == "DELETE" else kept[uid]


def _keep(kept: dict[str, Json], method: str, uid: str, body: Json, *, needs: tuple[str, ...]) -> Any:
    if method == "GET" and not uid:
        return list(kept.values())
    if method in ("GET", "DELETE"):
        return _one(kept, method, uid, "not found")
    if missing := [name for name in needs if not body.get(name)]:
        raise Refusal(400, f"{', '.join(missing)} is required")
    if method == "PUT":
        _one(kept, "GET", uid, "not found")
    elif body.get("uid") in kept:
        raise Refusal(409, "the uid is taken")
    kept[uid or body["uid"]] = body
    return body


def _save_dashboard(resource: Resource, body: Json) -> Json:
    board, folder = body.get("dashboard") or {}, body.get("folderUid", "")
    if not board.get("title") or not board.get("uid"):
        raise Refusal(400, "Dashboard title cannot be empty")
    if folder and folder not in _kept(resource, "folders"):
        raise Refusal(400, f"folder {folder} not found")
    boards = _kept(resource, "dashboards")
    if board["uid"] in boards and not body.get("overwrite"):
        raise Refusal(412, "A dashboard with the same uid already exists")
    _check_sources(resource, set(_sources(board)))
    boards[board["uid"]] = {"title": board["title"], "folderUid": folder, "dashboard": board}
    return {"uid": board["uid"], "status": "success"}


def _check_rule(resource: Resource, rule: Json) -> None:
    if rule.get("folderUID") not in _kept(resource, "folders"):
        raise Refusal(400, f"folder {rule.get('folderUID')} not found")
    if rule.get("condition") not in [query.get("refId") for query in rule.get("data", ())]:
        raise Refusal(400, f"condition {rule.get('condition')} must be set to the refID of a query or expression")
    _check_sources(resource, {query.get("datasourceUid", "") for query in rule.get("data", ())})


def _check_sources(resource: Resource, uids: set[str]) -> None:
    """Grafana keeps a dashboard whose data source is missing and shows an error in it; here that is the error."""
    if unknown := sorted(uids - _kept(resource, "datasources").keys() - _BUILT_IN):
        raise Refusal(400, f"data source {', '.join(unknown)} not found")


def _sources(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        source = value.get("datasource")
        if isinstance(source, dict) and isinstance(source.get("uid"), str):
            yield source["uid"]
        for inner in value.values():
            yield from _sources(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _sources(inner)
