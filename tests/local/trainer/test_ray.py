"""The stand-in on a real Ray: one node, its own ports and folder, ended by process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.ray.processes import interpreter
from local.trainer.shared import SHARED_VARIABLE
from tests.local.trainer.conftest import TINY, make_base

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[3]
IN_PROCESS = """
import sys
from local.trainer.rollout import in_process
from local.trainer.settings import settings
from local.trainer.train import Run
from training.skyrl import parse
Run(settings(parse(sys.argv[1:])[0]), in_process).train()
"""


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTEST_"))}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_DEDUP_LOGS": "0", **more}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    port, client, agent = _free_ports(3)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        python = interpreter(Path(folder))
        node = subprocess.Popen(
            [
                str(python), str(python.with_name("ray")), "start", "--head", "--block", "--num-cpus=3", "--num-gpus=2",
                "--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}",
                f"--dashboard-agent-listen-port={agent}", "--include-dashboard=false", "--disable-usage-stats",
                f"--temp-dir={folder}",
            ],
            env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 90
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert node.poll() is None, "Ray ended at once"
                assert time.monotonic() < deadline, "Ray did not start"
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            node.terminate()  # with --block, ray ends what it started
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)


def test_ray_and_in_process_write_the_same_adapter(ray_address: str, tmp_path: Path) -> None:
    adapters = []
    for name, command in (("ray", ["-m", "local.trainer", "--env_variant", "sft"]), ("process", ["-c", IN_PROCESS])):
        root = tmp_path / name
        make_base(root)
        done = subprocess.run(
            [sys.executable, *command, *TINY],
            cwd=tmp_path, env=_environment(RAY_ADDRESS=ray_address, **{SHARED_VARIABLE: str(root)}),
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        if name == "ray":
            assert "visgym_entrypoint pid=" in done.stderr + done.stdout
            assert "Training done!" in done.stderr + done.stdout
        adapters.append((root / "runs/r/exports/global_step_4/policy/adapter_model.safetensors").read_bytes())
    assert adapters[0] == adapters[1]


def test_too_few_gpus_is_one_sentence(ray_address: str, tmp_path: Path) -> None:
    make_base(tmp_path)
    overrides = [word.replace("gpus_per_node=2", "gpus_per_node=4").replace("num_engines=2", "num_engines=4") for word in TINY]
    done = subprocess.run(
        [sys.executable, "-m", "local.trainer", *overrides],
        cwd=tmp_path,
        env=_environment(RAY_ADDRESS=ray_address, SKYRL_RAY_PG_TIMEOUT_IN_S="2", **{SHARED_VARIABLE: str(tmp_path)}),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "4 bundles of one GPU and one CPU were not free within 2 s" in done.stderr
