"""`hyperpod-rl review` of `reference` against two syntheses of it: what it compares has to cost next to nothing beside them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import ROOT, compare, seconds

BIN = Path(sys.executable).parent
TIMES = 3


def run() -> list[str]:
    """The best of several reviews of this checkout against its last commit, and of several syntheses, one after another."""
    reviews = []
    with tempfile.TemporaryDirectory() as folder:
        # cdk.json starts `python`, which is not ours unless its folder comes first.
        ours = f"PATH={BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        command = ["env", ours, str(BIN / "cdk"), "synth", "--quiet", "-c", "env=reference", "-o", f"{folder}/out"]
        synth = seconds(command, times=TIMES)
    for _ in range(TIMES):
        begin = time.perf_counter()
        done = subprocess.run(
            [str(BIN / "hyperpod-rl"), "--env", "reference", "review", "--base", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        reviews.append(time.perf_counter() - begin)
        if done.returncode not in (0, 1):  # 1: this checkout holds a change that needs a word
            raise RuntimeError(f"the review ended with {done.returncode}: {done.stderr[-500:]}")
    return compare("review of reference / two syntheses", min(reviews), 2 * synth, budget=1.3)
