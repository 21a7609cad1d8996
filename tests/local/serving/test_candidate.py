"""The server that the gate starts for an export which is not released yet, as the process that it is."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from config.load import load
from config.problems import Refused
from local.trainer import shared
from local.trainer.checkpoint import adapter_files
from local.trainer.policy import Lora, initial_adapter, initial_weights
from serving import candidate, evaluate, tasks
from serving.openai_client import Endpoint

ENV = load("local")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A base model that was never trained, and an export that says stop to everything."""
    base, export = tmp_path / "base", tmp_path / "export"
    weights = initial_weights(np.random.default_rng(0))
    shared.write_folder(base, {"model.safetensors": shared.tensors(weights), "config.json": shared.document({})})
    lora, rng = Lora(8, 8), np.random.default_rng(1)
    adapter = initial_adapter(lora, rng)
    adapter["head.lora_B"] = (rng.standard_normal(adapter["head.lora_B"].shape) * 5).astype(np.float32)
    shared.write_folder(export, adapter_files(adapter, lora, base="/shared/models/base"))
    return base, export


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_base_and_candidate_answer_differently_and_the_server_ends(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, export = folders
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy of a company's network: it cannot reach this machine's ports
    monkeypatch.delenv("no_proxy", raising=False)
    wanted = evaluate.plan(ENV, maze_set="fresh", mazes=4, max_turns=3)
    task = tasks.task(ENV, None, max_turns=3)
    said: list[str] = []
    with candidate.served(ENV, base=base, export=export, log=tmp_path / "log", note=said.append) as url:
        results = {model: evaluate.run(Endpoint(url, model), wanted, task) for model in (candidate.BASE, candidate.CANDIDATE)}
        with pytest.raises(Refused, match="does not serve it"):
            evaluate.run(Endpoint(url, "other"), wanted, task)
    assert [len(result.mazes) for result in results.values()] == [4, 4]
    assert results["base"].mazes != results["candidate"].mazes
    assert str(export) in said[0]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/v1/models", timeout=2)


def test_it_ends_with_a_gate_that_is_killed(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, export = folders
    told = tmp_path / "pid"
    child = os.fork()
    if child == 0:
        try:
            with candidate.served(ENV, base=base, export=export, log=tmp_path / "log") as url:
                told.write_text(url.rsplit(":", 1)[1])
                time.sleep(60)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while not told.exists() or not told.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (server,) = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _serves(path, told.read_text())]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while not gone(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _serves(process: Path, port: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"local.serving.candidate" in words and port.encode() in words
