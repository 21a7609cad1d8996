"""An endpoint for an export that is not released yet: the environment's own server command, run here for as long as it is needed."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config.load import ROOT
from config.problems import Failed, Problem, Refused
from config.serve_rules import server_rank

if TYPE_CHECKING:
    from config.environment import Environment

BASE: Final = "base"
CANDIDATE: Final = "candidate"
# vLLM loads 16 GB of weights and compiles graphs before it answers.
START_SECONDS: Final = 1200.0
_POLL_SECONDS: Final = 0.2
_PARENT_DIED: Final = 1  # PR_SET_PDEATHSIG of prctl(2)


def command(env: Environment, *, base: Path, export: Path, port: int) -> list[str]:
    """The words of `serving.gate.server` with everything filled in. Raises Refused with what is wrong with it."""
    field, template = "serving.gate.server", env.serving.gate.server
    if template is None:
        raise Refused(Problem(field, "", "the environment names no server for exports", "give --endpoint, or set it"))
    values = {
        "base": base, "export": export, "port": port, "rank": server_rank(env), "max_model_len": env.serving.max_model_len,
        "images": env.serving.images_per_prompt,
    }  # fmt: skip
    try:
        words = [word.format_map(values) for word in shlex.split(template)]
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        rule = f"it cannot be filled in ({error})"
        raise Refused(Problem(field, template, rule, f"use {', '.join('{' + name + '}' for name in values)} only")) from None
    if not words:
        raise Refused(Problem(field, template, "it is empty", "write null, or a command"))
    if words[0] == "python":
        words[0] = sys.executable
    return words


@contextmanager
def served(
    env: Environment, *, base: Path, export: Path, log: Path, note: Callable[[str], None] = lambda text: None,
    seconds: float = START_SECONDS,
) -> Iterator[str]:  # fmt: skip
    """The URL of a server with the models `base` and `candidate`; it ends with the block, and with this process.

    Raises Refused for a command that cannot be run, Failed where the server ends or does not answer; its output is in `log`.
    """
    port = _free_port()
    words = command(env, base=base, export=export, port=port)
    log.parent.mkdir(parents=True, exist_ok=True)
    note(f"starting a server for the export: {shlex.join(words)}")
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                words,
                cwd=ROOT if ROOT.is_dir() else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            rule = f"it cannot be started ({error.strerror})"
            raise Refused(
                Problem("serving.gate.server", words[0], rule, "run the gate where it is installed (--in-cluster), or give --endpoint")
            ) from None
    try:
        _wait(process, f"http://127.0.0.1:{port}", log, seconds)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy reaches a port of this machine
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failed(f"the server of serving.gate.server ended with code {process.returncode}: {_last(log)} ({log})")
        with contextlib.suppress(OSError, http.client.HTTPException), opener.open(f"{url}/v1/models", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(_POLL_SECONDS)
    raise Failed(f"the server of serving.gate.server did not answer within {seconds:.0f} s: {_last(log)} ({log})")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
            break


def _last(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def _die_with_parent() -> None:
    """In the child: end when this process ends, however it ends. Linux only; elsewhere the block's end does it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PARENT_DIED, signal.SIGTERM)
