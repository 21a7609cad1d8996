"""`doctor`, `status` and `cost` of an environment that is deployed on a local cloud: an answer within 3 seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import ROOT, compare

BIN = Path(sys.executable).parent
SECONDS, TIMES = 3.0, 3
# Doctor ends with 1: nothing of AWS beyond the environment is there (quotas of a real account, service-linked roles).
COMMANDS: Mapping[str, tuple[int, ...]] = {"doctor": (0, 1), "status": (0,), "cost": (0,)}


def run() -> list[str]:
    """Deploy environment `local` once, then the best of several runs of each command."""
    from local import lifecycle, state

    missed = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ[state.FOLDER] = folder
        lifecycle.up(node_delay=0.2)
        try:
            # cdk.json starts `python`, which is not ours unless its folder comes first.
            variables = {**os.environ, **lifecycle.environment(), "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
            for words in (["bootstrap", "aws://000000000000/us-west-2"], ["deploy", "--all", "--require-approval", "never"]):
                _run([str(BIN / "cdk"), *words, "-c", "env=local", "-o", f"{folder}/out"], variables, (0,))
            for name, codes in COMMANDS.items():
                took = min(_run([str(BIN / "hyperpod-rl"), "--env", "local", name], variables, codes) for _ in range(TIMES))
                missed += compare(f"hyperpod-rl {name} / its limit", took, SECONDS, budget=1.0)
        finally:
            lifecycle.down(purge=True)
            del os.environ[state.FOLDER]
    return missed


def _run(command: list[str], variables: Mapping[str, str], codes: tuple[int, ...]) -> float:
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-800:]}")
    return time.perf_counter() - begin
