"""Supervising a real job on a real Ray: its process is killed in the middle, and the run comes to its end with every step once."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from config.load import ROOT, load
from tests.training.ray_endpoint import real_ray
from training import cluster as clusters
from training import follow as following
from training import jobs, keeping, layout, record, run, series
from training.supervise import Limits, Supervisor, Verdict

pytestmark = pytest.mark.ray
READY = clusters.State("skyrl-visgym", "training", exists=True, head_ready=True, workers_ready=2, workers_wanted=2, gpus=4)


def test_killed_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shared, go = tmp_path / "shared", tmp_path / "go"
    shared.mkdir()
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(shared))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody is there: nothing of AWS is asked
    data = yaml.safe_load((ROOT / "environments/local.yaml").read_text())
    data["name"] = "local-test"
    variables = shlex.join(["TINY_WAIT_AT=11", f"TINY_GO={go}", f"TINY_SHARED={shared}"])
    data["training"]["entrypoint"] = f"env {variables} {shlex.join([sys.executable, f'{ROOT}/tests/training/tiny_trainer.py'])}"
    data["training"]["overrides"] |= {"trainer.epochs": 20, "trainer.ckpt_interval": 4}
    file = tmp_path / "local-test.yaml"
    file.write_text(yaml.safe_dump(data))
    env, folder = load(str(file)), shared / "runs" / "killed"
    specification = run.specify(env, run_id="killed")
    events: list[Any] = []
    with real_ray() as dashboard, jobs.connect(env, address=dashboard) as connection:
        jobs.submit(connection, specification)
        one = Supervisor(connection, "killed", lambda: specification, lambda: READY, keeping.Keeper(connection, "killed"),
                         limits=Limits(backoff=0.0))  # fmt: skip
        for event in one.run():
            events.append(event)
            if isinstance(event, following.StepSeen) and (event.attempt, event.step) == (1, 10):
                go.touch()
                os.kill(int((folder / "checkpoints/pid").read_text()), signal.SIGKILL)
    assert events[-1] == Verdict("killed", True, 2, "attempt 2 succeeded")
    kept = record.read(folder)
    assert kept is not None
    assert [(a.number, a.status, a.last_step) for a in kept.attempts] == [(1, "FAILED", 10), (2, "SUCCEEDED", 19)]
    assert [event.kind for event in kept.events] == ["failed", "waiting", "ready", "submitted"]
    assert "exit code" in kept.attempts[0].reason
    joined = series.joined(series.read(folder))
    assert [row.step for row in joined] == list(range(20))
    assert [row.attempt for row in joined] == [1] * 9 + [2] * 11
    assert [(e.step, e.solved) for e in kept.evaluations] == [(0, 0), (5, 5), (10, 10), (15, 15)]
    assert len(kept.evaluations[-1].results) == 64
    # Ray is gone; the page is made from what was kept.
    page = tmp_path / "page.html"
    assert main.run(["--env", str(file), "report", "killed", "--offline", "--output", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["status"] == "SUCCEEDED"
    assert "attempt 2 from step 9" in page.read_text()
