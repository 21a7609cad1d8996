"""A real Ray on this machine, and in front of it what the Ray endpoint operator shows to the unmodified SageMaker toolkit.

The Kubernetes call that gives a connection URL, the exchange of its token for a cookie, and a TLS proxy that asks for that
cookie; `cut` ends every open connection, `expire` makes every cookie worthless.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from local.ray.processes import interpreter


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def real_ray(*, cpus: int = 2, gpus: int = 4) -> Iterator[str]:
    """A Ray head of processes that claims GPUs; the dashboard's address. Ends them all."""
    folder = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))  # Unix sockets allow 107 characters
    port, dashboard, agent = free_port(), free_port(), free_port()
    python = interpreter(folder)
    command = [
        str(python), str(python.with_name("ray")), "start", "--head", "--block", f"--num-cpus={cpus}", f"--num-gpus={gpus}",
        "--node-ip-address=127.0.0.1", f"--port={port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}", "--disable-usage-stats", "--object-store-memory=100000000",
    ]  # fmt: skip
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with (folder / "start.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{dashboard}"
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError((folder / "start.log").read_text())
            # The dashboard hands jobs to the head's agent, which comes up after it.
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{address}/api/jobs/", timeout=2),
                urllib.request.urlopen(f"http://127.0.0.1:{agent}/api/local_raylet_healthz", timeout=2),
            ):
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("Ray did not start:\n" + (folder / "start.log").read_text())
        yield address
    finally:
        group = _descendants(process.pid)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for pid in group:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(5)
        shutil.rmtree(folder, ignore_errors=True)


def _descendants(root: int) -> list[int]:
    """The process and everything that it started, children of children too."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@dataclass
class Endpoint:
    """The running stand-in. `connections` counts how often the toolkit asked for a connection."""

    kubernetes: str
    certificate: Path
    loop: asyncio.AbstractEventLoop
    sockets: set[Any] = field(default_factory=set)
    cookies: set[str] = field(default_factory=set)
    connections: int = 0
    identities: list[str] = field(default_factory=list)

    def cut(self) -> int:
        """End every open websocket without a word of farewell; how many there were."""
        found = list(self.sockets)
        for transport in found:
            self.loop.call_soon_threadsafe(transport.abort)
        return len(found)

    def expire(self) -> None:
        """As after six hours."""
        self.cookies.clear()


@contextlib.contextmanager
def endpoint(dashboard: str, folder: Path) -> Iterator[Endpoint]:
    """Serve the stand-in in a thread until the end of the block."""
    certificate, key = _certificate(folder)
    ready: list[Endpoint] = []
    started, stop = threading.Event(), asyncio.Event()

    def work() -> None:
        asyncio.run(_serve(dashboard, certificate, key, ready, started, stop))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield ready[0]
    finally:
        ready[0].loop.call_soon_threadsafe(stop.set)
        thread.join(10)


async def _serve(
    dashboard: str, certificate: Path, key: Path, ready: list[Endpoint], started: threading.Event, stop: asyncio.Event
) -> None:
    from aiohttp import ClientSession, WSMsgType, web

    ports = {"kubernetes": free_port(), "proxy": free_port()}
    state = Endpoint(f"http://127.0.0.1:{ports['kubernetes']}", certificate, asyncio.get_running_loop())
    tokens: set[str] = set()

    async def connect(request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("kind") != "RayDashboardConnection" or request.match_info["namespace"] != body["metadata"]["namespace"]:
            return web.json_response({"message": "no such thing"}, status=404)
        state.connections += 1
        state.identities.append(request.headers.get("Authorization", ""))
        tokens.add(token := secrets.token_hex(8))
        url = f"https://localhost:{ports['proxy']}/bearer-auth?token={token}"
        return web.json_response({**body, "status": {"connectionUrl": url}}, status=201)

    async def exchange(request: web.Request) -> web.Response:
        if request.query.get("token") not in tokens:
            return web.Response(status=401)
        state.cookies.add(cookie := secrets.token_hex(8))
        answer = web.Response(status=302, headers={"Location": "/"})
        answer.set_cookie("ray_session", cookie, httponly=True, secure=True)
        return answer

    async def forward(request: web.Request) -> web.StreamResponse:
        if request.cookies.get("ray_session") not in state.cookies:
            return web.Response(status=401, text="no session")
        target = dashboard + request.path_qs
        async with ClientSession() as upstream:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                near = web.WebSocketResponse()
                await near.prepare(request)
                state.sockets.add(request.transport)
                try:
                    async with upstream.ws_connect(target) as far:
                        async for message in far:
                            if message.type != WSMsgType.TEXT:
                                break
                            await near.send_str(message.data)
                finally:
                    state.sockets.discard(request.transport)
                await near.close()
                return near
            kept = {name: value for name, value in request.headers.items() if name.lower() in ("content-type", "accept")}
            async with upstream.request(request.method, target, data=await request.read(), headers=kept) as reply:
                return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)

    kubernetes, proxy = web.Application(), web.Application(client_max_size=2**30)
    path = "/apis/connection.access.sagemaker.amazonaws.com/v1alpha1/namespaces/{namespace}/raydashboardconnections"
    kubernetes.router.add_post(path, connect)
    proxy.router.add_get("/bearer-auth", exchange)
    proxy.router.add_route("*", "/{path:.*}", forward)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    runners = []
    for name, app, context in (("kubernetes", kubernetes, None), ("proxy", proxy, tls)):
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", ports[name], ssl_context=context).start()
        runners.append(runner)
    ready.append(state)
    started.set()
    await stop.wait()
    for runner in runners:
        await runner.cleanup()


def kubeconfig(server: str, *, aws_endpoint: str) -> str:
    """As the launcher writes it, with a token from a shell instead of from AWS."""
    made_for = {"AWS_ENDPOINT_URL": aws_endpoint, "AWS_PROFILE": ""}
    credential = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "k8s-aws-v1.test"}}
    login = {"apiVersion": credential["apiVersion"], "command": "echo", "args": [json.dumps(credential)], "interactiveMode": "Never"}
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "extensions": [{"name": "hyperpod-rl", "extension": made_for}],
        "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {"exec": login}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    })  # fmt: skip


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost and its key, good for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
    )
    builder = builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + datetime.timedelta(days=1))
    signed = builder.add_extension(names, critical=False).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return certificate, private
