"""Where the local cloud keeps what it needs, and on which ports it listens."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from config.problems import Problem, Refused

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "HYPERPOD_RL_LOCAL"
BASE_PORT = "HYPERPOD_RL_LOCAL_PORT"
# A Unix socket's path takes at most 107 characters (`man 7 unix`). Behind the folder stands
# `/<8 digits of the cluster>/t/session_<date>_<time>_<microseconds>_<process id of up to 7 digits>/sockets/<name>`,
# and the longest name is that of a part of Ray's dashboard, `dash_MetricsHead`; a few more leave room for the next Ray.
_LONGEST_SOCKET = len("dash_MetricsHead") + 3
_LONGEST_RAY_FOLDER = 107 - len("/d4a560d1/t/session_2026-11-29_21-07-33_123456_4194304/sockets/") - _LONGEST_SOCKET
# A path that a shell takes as one word, whatever the locale: Ray builds command lines out of paths.
_PLAIN = re.compile(r"[A-Za-z0-9/._+@%-]+")


@dataclass(frozen=True)
class Ports:
    """What the daemon listens on, all on 127.0.0.1: the AWS endpoint, the Kubernetes endpoint, the dashboards' TLS proxy."""

    cloud: int
    kubernetes: int
    dashboards: int


@dataclass(frozen=True)
class State:
    """What a running daemon writes to state.json."""

    pid: int
    # Start time of the process in clock ticks since boot: a process id alone may belong to another process by now.
    started: int
    ports: Ports


def folder() -> Path:
    """The state folder; not made yet."""
    return Path(os.environ.get(FOLDER) or ROOT / ".local").resolve()


# Environment `local`'s; its files carry no name, since most people have no other one here.
FIRST_CLUSTER = "hyperpod-rl-local"


def of_cluster(name: str, cluster: str) -> str:
    """Name, below the state folder, of what belongs to one EKS cluster: two environments in one local cloud share nothing.

    A cluster that is no environment's has the first one's place.
    """
    own = cluster.startswith("hyperpod-rl-") and cluster != FIRST_CLUSTER
    return f"{name}.{cluster}" if own else name


def is_plain(path: Path) -> bool:
    """Whether a path has nothing that a shell or another locale could take otherwise (blanks, quotes, umlauts)."""
    return _PLAIN.fullmatch(str(path)) is not None


def ray_folder(below: Path | None = None) -> Path:
    """Ray's folder below a state folder (this one's), or a short one in /tmp where that path is too long or not plain.

    In /tmp itself, not in $TMPDIR: every command and the daemon must find the same one, and theirs may differ. Its name holds the
    user, who may share the checkout with others.
    """
    inside = (below or folder()) / "ray"
    if is_plain(inside) and len(str(inside)) <= _LONGEST_RAY_FOLDER:
        return inside
    digest = hashlib.sha256(b"%d %s" % (os.getuid(), os.fsencode(inside))).hexdigest()
    return Path("/tmp") / f"hyperpod-rl-{digest[:8]}"  # noqa: S108 - taken only where it is this user's own (`problems`)


def problems() -> list[Problem]:
    """Why the folders that the local cloud needs cannot be used: the state folder, and Ray's where that lies elsewhere."""
    found = []
    if (why := _unusable(folder())) is not None:
        found.append(Problem("state folder", str(folder()), why, f"set {FOLDER} to a folder that you may write to"))
    rays = ray_folder()
    if not rays.is_relative_to(folder()):
        why = _unusable(rays)
        # /tmp is everybody's: what somebody else has put there under this name is neither used nor removed.
        if why is None and rays.is_symlink():
            why = "it is a link"
        elif why is None and rays.exists() and rays.stat().st_uid != os.getuid():
            why = "it belongs to another user"
        if why is not None:
            fix = f"remove it, or set {FOLDER} to a folder of at most {_LONGEST_RAY_FOLDER - len('/ray')} plain characters (no blanks)"
            found.append(Problem("folder of Ray", str(rays), why, fix))
    return found


def _unusable(path: Path) -> str | None:
    """Why no files can be made in a folder, which may not exist yet; None where they can."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is no folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"you may not write to {there}"


def read() -> State | None:
    """The state of the last daemon, whether it still runs or not; None when there is none."""
    try:
        found = json.loads((folder() / "state.json").read_text(encoding="utf-8"))
        return State(found["pid"], found["started"], Ports(**found["ports"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(state: State) -> None:
    """Write state.json whole or not at all."""
    folder().mkdir(parents=True, exist_ok=True)
    temporary = folder() / f"state.json.{os.getpid()}"
    temporary.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    temporary.replace(folder() / "state.json")


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (field 22 of /proc/<pid>/stat); None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def base_port() -> int | None:
    """The first of three ports that $HYPERPOD_RL_LOCAL_PORT names; None when it is not set. Raises Refused."""
    base = os.environ.get(BASE_PORT, "").strip()
    if base and not (base.isdecimal() and 1024 <= int(base) <= 65533):
        raise Refused(Problem(BASE_PORT, base, "is no port from 1024 to 65533", "leave it unset to have free ports chosen"))
    return int(base) if base else None


def choose_ports() -> Ports:
    """Free ports, or three that follow the base port where one is given. Raises Refused when those cannot be used."""
    base = base_port()
    wanted = [base + n for n in range(3)] if base else [0, 0, 0]
    held = []
    try:
        for port in wanted:
            listener = socket.socket()
            held.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                problem = Problem(BASE_PORT, str(base), f"port {port} cannot be used: {error.strerror}", "name another, or unset it")
                raise Refused(problem) from error
        first, second, third = (listener.getsockname()[1] for listener in held)
        return Ports(first, second, third)
    finally:
        for listener in held:
            listener.close()
