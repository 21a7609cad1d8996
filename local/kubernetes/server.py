"""The HTTPS endpoint of all clusters: https://127.0.0.1:<port>/clusters/<name>, and the dashboards' proxy beside it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import ClientSession, ClientTimeout, web

from local.kubernetes import certificates, discovery, reviews, tokens, watches
from local.kubernetes.cluster import GIT_VERSION, Cluster, Clusters
from local.kubernetes.errors import Rejected
from local.kubernetes.kinds import Kind
from local.kubernetes.requests import Request, Target, answer, target
from local.ray import connections, proxy
from local.ray.sessions import Sessions
from local.ray.sessions import Target as RayTarget

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
# https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/
_PROXIED = re.compile(r"api/v1/namespaces/(?P<namespace>[^/]+)/services/(?:http:)?(?P<service>[^/:]+):\d+/proxy/(?P<rest>.*)")
_OPEN_PATHS = ("healthz", "livez", "readyz", "version")


class Ports(Protocol):
    """The two ports that this module listens on."""

    @property
    def kubernetes(self) -> int:
        """Of the Kubernetes endpoint."""

    @property
    def dashboards(self) -> int:
        """Of the dashboards' proxy."""


class Endpoint:
    """The endpoint's settings. `secret_of` and `allowed` are given by whoever knows the accounts and access entries."""

    def __init__(
        self,
        clusters: Clusters,
        *,
        files: certificates.Certificates,
        ports: Ports,
        sessions: Sessions | None = None,
        secret_of: tokens.SecretOf = lambda _: None,
        allowed: Callable[[str, str], bool] = lambda cluster, identity: True,
    ) -> None:
        """`allowed(cluster, identity)`: whether an access entry lets that access key id in."""
        self.clusters = clusters
        self.files = files
        self.ports = ports
        self.sessions = sessions or Sessions()
        self.secret_of = secret_of
        self.allowed = allowed

    def of(self, cluster: str) -> tuple[str, str]:
        """URL and certificate authority (PEM) of a cluster, as DescribeCluster gives them (there the PEM is in base64)."""
        return f"https://{HOST}:{self.ports.kubernetes}/clusters/{cluster}", self.files.authority.read_text(encoding="ascii")

    # ---- Kubernetes --------------------------------------------------------------------------------------------

    def kubernetes(self) -> web.Application:
        """The Kubernetes API of all clusters."""
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/clusters/{cluster}", self._handle)
        app.router.add_route("*", "/clusters/{cluster}/{path:.*}", self._handle)
        return app

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(http)
        except Rejected as refused:
            return _json(watches.status(refused), refused.code)
        except Exception:
            logger.exception("%s %s", http.method, http.path)
            failure = Rejected("an error on the server: see the log of the local cloud", reason="InternalError")
            return _json(watches.status(failure), 500)

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        name, path = http.match_info["cluster"], http.match_info.get("path", "").strip("/")
        cluster = self.clusters.get(name)
        if cluster is None:
            raise Rejected(f'no cluster "{name}" on this machine', reason="NotFound")
        if path in _OPEN_PATHS:
            return _json(_version()) if path == "version" else web.Response(text="ok")
        identity = self._who(http, name)
        if http.method == "GET" and (proxied := _PROXIED.fullmatch(http.match_info.get("path", ""))):
            return await self._through(cluster, proxied["namespace"], proxied["service"], f"{proxied['rest']}?{http.query_string}")
        asked = target(path)
        if asked is None:
            return self._about(cluster, path, http.headers.get("Accept", ""))
        request = Request(
            method=http.method, target=asked, query=dict(http.query), accept=http.headers.get("Accept", ""),
            content_type=http.headers.get("Content-Type", "application/json"), body=await http.read(),
            agent=http.headers.get("User-Agent", ""), identity=identity,
        )  # fmt: skip
        if (asked.group, asked.version, asked.plural) == (
            discovery.CONNECTION.group, discovery.CONNECTION.version, discovery.CONNECTION.plural,
        ):  # fmt: skip
            return self._connect(cluster, request)
        if asked.plural == "pods" and asked.subresource == "log" and http.method == "GET":
            runtime: Any = self.clusters.ray
            found = runtime.log_of(cluster, asked.namespace, asked.name) if runtime is not None else None
            return await watches.log(http, cluster, request, found)
        if (review := reviews.answer(request)) is not None:
            return _json(review, 201)
        if http.method == "GET" and request.query.get("watch") in ("true", "1"):
            return await watches.watch(http, cluster, request)
        code, body = await asyncio.to_thread(answer, cluster, request)
        return _json(body, code)

    async def _through(self, cluster: Cluster, namespace: str, service: str, rest: str) -> web.Response:
        """The API server's service proxy, for the one kind of service that something listens behind here: Ray's dashboards."""
        found = cluster.get("Service", namespace, service)
        if found is None:
            raise Rejected(f'services "{service}" not found', reason="NotFound")
        name = (found["metadata"].get("labels") or {}).get("ray.io/cluster", "")
        dashboard = await asyncio.to_thread(self._dashboard, RayTarget(cluster.name, namespace, name))
        if dashboard is None:
            raise Rejected(f'no endpoints available for service "{service}"', reason="ServiceUnavailable")
        async with ClientSession(timeout=ClientTimeout(total=20)) as session, session.get(f"{dashboard}/{rest}") as reply:
            return web.Response(body=await reply.read(), status=reply.status, content_type=reply.content_type)

    def _who(self, http: web.Request, cluster: str) -> str:
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Rejected("Unauthorized: no bearer token", reason="Unauthorized")
        identity = tokens.identity(token.strip(), cluster, secret_of=self.secret_of)
        if not self.allowed(cluster, identity):
            raise Rejected(f"Forbidden: no access entry of cluster {cluster} lets {identity} in", reason="Forbidden")
        return identity

    def _connect(self, cluster: Cluster, request: Request) -> web.Response:
        if request.method != "POST" or request.target.namespace is None:
            raise Rejected("the server does not allow this method on the requested resource", reason="MethodNotAllowed")
        made = connections.connect(
            cluster, request.target.namespace, request.content(), identity=request.identity, sessions=self.sessions,
            proxy=f"https://{HOST}:{self.ports.dashboards}",
        )  # fmt: skip
        return _json(made, 201)

    def _kinds(self, cluster: Cluster) -> list[Kind]:
        served = cluster.api.kinds()
        return [*served, discovery.CONNECTION] if connections.operator_installed(cluster) else served

    def _about(self, cluster: Cluster, path: str, accept: str) -> web.Response:
        kinds = self._kinds(cluster)
        found: dict[str, Any] | None = None
        if path in ("api", "apis") and discovery.AGGREGATED in accept:
            content_type = f"application/json;g={discovery.AGGREGATED};v=v2;as=APIGroupDiscoveryList"
            return _json(discovery.aggregated(kinds, core=path == "api"), content_type=content_type)
        if path == "api":
            found = discovery.versions()
        elif path == "apis":
            found = discovery.group_list(kinds)
        elif path == "openapi/v3":
            found = discovery.openapi_root(kinds)
        elif path.startswith("openapi/v3/"):
            found = discovery.openapi(kinds, path.removeprefix("openapi/v3/"))
        elif path.startswith(("api/", "apis/")):
            group_version = path.partition("/")[2]
            found = discovery.resource_list(kinds, group_version)
            if found is None and "/" not in group_version:
                versions = sorted({kind.version for kind in kinds if kind.group == group_version})
                found = {**discovery.group(group_version, versions)} if versions else None
        if found is None:
            raise Rejected("the server could not find the requested resource", reason="NotFound")
        return _json(found)

    # ---- dashboards --------------------------------------------------------------------------------------------

    def dashboards(self) -> web.Application:
        """The proxy in front of Ray's dashboards."""
        return proxy.application(self.sessions, self._dashboard)

    def _dashboard(self, wanted: RayTarget) -> str | None:
        cluster = self.clusters.get(wanted.cluster)
        runtime: Any = self.clusters.ray
        if cluster is None or runtime is None:
            return None
        found: str | None = runtime.dashboard(cluster, wanted.namespace, wanted.name)
        return found


