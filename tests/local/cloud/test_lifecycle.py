"""Up and down, whatever happened before, and nothing left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from config.problems import Failed, Refused, Unreachable
from local import lifecycle, processes, state

pytestmark = pytest.mark.cloud


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))
    yield tmp_path / "state"
    lifecycle.down(purge=True)


def _child(folder: Path, code: str) -> subprocess.Popen[bytes]:
    """A process that the daemon might have started and lost: marked, in a session of its own."""
    environment = {**os.environ, processes.MARK: str(folder)}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_up_is_idempotent_and_down_leaves_nothing(folder: Path) -> None:
    before = lifecycle.snapshot()
    first = lifecycle.up()
    assert first.running
    assert lifecycle.up() == first
    assert lifecycle.environment()["AWS_ENDPOINT_URL"] == first.endpoint
    kinds = {line.partition(":")[0] for line in lifecycle.compare(before)}
    assert {"process", "port", "file"} <= kinds
    lifecycle.down(purge=True)
    lifecycle.down(purge=True)
    assert lifecycle.compare(before) == []
    assert not lifecycle.status().running


def test_up_after_the_daemon_was_killed(folder: Path) -> None:
    first = lifecycle.up()
    assert first.pid is not None
    child = _child(folder, "print(flush=True); import time; time.sleep(600)")
    os.kill(first.pid, signal.SIGKILL)
    second = lifecycle.up()
    assert second.running
    assert second.pid != first.pid
    assert child.wait(timeout=120) != 0, "what the killed daemon left must not live on beside the new one"


def test_up_waits_for_a_daemon_that_an_interrupted_up_left(folder: Path) -> None:
    code = "import threading, time, os; from local import lifecycle; threading.Timer(0.4, lambda: os._exit(9)).start(); lifecycle.up()"
    subprocess.run([sys.executable, "-c", code], cwd=state.ROOT, env=dict(os.environ), check=False)
    assert lifecycle.up().running
    assert len([p for p in processes.marked(folder) if "local.serve" in p.command]) == 1


def test_down_ends_what_refuses_to_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.3)
    child = _child(folder, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)")
    lifecycle.down()
    assert child.wait(timeout=120) == -signal.SIGKILL


def test_down_leaves_the_processes_of_others_alone(folder: Path, tmp_path: Path) -> None:
    other = _child(tmp_path / "elsewhere", "print(flush=True); import time; time.sleep(600)")
    try:
        lifecycle.down()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_planted_process_port_and_file_are_found(folder: Path) -> None:
    before = lifecycle.snapshot()
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, processes.MARK: str(folder)}, start_new_session=True, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    port = int(child.stdout.readline())
    planted = folder / "ray" / "left-over"
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text("")
    left = lifecycle.compare(before)
    assert any(line.startswith("process:") and str(child.pid) in line for line in left)
    assert any(line.startswith(f"port: port {port} ") for line in left)
    assert f"file: {planted}" in left
    lifecycle.down(purge=True)
    child.wait(timeout=120)
    assert lifecycle.compare(before) == []


def test_nothing_runs(folder: Path) -> None:
    assert not lifecycle.status().running
    with pytest.raises(Unreachable, match="hyperpod-rl local up"):
        lifecycle.environment()
    with pytest.raises(Unreachable, match="hyperpod-rl local up"):
        lifecycle.inventory()
    with pytest.raises(Unreachable):
        lifecycle.remove_bootstrap()


def test_a_daemon_that_cannot_start_says_why(folder: Path) -> None:
    folder.mkdir()
    (folder / "certificates").write_text("a file where a folder must be")
    with pytest.raises(Failed, match=r"ended while it started(.|\n)*certificates"):
        lifecycle.up()


def test_fault_switches_and_base_port_are_refused_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_RL_FAULTS", "{")
    monkeypatch.setenv(state.BASE_PORT, "many")
    with pytest.raises(Refused) as refused:
        lifecycle.up()
    assert [problem.field for problem in refused.value.problems] == [state.BASE_PORT, "HYPERPOD_RL_FAULTS"]
    assert not folder.exists()


def test_up_beside_a_daemon_that_was_stopped_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FOREIGN_SECONDS", 0.3)
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.3)
    first = lifecycle.up()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    (folder / "state.json").unlink()
    with pytest.raises(Failed, match=r"does not answer; `hyperpod-rl local down` ends it"):
        lifecycle.up()
    lifecycle.down()
    assert lifecycle.up().pid != first.pid


def test_rays_folder_stays_short_wherever_the_checkout_lies(folder: Path) -> None:
    dashboard = Path(ray.__file__).parent / "dashboard" / "modules"
    parts = [name for file in dashboard.rglob("*.py") for name in re.findall(r"^class (\w+)\(SubprocessModule", file.read_text(), re.M)]
    assert len(parts) > 5, "Ray names the parts of its dashboard otherwise now"
    session = "0a1b2c3d/t/session_2026-11-29_21-07-33_123456_4194304/sockets"  # process ids have up to 7 digits
    for length in range(80):
        folder_of_ray = state.ray_folder(Path("/" + "d" * length))
        for name in ("plasma_store", "raylet", *(f"dash_{part}" for part in parts)):
            assert len(str(folder_of_ray / session / name)) <= 107, f"man 7 unix: {name}"
    assert state.ray_folder(Path("/srv/demo")) == Path("/srv/demo/ray"), "beside everything else where it fits"


@pytest.mark.parametrize("name", ["a b", "Grün", "it's", "$HOME", "a,b"])
def test_rays_folder_has_a_plain_path_wherever_the_checkout_lies(name: str) -> None:
    found = state.ray_folder(Path("/srv") / name)
    assert state.is_plain(found)
    assert found.parent == Path("/tmp")
    assert state.ray_folder(Path("/srv") / name) == found != state.ray_folder(Path("/srv") / f"{name}2")


def test_the_daemon_and_every_command_find_the_same_folder_of_ray(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon sets a $TMPDIR of its own, and the shells of `up` and `down` may differ in theirs."""
    long = Path("/srv") / ("d" * 60)
    first = state.ray_folder(long)
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert state.ray_folder(long) == first
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert state.ray_folder(long) != first, "another user of the same checkout has another one"


