"""Ray's processes: started as children of the daemon, found again by a mark in their environment, ended exactly.

`ray stop` is never used: it would end the Ray of everybody on this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local.state import is_plain

# Every process below a pod inherits these two, Ray's workers and the jobs' drivers too.
FOLDER_MARK = "HYPERPOD_RL_RAY_FOLDER"
POD_MARK = "HYPERPOD_RL_RAY_POD"
STARTED = "Ray runtime started."
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What `ray start --block` prints of each part of Ray that has died, and the line that ends a Python traceback.
_DIED = re.compile(r" -- +(\w+) +\[(exit code=-?\d+)\]")
_ERROR = re.compile(r"^[A-Za-z_.]*(?:Error|Exception): \S.*", re.M)
# The child dies with the thread that started it (prctl(2), PR_SET_PDEATHSIG), and Ray's processes die with the child.
_LAUNCH = (
    "import ctypes,os,sys;parent=int(sys.argv[1]);ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "os.getppid()==parent or sys.exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)


@dataclass
class RayNode:
    """The process tree of one Ray pod. `folder` holds its temporary folder and its log, and goes with it."""

    pod: str
    folder: Path
    address: str
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    ready: bool = False
    start_after: float = 0.0
    started_at: float = 0.0
    agent_port: int = 0
    dashboard_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """What `ray start --block` printed."""
        return self.folder / "ray.log"

    @property
    def scratch(self) -> Path:
        """The pod's $TMPDIR: short, and gone with the pod."""
        return self.folder / "tmp"

    @property
    def temporary(self) -> Path:
        """Ray's --temp-dir."""
        return self.folder / "t"

    def last_words(self) -> str:
        """Why the node ended, as far as it said so: which of Ray's processes died and the first error that was printed, or the last line.

        Without colours, at most 300 characters. The first error, because a part that fails (the dashboard) takes others with it.
        """
        try:
            text = _COLOUR.sub("", self.log.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return ""
        died = [f"{name} ended with {code.replace('=', ' ')}" for name, code in _DIED.findall(text)]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        why = _ERROR.findall(text)[:1] or (lines[-1:] if not died else [])
        return "; ".join([*died, *why])[:300]

    def alive(self) -> bool:
        """Whether `ray start --block` runs."""
        return self.process is not None and self.process.poll() is None

    def has_started(self) -> bool:
        """Whether Ray said that this node has joined."""
        try:
            return STARTED in self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False


def interpreter(folder: Path) -> Path:
    """This Python, by a path that needs no quotes: through a link in `folder` where its own has blanks, quotes or umlauts in it.

    Ray starts its workers with `bash -c "exec <interpreter> ..."` and does not quote that one word
    (https://github.com/ray-project/ray/blob/ray-2.57.0/python/ray/_private/runtime_env/context.py).
    """
    python = Path(sys.executable)
    if is_plain(python):
        return python
    link = folder / "python"
    link.unlink(missing_ok=True)
    link.symlink_to(python.parent.parent)
    return link / python.parent.name / python.name


def start(node: RayNode, arguments: Sequence[str], environment: Mapping[str, str], *, root: Path) -> None:
    """Start `ray` with these arguments. To be called from one thread that lives as long as the processes shall."""
    shutil.rmtree(node.temporary, ignore_errors=True)
    node.temporary.mkdir(parents=True, exist_ok=True)
    node.scratch.mkdir(exist_ok=True)
    node.environment = {**environment, FOLDER_MARK: str(root), POD_MARK: node.pod}
    python = interpreter(node.folder)
    command = [sys.executable, "-S", "-c", _LAUNCH, str(os.getpid()), str(python), str(python.with_name("ray")), *arguments]
    with contextlib.suppress(FileNotFoundError):  # as `kubectl logs --previous`
        node.log.replace(node.log.with_suffix(".previous.log"))
    with node.log.open("wb") as log:
        node.process = subprocess.Popen(
            command, env=node.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            cwd=node.folder, start_new_session=True,
        )  # fmt: skip
    node.ready = False
    node.started_at = time.monotonic()


def end(node: RayNode, *, keep_folder: bool = False) -> None:
    """End everything that the pod started, at once; returns when it is gone."""
    if node.process is not None and node.process.poll() is None:
        node.process.kill()
    end_marked(POD_MARK, node.pod, sessions={node.process.pid} if node.process is not None else set())
    if node.process is not None:
        node.process.wait()
    node.ready = False
    if not keep_folder:
        shutil.rmtree(node.folder, ignore_errors=True)


def marked(mark: str, value: str, *, sessions: Iterable[int] = ()) -> list[int]:
    """Process ids whose environment carries `mark=value`, and all others of their sessions and of `sessions`.

    The sessions are needed because Ray's workers write their title over their environment, and the mark because a job's
    driver has a session of its own. An agent may outlive everything else of its session: it is known by its title and folder.
    """
    wanted = f"{mark}={value}".encode()
    session_of: dict[int, int] = {}
    known = set(sessions)
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # Bytes: the name in it is cut after 15 of them, in the middle of a letter at times.
            state, _, _, session = (entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[:4]
            environment = (entry / "environ").read_bytes()
        except (OSError, ValueError):
            continue  # it has ended, or it belongs to another user
        if state == b"Z":
            continue
        session_of[int(entry.name)] = int(session)
        if wanted in environment.split(b"\0") or (mark == FOLDER_MARK and titled(int(entry.name), Path(value))):
            found.add(int(entry.name))
            known.add(int(session))
    known.discard(os.getsid(0))
    return sorted(found | {pid for pid, session in session_of.items() if session in known})


def titled(pid: int, root: Path) -> bool:
    """Whether a process bears a title that Ray has written, and works in a folder below `root`.

    The title is asked for too, since somebody's shell may stand in that folder.
    """
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        # The folder of a process may be gone: its link then ends in " (deleted)".
        return title.startswith((b"ray::", b"ray-dashboard-")) and Path(f"/proc/{pid}/cwd").readlink().is_relative_to(root)
    except OSError:
        return False


def end_marked(mark: str, value: str, *, sessions: Iterable[int] = (), seconds: float = 10.0) -> list[int]:
    """Kill all of `marked`, also those born meanwhile; returns the ids that were there."""
    limit = time.monotonic() + seconds
    seen: set[int] = set()
    while True:
        pids = marked(mark, value, sessions=sessions)
        if not pids or time.monotonic() > limit:
            return sorted(seen)
        for pid in pids:
            seen.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def free_port(address: str = "", *, preferred: int = 0) -> int:
    """A port that nobody listens on now: the preferred one, unless somebody on this machine listens on it on every address.

    On every address when none is given, since Ray's GCS listens on all of them.
    """
    for port in (preferred, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
            except OSError:
                if port:
                    continue
                raise
            return int(listener.getsockname()[1])
    raise AssertionError("a port of the system's choice was bound, or it raised")


def answers(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=0.5):
            return True
    except OSError:
        return False
