"""Ending exactly what was started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from local.ray import processes

SLEEP = "import time;time.sleep(60)"
SCRIPT = f"import subprocess,sys,time;subprocess.Popen([sys.executable,'-S','-c','{SLEEP}'],start_new_session=True);time.sleep(60)"


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_everything_with_the_mark_ends_and_nothing_else() -> None:
    mine = {**os.environ, processes.POD_MARK: f"test-{os.getpid()}"}
    other = {**os.environ, processes.POD_MARK: f"test-{os.getpid()}-other"}
    marked = subprocess.Popen([sys.executable, "-S", "-c", SCRIPT], env=mine, start_new_session=True)
    stranger = subprocess.Popen([sys.executable, "-S", "-c", SLEEP], env=other, start_new_session=True)
    try:
        # The child, and its child in a session of its own, as a job's driver is.
        assert until(lambda: len(processes.marked(processes.POD_MARK, mine[processes.POD_MARK])) == 2)
        assert len(processes.end_marked(processes.POD_MARK, mine[processes.POD_MARK])) == 2
        assert processes.marked(processes.POD_MARK, mine[processes.POD_MARK]) == []
        assert marked.wait(timeout=5) != 0
        assert stranger.poll() is None
    finally:
        for process in (marked, stranger):
            process.kill()
            process.wait()


def test_a_node_that_ends_leaves_its_last_words_and_the_log_of_the_start_before(tmp_path: Path) -> None:
    node = processes.RayNode(f"test-{os.getpid()}", tmp_path, "127.0.0.1")
    try:
        processes.start(node, ["start", "--no-such-option"], dict(os.environ), root=tmp_path)
        assert node.process is not None
        node.process.wait(timeout=60)
        assert "--no-such-option" in node.last_words()
        processes.start(node, ["start", "--another"], dict(os.environ), root=tmp_path)
        assert "--no-such-option" in node.log.with_suffix(".previous.log").read_text()
    finally:
        processes.end(node)


def test_ports_and_answers() -> None:
    port = processes.free_port("127.0.0.1")
    assert not processes.answers("127.0.0.1", port)
