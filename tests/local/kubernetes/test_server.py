"""The HTTPS endpoint, spoken to over TLS as kubectl and the toolkit do."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession, TCPConnector

from local.kubernetes import certificates, kubeconfig, releases
from local.kubernetes.charts import Release
from local.kubernetes.cluster import Cluster, Clusters
from local.kubernetes.server import Endpoint, listen
from local.ray.processes import free_port
from local.ray.sessions import Sessions
from tests.local.kubernetes.conftest import config_map, install_kuberay, ray_cluster
from tests.local.kubernetes.test_tokens import KEY, secret_of, token

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@dataclass(frozen=True)
class TwoPorts:
    kubernetes: int
    dashboards: int


@dataclass
class Server:
    endpoint: Endpoint
    session: ClientSession

    async def call(self, method: str, path: str, body: Any = None, *, bearer: str | None = None, **headers: str) -> tuple[int, Any]:
        url, _ = self.endpoint.of("demo")
        sent = {"Authorization": f"Bearer {token() if bearer is None else bearer}", "Content-Type": "application/json", **headers}
        sent = {name.replace("_", "-"): value for name, value in sent.items() if value}
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        async with self.session.request(method, url + path, data=data, headers=sent) as reply:
            return reply.status, await reply.json()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


def over_tls(clusters: Clusters, files: certificates.Certificates, work: Callable[[Server], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        ports = TwoPorts(free_port("127.0.0.1"), free_port("127.0.0.1"))
        endpoint = Endpoint(clusters, files=files, ports=ports, secret_of=secret_of, **settings)
        runner = await listen(endpoint.kubernetes(), ports.kubernetes, files)
        trust = ssl.create_default_context(cafile=files.bundle)
        try:
            async with ClientSession(connector=TCPConnector(ssl=trust)) as session:
                await work(Server(endpoint, session))
        finally:
            await runner.cleanup()

    asyncio.run(run())


def test_server_side_apply_over_http(clusters: Clusters, cluster: Cluster, files: certificates.Certificates) -> None:
    async def work(server: Server) -> None:
        path = f"{CONFIG_MAPS}/settings?fieldManager=launcher"
        code, made = await server.call("PATCH", path, yaml.safe_dump(config_map(a="1", b="2")), **APPLY)
        assert (code, made["data"]) == (201, {"a": "1", "b": "2"})
        code, made = await server.call("PATCH", path, config_map(a="1"), **APPLY)
        assert (code, made["data"]) == (200, {"a": "1"})
        code, status = await server.call("PATCH", f"{CONFIG_MAPS}/settings?fieldManager=person", config_map(a="2"), **APPLY)
        assert (code, status["kind"], status["reason"]) == (409, "Status", "Conflict")
        code, made = await server.call(
            "PATCH", f"{CONFIG_MAPS}/settings?fieldManager=person&force=true&dryRun=All", config_map(a="2"), **APPLY
        )
        assert (code, made["data"]) == (200, {"a": "2"})
        assert cluster.get("ConfigMap", "default", "settings")["data"] == {"a": "1"}
        code, status = await server.call("PATCH", f"{CONFIG_MAPS}/settings", config_map(a="2"), **APPLY)
        assert (code, status["message"]) == (400, "fieldManager: Required value: is required for apply patch")

    over_tls(clusters, files, work)


def test_create_read_replace_delete(clusters: Clusters, cluster: Cluster, files: certificates.Certificates) -> None:
    async def work(server: Server) -> None:
        assert (await server.call("POST", CONFIG_MAPS, config_map(a="1")))[0] == 201
        assert (await server.call("POST", CONFIG_MAPS, config_map(a="1")))[1]["reason"] == "AlreadyExists"
        _, found = await server.call("GET", f"{CONFIG_MAPS}/settings")
        found["data"] = {"a": "2"}
        assert (await server.call("PUT", f"{CONFIG_MAPS}/settings", found))[1]["data"] == {"a": "2"}
        _, listed = await server.call("GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Dsettings")
        assert (listed["kind"], [item["data"] for item in listed["items"]]) == ("ConfigMapList", [{"a": "2"}])
        _, table = await server.call("GET", CONFIG_MAPS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")
        assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert table["rows"][0]["cells"][:2] == ["settings", 1]
        assert (await server.call("DELETE", f"{CONFIG_MAPS}/settings"))[1]["status"] == "Success"
        code, gone = await server.call("GET", f"{CONFIG_MAPS}/settings")
        assert (code, gone["message"]) == (404, 'configmaps "settings" not found')

    over_tls(clusters, files, work)


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", CONFIG_MAPS, "{", 400),
        ("POST", CONFIG_MAPS, "[]", 400),
        ("POST", CONFIG_MAPS, {**config_map(), "kind": "Secret"}, 400),
        ("POST", CONFIG_MAPS, config_map(namespace="kube-system"), 400),
        ("POST", CONFIG_MAPS, {**config_map(), "dat": {}}, 422),
        ("POST", f"{CONFIG_MAPS}/settings", config_map(), 405),
        ("PATCH", f"{CONFIG_MAPS}/none?fieldManager=x", {}, 415),
        ("GET", "/api/v1/namespaces/default/gadgets", None, 404),
        ("GET", "/apis/none.example.org/v1", None, 404),
        ("GET", "/anything", None, 404),
        ("GET", f"{CONFIG_MAPS}?labelSelector=a%3Db%3Dc", None, 400),
        ("GET", "/api/v1/namespaces/default/pods/none/log", None, 404),
        ("DELETE", "/api/v1/namespaces/kube-system", None, 403),
    ],
)
def test_bad_requests_get_a_status(
    clusters: Clusters, cluster: Cluster, files: certificates.Certificates, method: str, path: str, body: Any, code: int
) -> None:
    async def work(server: Server) -> None:
        got, status = await server.call(method, path, body)
        assert (got, status["kind"], status["status"], status["code"]) == (code, "Status", "Failure", code)
        assert status["message"]
        assert "Traceback" not in status["message"]

    over_tls(clusters, files, work)


def test_who_may_come_in(clusters: Clusters, cluster: Cluster, files: certificates.Certificates) -> None:
    async def work(server: Server) -> None:
        assert (await server.call("GET", "/api/v1/namespaces"))[0] == 200
        for bearer in ("", "abc", token("other"), token(secret="wrong")):
            code, status = await server.call("GET", "/api/v1/namespaces", bearer=bearer)
            assert (code, status["reason"]) == (401, "Unauthorized")
        assert (await server.call("GET", "/version", bearer=""))[1]["minor"] == "34"

    over_tls(clusters, files, work)


def test_an_identity_without_an_access_entry_is_forbidden(clusters: Clusters, cluster: Cluster, files: certificates.Certificates) -> None:
    async def work(server: Server) -> None:
        code, status = await server.call("GET", "/api/v1/namespaces")
        assert (code, status["reason"]) == (403, "Forbidden")
        assert KEY in status["message"]

    over_tls(clusters, files, work, allowed=lambda cluster, identity: False)


def test_a_watch_tells_what_happens(clusters: Clusters, cluster: Cluster, files: certificates.Certificates) -> None:
    async def work(server: Server) -> None:
        cluster.apply([config_map("first")], manager="test")
        url, _ = server.endpoint.of("demo")
        watched = f"{url}{CONFIG_MAPS}?watch=true&timeoutSeconds=20"
        async with server.session.get(watched, headers={"Authorization": f"Bearer {token()}"}) as reply:
            seen = [json.loads(await reply.content.readline())]
            await asyncio.to_thread(cluster.apply, [config_map("second", a="1")], manager="test")
            await asyncio.to_thread(cluster.apply, [config_map("second", a="2")], manager="test")
            await asyncio.to_thread(cluster.delete, [config_map("first")])
            seen += [json.loads(await reply.content.readline()) for _ in range(3)]
        told = [(event["type"], event["object"]["metadata"]["name"]) for event in seen]
        assert told == [("ADDED", "first"), ("ADDED", "second"), ("MODIFIED", "second"), ("DELETED", "first")]
        version = seen[1]["object"]["metadata"]["resourceVersion"]
        async with server.session.get(f"{watched}&resourceVersion={version}", headers={"Authorization": f"Bearer {token()}"}) as reply:
            later = [json.loads(await reply.content.readline()) for _ in range(2)]
        assert [event["type"] for event in later] == ["MODIFIED", "DELETED"]

    over_tls(clusters, files, work)


def test_a_watch_with_a_selector_tells_when_an_object_leaves_it(
    clusters: Clusters, cluster: Cluster, files: certificates.Certificates
) -> None:
    async def work(server: Server) -> None:
        value = config_map()
        value["metadata"]["labels"] = {"team": "rl"}
        cluster.apply([value], manager="test")
        url, _ = server.endpoint.of("demo")
        headers = {"Authorization": f"Bearer {token()}"}
        async with server.session.get(f"{url}{CONFIG_MAPS}?watch=true&labelSelector=team%3Drl", headers=headers) as reply:
            first = json.loads(await reply.content.readline())
            await asyncio.to_thread(cluster.apply, [config_map("other")], manager="test")
            await asyncio.to_thread(cluster.apply, [config_map()], manager="test")
            second = json.loads(await reply.content.readline())
        assert [(e["type"], e["object"]["metadata"]["name"]) for e in (first, second)] == [("ADDED", "settings"), ("DELETED", "settings")]

    over_tls(clusters, files, work)


CONNECTIONS = "/apis/connection.access.sagemaker.amazonaws.com/v1alpha1/namespaces/default/raydashboardconnections"


def operator(cluster: Cluster) -> None:
    values = {"region": "us-west-2", "manager": {"enableEndpointsByDefault": "false"}}
    release = Release("hyperpod-ray-endpoint-operator", "hyperpod-ray", "hyperpod-ray-endpoint-operator", values=values)
    releases.install(cluster, release, wait=False, create_namespace=True)


def test_a_connection_needs_operator_cluster_switch_and_creator(
    clusters: Clusters, cluster: Cluster, files: certificates.Certificates
) -> None:
    ask = {"metadata": {"generateName": "skyrl-visgym-"}, "spec": {"clusterName": "skyrl-visgym"}}
    path = "/apis/ray.io/v1/namespaces/default/rayclusters"

    async def work(server: Server) -> None:
        install_kuberay(cluster)
        assert (await server.call("POST", CONNECTIONS, ask))[0] == 404
        operator(cluster)
        assert (await server.call("POST", CONNECTIONS, ask))[1]["message"] == 'rayclusters.ray.io "skyrl-visgym" not found'
        await server.call("POST", path, ray_cluster())
        code, status = await server.call("POST", CONNECTIONS, ask)
        assert (code, "remote endpoints are off" in status["message"]) == (403, True)
        patch = {"metadata": {"annotations": {"access.sagemaker.amazonaws.com/enabled": "true"}}}
        await server.call("PATCH", f"{path}/skyrl-visgym", patch, Content_Type="application/merge-patch+json")
        code, made = await server.call("POST", CONNECTIONS, ask)
        assert code == 201
        assert made["status"]["connectionUrl"].startswith(f"https://127.0.0.1:{server.endpoint.ports.dashboards}/bearer-auth?token=")
        assert (await server.call("POST", CONNECTIONS, {"spec": {}}))[0] == 422
        cluster.delete([ray_cluster()])
        cluster.apply([ray_cluster(**{"access.sagemaker.amazonaws.com__enabled": "true"})], manager="somebody-else")
        code, status = await server.call("POST", CONNECTIONS, ask)
        assert (code, f"private and {KEY} did not create it" in status["message"]) == (403, True)
        public = {"metadata": {"annotations": {"access.sagemaker.amazonaws.com/access-strategy": "ray-access-strategy-public"}}}
        await server.call("PATCH", f"{path}/skyrl-visgym", public, Content_Type="application/merge-patch+json")
        assert (await server.call("POST", CONNECTIONS, ask))[0] == 201

    over_tls(clusters, files, work, sessions=Sessions())


def test_certificates(files: certificates.Certificates) -> None:
    assert files.key.stat().st_mode & 0o077 == 0
    assert files.authority.read_text() in files.bundle.read_text()
    assert "PRIVATE" not in files.bundle.read_text()


def test_the_kubeconfig_is_the_one_of_the_aws_cli(tmp_path: Path) -> None:
    content = kubeconfig.kubeconfig("demo", endpoint="https://127.0.0.1:1/clusters/demo", authority_data="Q0E=", region="us-west-2")
    kubeconfig.write(tmp_path / "deep" / "kubeconfig", content)
    written = yaml.safe_load((tmp_path / "deep" / "kubeconfig").read_text())
    assert (tmp_path / "deep" / "kubeconfig").stat().st_mode & 0o077 == 0
    user = written["users"][0]["user"]["exec"]
    assert user["command"] == "aws"
    assert " ".join(user["args"]) == "--region us-west-2 eks get-token --cluster-name demo --output json"
    assert written["current-context"] == written["contexts"][0]["name"] == "arn:aws:eks:us-west-2:000000000000:cluster/demo"