def _version() -> dict[str, str]:
    major, minor = GIT_VERSION.removeprefix("v").split(".")[:2]
    return {"major": major, "minor": minor, "gitVersion": GIT_VERSION, "platform": "linux/amd64"}


def _json(body: dict[str, Any], code: int = 200, *, content_type: str = "application/json") -> web.Response:
    import json

    return web.Response(body=json.dumps(body).encode(), status=code, headers={"Content-Type": content_type})


async def listen(app: web.Application, port: int, files: certificates.Certificates) -> web.AppRunner:
    """Serve an application over TLS on 127.0.0.1; the runner's `cleanup` ends it."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, HOST, port, ssl_context=files.server_context()).start()
    return runner


async def serve(
    clusters: Clusters,
    *,
    state: Path,
    ports: Ports,
    ready: Callable[[Endpoint], None] = lambda _: None,
    secret_of: tokens.SecretOf = lambda _: None,
    allowed: Callable[[str, str], bool] = lambda cluster, identity: True,
) -> None:
    """Listen on both ports until cancelled, then end all Ray processes too. The certificates are made new in `state/certificates`.

    `ready` is called with the endpoint once both answer; `Endpoint.of` gives what CreateCluster has to return.
    """
    endpoint = Endpoint(clusters, files=certificates.make(state / "certificates"), ports=ports, secret_of=secret_of, allowed=allowed)
    runners = [
        await listen(endpoint.kubernetes(), ports.kubernetes, endpoint.files),
        await listen(endpoint.dashboards(), ports.dashboards, endpoint.files),
    ]
    try:
        ready(endpoint)
        await asyncio.Event().wait()
    finally:
        await asyncio.to_thread(clusters.close)
        for runner in runners:
            await runner.cleanup()


__all__ = ["Endpoint", "Ports", "Target", "listen", "serve"]
