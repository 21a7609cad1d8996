"""A kubeconfig of our own for each environment: written from what EKS says, never merged into the user's.

One file with one context, since the SageMaker toolkit reads the first file of $KUBECONFIG and its current context only
(toolkit-for-ray-on-sagemaker-ai 1.0.4). It holds no secret: the token comes from `aws eks get-token` at each use.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from config import names
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused, Unreachable
from training import deployed

CREDENTIAL_VARIABLE = "HYPERPOD_RL_EXEC_CREDENTIAL"
# The credential that the launcher holds already, else the command that follows.
_LOGIN = f'if [ -n "${CREDENTIAL_VARIABLE}" ]; then printf %s "${CREDENTIAL_VARIABLE}"; else exec "$@"; fi'
_credentials: dict[Path, tuple[str, float]] = {}
# Several calls of kubectl at once ask for one token, not for one each.
_asking = threading.Lock()


def cache_folder(env: Environment) -> Path:
    """Where the launcher keeps what it can make again: $HYPERPOD_RL_CACHE, else the local cloud's folder, else the user's cache."""
    if chosen := os.environ.get("HYPERPOD_RL_CACHE"):
        return Path(chosen) / env.name
    if env.local:
        return Path(os.environ.get("HYPERPOD_RL_LOCAL") or ROOT / ".local") / "cache" / env.name
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / names.PREFIX / f"{env.name}-{env.account}-{env.region}"


def path(env: Environment) -> Path:
    """The environment's kubeconfig, whether it exists or not."""
    return cache_folder(env) / "kubeconfig"


def ensure(env: Environment) -> Path:
    """The kubeconfig, written now if it is not there or was made for another endpoint or profile. Raises as `refresh` does."""
    deployed.check_endpoint(env)
    try:
        written = json.loads(path(env).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return refresh(env)
    return path(env) if isinstance(written, dict) and written.get("extensions") == _made_for() else refresh(env)


def refresh(env: Environment) -> Path:
    """Ask EKS where the cluster is and write the kubeconfig anew.

    Raises Refused for credentials of another account, Unreachable if there is no such cluster or AWS does not answer.
    """
    aws = deployed.session(env)
    known = deployed.lookup(env, aws)
    cluster = known[names.Parameter.EKS_CLUSTER]
    with deployed.reaching("EKS"):
        answer = deployed.client(env, "eks", aws).describe_cluster(name=cluster)["cluster"]
    if answer.get("status") not in ("ACTIVE", "UPDATING") or not answer.get("endpoint"):
        raise Unreachable(f"EKS cluster {cluster} is {answer.get('status', 'in an unknown state')}; wait until it is ACTIVE")
    server = str(answer["endpoint"])
    if env.local and not deployed.is_loopback(server):
        raise Refused(Problem("EKS endpoint", server, f"environment {env.name} speaks to the local cloud on this machine only",
                              "AWS_ENDPOINT_URL must be the local cloud's"))  # fmt: skip
    text = json.dumps(content(env, cluster=cluster, server=server, authority=answer["certificateAuthority"]["data"]), indent=1)
    target = path(env)
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        _write(target, text)
        _credentials.pop(target, None)
    return target


def content(env: Environment, *, cluster: str, server: str, authority: str) -> dict[str, Any]:
    """A kubeconfig (JSON is YAML) as `aws eks update-kubeconfig` writes it; `authority` is the CA certificate in base64."""
    beside = Path(sys.executable).parent / "aws"
    variables = [{"name": name, "value": os.environ[name]} for name in ("AWS_PROFILE",) if os.environ.get(name)]
    aws = str(beside) if beside.is_file() else shutil.which("aws") or "aws"
    get_token = [aws, "--region", env.region, "eks", "get-token", "--cluster-name", cluster, "--output", "json"]
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "sh",
        "args": ["-c", _LOGIN, "sh", *get_token],
        "env": variables or None,
        "interactiveMode": "IfAvailable",
    }
    return {
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "extensions": _made_for(), "current-context": cluster,
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": cluster, "user": {"exec": login}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster, "namespace": env.ray_cluster.namespace}}],
    }  # fmt: skip


def credential(config: Path) -> dict[str, str]:
    """A variable for kubectl's environment that saves it `aws eks get-token`, which takes longer than the call itself.

    The token is asked for once and used until a minute before it ends; it stays in memory. Empty if there is none: kubectl then
    asks itself, and says what is wrong.
    """
    with _asking:
        return _credential(config)


def _credential(config: Path) -> dict[str, str]:
    token, until = _credentials.get(config, ("", 0.0))
    if time.time() < until - 60:
        return {CREDENTIAL_VARIABLE: token}
    try:
        login = json.loads(config.read_text(encoding="utf-8"))["users"][0]["user"]["exec"]
        extra = {item["name"]: item["value"] for item in login.get("env") or []}
        command = (login["command"], *login["args"])
        variables = {key: value for key, value in os.environ.items() if key != CREDENTIAL_VARIABLE} | extra
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=True, stdin=subprocess.DEVNULL)
        end = datetime.fromisoformat(json.loads(done.stdout)["status"]["expirationTimestamp"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, subprocess.SubprocessError):
        return {}
    _credentials[config] = (done.stdout.strip(), end.timestamp())
    return {CREDENTIAL_VARIABLE: done.stdout.strip()}


def _made_for() -> list[dict[str, Any]]:
    """What the content depends on besides the environment; kubectl and the toolkit pass over extensions."""
    variables = {name: os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE")}
    return [{"name": names.PREFIX, "extension": variables}]


def _write(target: Path, text: str) -> None:
    """Whole or not at all, readable by the user alone."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".kubeconfig-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