def test_a_folder_that_cannot_be_used_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "file" / "state"))
    with pytest.raises(Refused, match=r"file is no folder.*HYPERPOD_RL_LOCAL"):
        lifecycle.up()
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(Refused, match="you may not write to"):
        lifecycle.up()
    assert not (tmp_path / "state").exists()


def test_what_another_user_has_put_in_tmp_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "a b"))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.setattr(state, "ray_folder", lambda below=None: theirs)
    assert state.problems() == []
    link = tmp_path / "link"
    link.symlink_to(theirs)
    monkeypatch.setattr(state, "ray_folder", lambda below=None: link)
    assert "it is a link" in str(state.problems()[0])
    monkeypatch.setattr(state, "ray_folder", lambda below=None: theirs)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    with pytest.raises(Refused, match="it belongs to another user"):
        lifecycle.up()


def test_what_a_shell_has_set_for_other_tools_does_not_lead_away_from_the_local_cloud(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {
        "AWS_PROFILE": "no-such", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_USE_FIPS_ENDPOINT": "true", "AWS_SESSION_TOKEN": "t",
        "HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1",
        "grpc_proxy": "http://127.0.0.1:1", "no_proxy": "intern.example", "RAY_ADDRESS": "127.0.0.1:1", "PYTHONPATH": "/nowhere",
        "PYTHONSAFEPATH": "1", "SERVICES": "sqs", "S3_PERSIST": "1", "DOCKER_HOST": "tcp://127.0.0.1:1", "HOSTNAME": "elsewhere",
    }  # fmt: skip
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    daemon = lifecycle.up()
    own = Path(f"/proc/{daemon.pid}/environ").read_bytes().split(b"\0")
    # PATH and DOCKER_HOST are the daemon's own; what it was started with shows here.
    assert not [name for name in odd if any(line.startswith(f"{name}=".encode()) for line in own)]
    assert lifecycle.against_it() == ["AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_USE_FIPS_ENDPOINT", "RAY_ADDRESS"]
    lines = _other_shell(["local", "env"])
    assert lines[0] == f"unset {' '.join(lifecycle.against_it())}"
    shell = "\n".join([*lines, "aws sts get-caller-identity --query Account"])
    listed = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, timeout=60)
    assert listed.stdout == '"000000000000"\n', listed.stderr
    assert lifecycle.environment()["no_proxy"] == "intern.example,127.0.0.1,127.0.0.0/8,localhost"


