"""Processes of the local cloud: told by a mark in their environment, which every child inherits, Ray's detached ones too."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local import state
from local.ray.processes import titled

# Value: the state folder. Set by `up` for the daemon only; `hyperpod-rl local env` does not export it, so a user's shell
# and what it starts are never taken for ours.
MARK = "HYPERPOD_RL_LOCAL_DAEMON"


@dataclass(frozen=True, order=True)
class Process:
    pid: int
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        """The whole command line; where a path has blanks, it cannot be taken apart again."""
        return " ".join(self.arguments)

    def __str__(self) -> str:
        return f"{self.command[:120]} (process {self.pid})"


def marked(folder: Path) -> list[Process]:
    """Every process that belongs to the daemon of this state folder, the daemon included; zombies left out."""
    mark, rays = f"{MARK}={folder}".encode(), state.ray_folder(folder)
    sessions: dict[int, int] = {}
    commands: dict[int, tuple[str, ...]] = {}
    own: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
            # Bytes: the name in it is cut after 15 of them, in the middle of a letter at times.
            status, _, _, session = (entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[:4]
        except OSError:
            continue  # it ended meanwhile, or is another user's
        if status == b"Z":
            continue
        pid = int(entry.name)
        sessions[pid], commands[pid] = int(session), tuple(command)
        if mark in environment or titled(pid, rays):
            own.add(pid)
    # Ray's workers write their title over their environment: they are known by the session that they share with a marked one,
    # or, when they are the last of it, by their title and folder.
    known = {sessions[pid] for pid in own} - {os.getsid(0)}
    return sorted(Process(pid, commands[pid]) for pid, session in sessions.items() if pid in own or session in known)


def end(folder: Path, *, patience: float) -> None:
    """End everything that is marked: SIGTERM, and after `patience` seconds SIGKILL. Returns when nothing is left."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        for process in marked(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + seconds
        while marked(folder):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


def listening(pids: set[int]) -> Iterator[tuple[int, int]]:
    """(process, TCP port) of every listening socket of these processes."""
    inodes: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A":  # TCP_LISTEN
                inodes[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
    for pid in pids:
        try:
            links = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for link in links:
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                yield pid, inodes[target[8:-1]]
