"""A real control plane on the loopback interface: etcd, kube-apiserver, controller manager, scheduler and the KubeRay operator.

Everything of it lies in one folder and ends with `stop`. There is no kubelet: kubelet.py stands in for one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from local import state
from local.cloud.apiserver import REVIEWS
from local.kubernetes import certificates
from tools.kubernetes_binaries import Binaries

Json = dict[str, Any]
STARTED_WITHIN = 120.0
# Which of Kubernetes' users each component is; the controller manager and the scheduler have only what RBAC gives their own.
USERS = {
    "admin": ("admin", "system:masters"),
    "kubelet": ("kubelet", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kuberay": ("kuberay-operator", "system:masters"),
}


class Answer(Exception):
    """The API server said no: its code and its own message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


@dataclass
class Api:
    """The REST interface with one user's token."""

    url: str
    token: str
    authority: Path
    session: requests.Session = field(default_factory=requests.Session)

    def call(self, method: str, path: str, body: object = None, *, kind: str = "application/json") -> Any:
        """One request; the answer as JSON. Raises Answer for anything but success."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}
        data = None if body is None else json.dumps(body)
        self.session.trust_env = False
        got = self.session.request(method, self.url + path, data=data, headers=headers, verify=str(self.authority), timeout=30)
        if got.status_code >= 400:
            try:
                message = got.json().get("message", "")
            except ValueError:
                message = got.text
            raise Answer(got.status_code, message)
        return got.json()

    def get(self, path: str) -> Json:
        found: Json = self.call("GET", path)
        return found

    def items(self, path: str) -> list[Json]:
        found: list[Json] = self.get(path)["items"]
        return found

    def gone(self, path: str) -> bool:
        """Whether nothing answers at this path."""
        try:
            self.get(path)
        except Answer as answer:
            if answer.code == 404:
                return True
            raise
        return False

    def merge(self, path: str, body: Json) -> Json:
        """A merge patch."""
        changed: Json = self.call("PATCH", path, body, kind="application/merge-patch+json")
        return changed

    def apply(self, path: str, body: Json, *, manager: str = "tests", dry_run: bool = False) -> Json:
        """Server-side apply with strict field validation, as the launcher and CDK do it."""
        query = f"?fieldManager={manager}&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        applied: Json = self.call("PATCH", path + query, body, kind="application/apply-patch+yaml")
        return applied

    def delete(self, path: str) -> None:
        with contextlib.suppress(Answer):
            self.call("DELETE", path)


@dataclass
class ControlPlane:
    """A running control plane; `api()` is its administrator."""

    folder: Path
    binaries: Binaries
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=lambda: {name: secrets.token_hex(16) for name in USERS})
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports['api']}"

    @property
    def authority(self) -> Path:
        return self.folder / "certificates" / "authority.pem"

    def api(self, user: str = "admin") -> Api:
        return Api(self.url, self.tokens[user], self.authority)

    def kubeconfig(self, user: str = "admin") -> Path:
        """A kubeconfig file of one user."""
        path = self.folder / f"{user}.kubeconfig"
        if not path.exists():
            authority = base64.b64encode(self.authority.read_bytes()).decode()
            config = {
                "apiVersion": "v1", "kind": "Config", "current-context": "tests",
                "clusters": [{"name": "tests", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
                "users": [{"name": user, "user": {"token": self.tokens[user]}}],
                "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            }  # fmt: skip
            path.touch(mode=0o600)
            path.write_text(json.dumps(config))
        return path

    def start(self) -> None:
        """Start etcd and the API server, then those that talk to it. Raises AssertionError with the end of a log."""
        for name in ("api", "etcd", "peer", "probe"):
            self.ports[name] = _free_port()
        # Where a local cloud may listen later: the API server asks it whose an EKS token is.
        self.ports["cloud"] = _three_free_ports()
        made = certificates.make(self.folder / "certificates")
        self._service_account_key()
        users = [f'{self.tokens[name]},{user},{user},"{group}"' for name, (user, group) in USERS.items()]
        (self.folder / "tokens.csv").touch(mode=0o600)
        (self.folder / "tokens.csv").write_text("\n".join(users) + "\n")
        self._etcd()
        self._apiserver(made)
        wait_for(lambda: self._healthy(), "the API server is ready", self.alive, seconds=STARTED_WITHIN)
        # What the KubeRay chart of the local cloud brings.
        (self.folder / "crds").mkdir()
        (self.folder / "crds" / "kuberay-operator").symlink_to(self.binaries.crds)
        # Before the controllers: the garbage collector learns of new kinds only every half minute.
        for path in sorted(self.binaries.crds.glob("*.yaml")):
            self.kubectl("apply", "--server-side", "-f", str(path))
        wait_for(lambda: not self.api().gone("/apis/ray.io/v1"), "KubeRay's kinds are served", self.alive)
        self._run(
            "kube-controller-manager", self.binaries.controller_manager, f"--kubeconfig={self.kubeconfig('controllers')}",
            "--leader-elect=false", "--secure-port=0", f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            f"--root-ca-file={self.authority}",
            "--use-service-account-credentials=true", "--pvclaimbinder-sync-period=1s",
            # Nodes here have no kubelet that renews a lease.
            "--controllers=*,-node-lifecycle-controller",
        )  # fmt: skip
        self._run(
            "kube-scheduler", self.binaries.scheduler, f"--kubeconfig={self.kubeconfig('scheduler')}", "--leader-elect=false",
            "--secure-port=0",
        )  # fmt: skip

    def start_kuberay(self) -> None:
        """Run KubeRay's operator."""
        self._run(
            "kuberay-operator", self.binaries.kuberay, f"--kubeconfig={self.kubeconfig('kuberay')}", "--metrics-addr=127.0.0.1:0",
            f"--health-probe-bind-address=127.0.0.1:{self.ports['probe']}", "--enable-leader-election=false",
        )  # fmt: skip

    def kubectl(self, *arguments: str, user: str = "admin", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl of CDK's layer."""
        command = ("kubectl", "--kubeconfig", str(self.kubeconfig(user)), *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "KUBECACHEDIR": str(self.folder)})
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def alive(self) -> None:
        """Raises AssertionError, with the end of its log, if a component has ended."""
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} ended with {process.returncode}:\n{self.log(name)}"

    def log(self, name: str) -> str:
        """The last lines that a component wrote."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-25:])

    def stop(self) -> None:
        """End everything, the API server's users first."""
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def _etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self.ports[name]}" for name in ("etcd", "peer"))
        self._run(
            "etcd", self.binaries.etcd, f"--data-dir={self.folder / 'etcd'}", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}", "--unsafe-no-fsync", "--log-level=warn",
        )  # fmt: skip

    def _apiserver(self, made: certificates.Certificates) -> None:
        options = [
            f"--etcd-servers=http://127.0.0.1:{self.ports['etcd']}", "--bind-address=127.0.0.1", f"--secure-port={self.ports['api']}",
            "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16", f"--tls-cert-file={made.chain}",
            f"--tls-private-key-file={made.key}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}", f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--allow-privileged=true", "--profiling=false",
        ]  # fmt: skip
        options += [f"--authentication-token-webhook-config-file={self._webhook()}", "--authentication-token-webhook-version=v1"]
        self._run("kube-apiserver", self.binaries.apiserver, *options)

    def _webhook(self) -> Path:
        """Tokens that are none of ours may be EKS tokens, which the local cloud knows."""
        url = f"http://127.0.0.1:{self.ports['cloud']}/_hyperpod-rl/{REVIEWS}{state.FIRST_CLUSTER}"
        path = self.folder / "webhook.kubeconfig"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "cloud", "users": [{"name": "apiserver", "user": {}}],
            "clusters": [{"name": "cloud", "cluster": {"server": url}}],
            "contexts": [{"name": "cloud", "context": {"cluster": "cloud", "user": "apiserver"}}],
        }))  # fmt: skip
        return path

    def _service_account_key(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        path = self.folder / "accounts.key"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        )

    def _healthy(self) -> bool:
        url = f"{self.url}/readyz"
        try:
            return requests.get(url, headers={"Authorization": f"Bearer {self.tokens['admin']}"}, verify=str(self.authority), timeout=5).ok
        except requests.RequestException:
            return False

    def _run(self, name: str, binary: Path, *options: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                (str(binary), *options), cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            )  # fmt: skip


def wait_for(
    true: Callable[[], object],
    what: str,
    alive: Callable[[], None] = lambda: None,
    *,
    seconds: float = 60.0,
    said: Callable[[], object] = lambda: "",
) -> Any:
    """What the function returns once it is true; asks the system's state, with a limit. Raises AssertionError, with what `said` says."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        alive()
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:.0f} s: {what} {said()}")


@contextlib.contextmanager
def running(folder: Path, binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane for a while."""
    plane = ControlPlane(folder, binaries)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _three_free_ports() -> int:
    """The first of three free ports in a row."""
    while True:
        first = _free_port()
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as held:
            for port in (first, first + 1, first + 2):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
