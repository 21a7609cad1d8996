"""Ending exactly what was started."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from local import processes as local_processes
from local import state
from local.kubernetes.cluster import Cluster, Node
from local.ray import processes, runtime
from tests.local.kubernetes.conftest import install_kuberay, ray_cluster

SLEEP = "import time;time.sleep(60)"
SCRIPT = f"import subprocess,sys,time;subprocess.Popen([sys.executable,'-S','-c','{SLEEP}'],start_new_session=True);time.sleep(60)"


def until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
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
        assert marked.wait(timeout=120) != 0
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


METRICS = "RuntimeError: Module MetricsHead failed to start. Received EOF from pipe."
# What Ray 2.57 printed where a socket's path was too long for a part of its dashboard.
DASHBOARD_DIED = f"""\
2026-11-30 04:05:15,988\tERROR services.py:1431 -- Failed to start the dashboard
Traceback (most recent call last):
  File "ray/dashboard/subprocesses/handle.py", line 146, in wait_for_module_ready
    raise RuntimeError(
{METRICS}
2026-11-30 04:05:18,142\tERR scripts.py:1304 -- Some Ray subprocesses exited unexpectedly:
2026-11-30 04:05:18,143\tERR scripts.py:86 --   \x1b[1mray_client_server\x1b[22m [exit code=1]
RuntimeError: Timed out waiting for node info for node_id=35b2.
2026-11-30 04:05:18,150\tERR scripts.py:1312 -- Remaining processes will be killed.
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (DASHBOARD_DIED, f"ray_client_server ended with exit code 1; {METRICS}"),
        ("Usage: ray start\n\nError: No such option: --no-such\n\n", "Error: No such option: --no-such"),
        ("Traceback\nOSError: path too long\nbye\n", "OSError: path too long"),
        ("", ""),
    ],
)  # fmt: skip
def test_last_words_name_who_died_and_the_first_error(log: str, said: str, tmp_path: Path) -> None:
    node = processes.RayNode("p", tmp_path, "127.0.0.1")
    node.log.write_text(log)
    assert node.last_words() == said


def test_a_pod_that_runs_and_never_answers_is_started_again(
    cluster: Cluster, nodes: list[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(node: processes.RayNode, arguments: Sequence[str], environment: Mapping[str, str], *, root: Path) -> None:
        marks = {processes.FOLDER_MARK: str(root), processes.POD_MARK: node.pod}
        node.process = subprocess.Popen([sys.executable, "-S", "-c", SLEEP], env={**environment, **marks}, start_new_session=True)
        node.log.write_text("Local node IP: 127.0.0.1\n")
        node.started_at = time.monotonic()

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(runtime, "STARTUP_SECONDS", 0.2)
    cluster.set_nodes(nodes)
    install_kuberay(cluster)
    ray = runtime.Runtime(folder=tmp_path / "ray", shared=tmp_path / "shared", root=tmp_path)
    try:
        ray.attach(cluster)
        cluster.apply([ray_cluster(gpus=2)], manager="launcher")

        def head() -> dict[str, Any]:
            found = [pod for pod in cluster.store.select(kind="Pod", namespace="default") if "-head-" in pod["metadata"]["name"]]
            return (found[0].get("status", {}).get("containerStatuses") or [{}])[0] if found else {}

        assert until(lambda: head().get("restartCount", 0) >= 2)
        waiting = head()["state"]["waiting"]
        assert waiting["reason"] == "CrashLoopBackOff"
        assert "it did not answer within" in waiting["message"]
    finally:
        ray.stop()
    assert processes.marked(processes.FOLDER_MARK, str(tmp_path / "ray")) == []


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "127.66.1.2"])
def test_a_port_that_somebody_has_on_every_address_is_not_taken(everywhere: str) -> None:
    """A developer's own Ray has 8265, a web server 8000: Ray's dashboard would end, and Serve's proxy never answer."""
    with socket.socket() as other:
        other.bind((everywhere, 0))
        other.listen()
        taken = other.getsockname()[1]
        assert processes.free_port("127.66.1.2", preferred=taken) not in (taken, 0)
        if everywhere != "0.0.0.0":
            assert processes.free_port("127.66.1.3", preferred=taken) == taken, "another pod's address has it"
    assert processes.free_port("127.66.1.2", preferred=taken) == taken


@pytest.mark.parametrize("name", ["with blanks", "Grün", "it's", "$HOME", 'quo"ted', "new\nline"])
def test_rays_python_has_a_path_that_a_shell_takes_as_one_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = tmp_path / name
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    monkeypatch.setattr(processes.sys, "executable", str(environment / "bin" / "python"))
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="hr-"))
    try:
        for _ in range(2):  # a pod that starts again finds its link
            found = processes.interpreter(folder)
        code = "import os, sys; print(os.path.realpath(sys.prefix))"
        # As Ray does it: https://github.com/ray-project/ray/blob/ray-2.57.0/python/ray/_private/runtime_env/context.py
        done = subprocess.run(["bash", "-c", f"exec {found} -c '{code}'"], capture_output=True, text=True, check=False)
        assert done.stdout == f"{environment.resolve()}\n", done.stderr
    finally:
        shutil.rmtree(folder)


def test_a_plain_path_of_python_needs_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", "/srv/hyperpod-rl/.venv/bin/python")
    assert processes.interpreter(tmp_path) == Path("/srv/hyperpod-rl/.venv/bin/python")
    assert list(tmp_path.iterdir()) == []


def test_a_process_whose_name_is_cut_within_a_letter_hides_no_other() -> None:
    """Linux keeps 15 bytes of a name: that of a script in a folder of umlauts may end within one."""
    mark = f"test-{os.getpid()}-named"
    rename = "import ctypes;ctypes.CDLL(None).prctl(15,bytes([195,164]*6+[195]),0,0,0);print(flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", f"{rename};{SLEEP}"], env={**os.environ, processes.POD_MARK: mark}, start_new_session=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert processes.marked(processes.POD_MARK, mark) == [child.pid]
        assert state.start_time(child.pid) is not None
        assert local_processes.marked(Path("/nowhere")) == []
    finally:
        child.kill()
        child.wait()


def test_a_command_is_known_whole_however_long_the_path_of_python_is(tmp_path: Path) -> None:
    """The demo looks for its trainer among them: behind 120 letters of path it saw none, and killed nothing."""
    deep = tmp_path / ("d" * 130) / "a b"
    deep.mkdir(parents=True)
    (deep / "python").symlink_to(sys.executable)
    command = (str(deep / "python"), "-S", "-c", SLEEP, "local.trainer")
    child = subprocess.Popen(command, env={**os.environ, local_processes.MARK: str(tmp_path)}, start_new_session=True)
    try:
        assert until(lambda: [found.arguments for found in local_processes.marked(tmp_path)] == [command])
        assert len(str(local_processes.marked(tmp_path)[0])) < 160, "shown, it is short"
    finally:
        child.kill()
        child.wait()


def test_ports_and_answers() -> None:
    port = processes.free_port("127.0.0.1")
    assert not processes.answers("127.0.0.1", port)