def _other_shell(words: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(state.ROOT)!r}); from cli.main import run; sys.exit(run({words!r}))"],
        cwd=state.ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_the_base_port_is_used_where_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.BASE_PORT, "21000")
    assert state.choose_ports() == state.Ports(21000, 21001, 21002)


@pytest.mark.parametrize("base", ["80", "65534", "many", "-1"])
def test_a_base_port_that_is_none_is_refused(base: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.BASE_PORT, base)
    with pytest.raises(Refused, match="HYPERPOD_RL_LOCAL_PORT"):
        lifecycle.up()
    assert not lifecycle.status().running


def test_a_base_port_that_is_taken_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv(state.BASE_PORT, str(port - 1 if port > 65533 else port))
        with pytest.raises(Refused, match=f"port {port} cannot be used"):
            lifecycle.up()


def test_chosen_ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(state.BASE_PORT, raising=False)
    ports = state.choose_ports()
    for port in (ports.cloud, ports.kubernetes, ports.dashboards):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_state_of_a_process_id_that_another_process_has_now_is_not_taken_for_ours(folder: Path) -> None:
    state.write(state.State(os.getpid(), 1, state.Ports(1, 2, 3)))
    assert not lifecycle.status().running


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "started": 2, "ports": {"x": 1}}'])
def test_a_broken_state_file_counts_as_none(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(text)
    assert state.read() is None
    assert not lifecycle.status().running


def _other(code: str, **variables: str) -> subprocess.Popen[bytes]:
    """Another shell of the same user, with the same state folder."""
    command = [sys.executable, "-c", f"from local import lifecycle\n{code}"]
    return subprocess.Popen(command, cwd=state.ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _daemons(folder: Path) -> list[processes.Process]:
    return [p for p in processes.marked(folder) if "local.serve" in p.command]


def test_two_ups_at_once_bring_up_one_cloud(folder: Path) -> None:
    both = [_other("print(lifecycle.up().pid)") for _ in range(2)]
    said = {other.communicate(timeout=60)[0].strip() for other in both}
    assert [other.returncode for other in both] == [0, 0]
    assert said == {str(lifecycle.status().pid).encode()}
    assert len(_daemons(folder)) == 1


def test_down_while_it_comes_up_leaves_nothing(folder: Path) -> None:
    before = lifecycle.snapshot()
    starting = _other("lifecycle.up()")
    _until(lambda: bool(_daemons(folder)))
    lifecycle.down(purge=True)
    starting.communicate(timeout=120)
    assert starting.returncode != 0, "what it was to start was ended, so it must not claim to be up"
    assert lifecycle.compare(before) == []
    assert not folder.exists()


@pytest.mark.parametrize("seconds", [0.0, 0.15, 0.6, 1.5])
def test_an_up_that_is_killed_at_any_point_can_be_repeated_or_undone(seconds: float, folder: Path) -> None:
    before = lifecycle.snapshot()
    killed = _other("print(flush=True); lifecycle.up()")
    assert killed.stdout is not None
    killed.stdout.readline()
    time.sleep(seconds)
    killed.kill()
    killed.communicate(timeout=120)
    assert lifecycle.up().running
    assert len(_daemons(folder)) == 1
    lifecycle.down(purge=True)
    assert lifecycle.compare(before) == []


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.4])
def test_a_down_that_is_killed_at_any_point_can_be_repeated(seconds: float, folder: Path) -> None:
    before = lifecycle.snapshot()
    lifecycle.up()
    killed = _other("print(flush=True); lifecycle.down(purge=True)")
    assert killed.stdout is not None
    killed.stdout.readline()
    time.sleep(seconds)
    killed.kill()
    killed.communicate(timeout=120)
    lifecycle.down(purge=True)
    assert lifecycle.compare(before) == []


def test_two_state_folders_do_not_disturb_each_other(folder: Path, tmp_path: Path) -> None:
    lifecycle.up()
    elsewhere = {state.FOLDER: str(tmp_path / "elsewhere")}
    other = _other("lifecycle.up()\nlifecycle.down(purge=True)", **elsewhere)
    assert other.communicate(timeout=60)[0] == b""
    assert other.returncode == 0
    assert lifecycle.status().running


def _until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)
