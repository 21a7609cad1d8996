"""Kubernetes through the pinned `kubectl`: what the launcher applies, reads and deletes, with the user's own identity."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.environment import Environment
from config.problems import Failed, Problem, Refused, Unreachable
from training import kubeconfig

FIELD_MANAGER = "hyperpod-rl"
REQUEST_TIMEOUT_SECONDS = 30
# What kubectl and client-go say when the API server was not reached, as against when it answered "no".
_UNREACHED = re.compile(
    r"Unable to connect|connection refused|i/o timeout|no such host|getting credentials|x509:|TLS handshake|context deadline exceeded"
    r"|EOF$|network is unreachable|connection reset|server is currently unable|the server has asked for the client to provide credentials"
    r"|Unauthorized|couldn't get current server API group list|service unavailable",
    re.IGNORECASE | re.MULTILINE,
)
_MISSING = re.compile(r"\(NotFound\)|not found$", re.MULTILINE)
_NO_KIND = re.compile(r"the server doesn't have a resource type|no matches for kind|could not find the requested resource")


# What kubectl says where a field belongs to another manager
# (https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts): `conflict with "x" using ray.io/v1: .spec.a`, or
# `conflicts with "x":` and a list of fields. Hints of several lines follow.
_CONFLICT = re.compile(r"Apply failed with \d+ conflicts?\b[^:]*: ")
_MANAGER = re.compile(r'conflicts? with "([^"]*)"')
_FIELD = re.compile(r"(?:: |- )(\.[A-Za-z][^\s;]*)")


class Rejected(Failed):
    """The API server answered and refused."""


@dataclass(frozen=True)
class Kubectl:
    """One environment's cluster. `execute` runs a command line; tests give their own."""

    environment: Environment
    execute: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run

    def run(self, *arguments: str, timeout: float = REQUEST_TIMEOUT_SECONDS) -> str:
        """Run kubectl and return its standard output.

        A cluster made anew has another address than the kubeconfig that lies there, so that file is renewed once.
        Raises Unreachable or Rejected.
        """
        config = kubeconfig.ensure(self.environment)
        try:
            return self._once(config, arguments, timeout)
        except Unreachable:
            before = config.read_bytes()
            if kubeconfig.refresh(self.environment).read_bytes() == before:
                raise
            return self._once(config, arguments, timeout)

    def _once(self, config: Path, arguments: Sequence[str], timeout: float) -> str:
        command = (kubectl(), "--kubeconfig", str(config), f"--request-timeout={round(timeout)}s", *arguments)
        try:
            variables = {**os.environ, **kubeconfig.credential(config)}
            done = self.execute(
                command, capture_output=True, text=True, timeout=timeout + 10, stdin=subprocess.DEVNULL, check=False, env=variables
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"the Kubernetes API server of environment {self.environment.name} did not answer within {timeout:.0f} s"
            ) from None
        if done.returncode == 0:
            return done.stdout
        said = _sentence(done.stderr)
        if _UNREACHED.search(done.stderr):
            raise Unreachable(f"the Kubernetes API server of environment {self.environment.name} cannot be reached: {said}")
        raise Rejected(said or f"kubectl ended with code {done.returncode}")

    def apply(self, folder: Path) -> None:
        """Server-side apply of every file below `folder`, byte for byte as it lies there; of none if the API server refuses one of them.

        Raises Refused if fields belong to another field manager, Rejected with all else that is wrong.
        """
        words = ("--server-side", f"--field-manager={FIELD_MANAGER}", "--recursive", "-f", _one_file_name(folder))
        # kubectl goes on after a file that was refused: several are asked about before the first is applied.
        asked = (["--dry-run=server"],) if len(list(folder.rglob("*.yaml"))) > 1 else ()
        try:
            for more in (*asked, []):
                self.run("apply", *words[:2], "--force-conflicts=false", *more, *words[2:], timeout=60)
        except Rejected as error:
            if (found := _conflict(str(error), folder)) is not None:
                raise Refused(found) from None
            raise

    def get(self, kind: str, *, namespace: str, name: str) -> dict[str, Any] | None:
        """One object; None if it, its namespace or its kind is not there."""
        try:
            text = self.run("get", kind, name, "--namespace", namespace, "--output", "json")
        except Rejected as error:
            if _MISSING.search(str(error)) or _NO_KIND.search(str(error)):
                return None
            raise
        found: dict[str, Any] = json.loads(text)
        return found

    def list(self, kind: str, *, namespace: str, selector: str = "") -> Sequence[dict[str, Any]]:
        """All objects of a kind in a namespace; empty if the kind is not there."""
        arguments = ["get", kind, "--namespace", namespace, "--output", "json", *(["--selector", selector] if selector else [])]
        try:
            items: list[dict[str, Any]] = json.loads(self.run(*arguments))["items"]
        except Rejected as error:
            if _NO_KIND.search(str(error)):
                return []
            raise
        return items

    def delete(self, kind: str, *, namespace: str, name: str) -> None:
        """Ask for the deletion of one object; no error if it is gone. Returns at once."""
        try:
            self.run("delete", kind, name, "--namespace", namespace, "--ignore-not-found", "--wait=false")
        except Rejected as error:
            if not _NO_KIND.search(str(error)):
                raise

    def delete_selected(self, kinds: str, *, namespace: str, selector: str) -> None:
        """Ask for the deletion of all objects with these labels; no error if there are none. Returns at once."""
        self.run("delete", kinds, "--namespace", namespace, "--selector", selector, "--ignore-not-found", "--wait=false")


def _one_file_name(path: Path) -> str:
    """A path for kubectl's `-f`, which reads several out of one word, separated by commas, as a line of CSV."""
    text = str(path)
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def kubectl() -> str:
    """The kubectl beside this Python, else on PATH. Raises Unreachable if there is none."""
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("kubectl")
    if found is None:
        raise Unreachable("kubectl is not installed; `make setup` puts the pinned one beside Python")
    return found


def _conflict(said: str, folder: Path) -> Problem | None:
    """kubectl's many lines about a conflict as one problem; None if it is about something else."""
    if _CONFLICT.search(said) is None:
        return None
    managers, fields = dict.fromkeys(_MANAGER.findall(said)), list(dict.fromkeys(_FIELD.findall(said)))
    more = f" and {len(fields) - 5} more" if len(fields) > 5 else ""
    who = " and ".join(f"`{manager}`" for manager in managers) or "another field manager"
    fix = (
        f"take them over with `kubectl apply --server-side --force-conflicts --field-manager={FIELD_MANAGER} --recursive -f {folder}`,"
        " then run this again; or let go of them there"
    )
    return Problem("manifests", str(folder), f"{who} owns {', '.join(fields[:5]) or 'fields of these objects'}{more} on the cluster", fix)


def _sentence(text: str) -> str:
    """kubectl's error output on one line: without warnings, repetitions, and client-go's own log where there is anything else."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning:")]
    said = [line for line in lines if not re.match(r"[EWI]\d{4} ", line)] or lines
    kept = dict.fromkeys(re.sub(r"^(error|Error from server): ?", "", line) for line in said)
    return "; ".join(line.rstrip(".") for line in kept)[:2000]
