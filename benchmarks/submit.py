"""`hyperpod-rl submit` beside plain `ray job submit --no-wait` of the same job, to a real Ray on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import yaml

from benchmarks.measure import ROOT, compare

TIMES = 5


def _ended(address: str) -> None:
    """Wait until no job runs: a run of the launcher wants all GPUs, and two jobs at once would disturb the clock."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        with urllib.request.urlopen(f"{address}/api/jobs/", timeout=10) as reply:  # noqa: S310 - a loopback address
            if all(job["status"] in ("SUCCEEDED", "FAILED", "STOPPED") for job in json.load(reply)):
                return
        time.sleep(0.2)
    raise RuntimeError("a job of the benchmark does not end")


def _spent(command: list[str], address: str, variables: dict[str, str]) -> float:
    _ended(address)
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    spent = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:200]} ended with {done.returncode}: {done.stderr[-500:]}")
    return spent


def run() -> list[str]:
    """The best of several submits of each."""
    from tests.training.ray_endpoint import real_ray

    with tempfile.TemporaryDirectory() as folder, real_ray() as address:
        data = yaml.safe_load((ROOT / "environments/local.yaml").read_text())
        data["training"]["entrypoint"] = "true"
        file = Path(folder) / "bench.yaml"
        file.write_text(yaml.safe_dump(data))
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "AWS_", "HYPERPOD_RL_"))}
        there = ["--address", address]
        launcher = [sys.executable, "-m", "cli.main", "--env", str(file), "submit", *there]
        shown = subprocess.run(
            [*launcher, "--run-id", "bench", "--dry-run", "--json"], cwd=ROOT, env=variables, capture_output=True, check=True
        )
        job = json.loads(shown.stdout)["job"]
        plain = [str(Path(sys.executable).parent / "ray"), "job", "submit", "--no-wait", *there]
        plain += ["--runtime-env-json", json.dumps(job["runtime_env"]), "--metadata-json", json.dumps(job["metadata"])]
        ours, theirs = [], []
        for number in range(TIMES):  # by turns, so that the machine's other work meets both
            ours.append(_spent([*launcher, "--run-id", f"bench-{number}"], address, variables))
            theirs.append(_spent([*plain, "--submission-id", f"plain-{number}", "--", job["entrypoint"]], address, variables))
    return compare("hyperpod-rl submit / ray job submit --no-wait", min(ours), min(theirs), budget=1.2)
