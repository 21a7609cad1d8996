"""`python -m local.trainer --env_variant sft key=value ...`: what SkyRL's example entry point is to the image.

Exit codes: 0 trained · 1 failed · 2 an override was refused, nothing was started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

SHUFFLE_VARIABLE: Final = "HYPERPOD_RL_STANDIN_SHUFFLE_REWARDS"  # the benchmark's control; no override of SkyRL


def main(arguments: Sequence[str]) -> int:
    """Parse, refuse or train; returns the exit code."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # before numpy is imported
    from config.problems import Failed, Problem, Refused
    from local.trainer.settings import settings
    from training.skyrl import parse

    variant, overrides = _variant(arguments)
    values, found = parse(overrides)
    if variant != "sft":
        found.append(Problem("--env_variant", variant, "the stand-in trainer knows the sft environment only", "write sft"))
    try:
        if found:
            raise Refused(found)
        run = settings(values)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2
    run = replace(run, shuffle_rewards=os.environ.get(SHUFFLE_VARIABLE, "") == "1")
    from local.trainer.cluster import run_on_cluster

    try:
        run_on_cluster(run)
    except (Failed, ConnectionError) as failed:
        print(f"Training failed: {failed}", file=sys.stderr)
        return 1
    return 0


def _variant(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """`--env_variant X` or `--env_variant=X` anywhere, everything else in order."""
    rest: list[str] = []
    variant = "sft"
    words = iter(arguments)
    for word in words:
        if word == "--env_variant":
            variant = next(words, "")
        elif word.startswith("--env_variant="):
            variant = word.partition("=")[2]
        else:
            rest.append(word)
    return variant, rest


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
