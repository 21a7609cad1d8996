"""The launcher's start beside the other tools of this field."""

from __future__ import annotations

from benchmarks.measure import compare, seconds


def run() -> list[str]:
    """`hyperpod-rl --help` against `ray job submit --help`."""
    return compare("hyperpod-rl --help / ray job submit --help", seconds(["hyperpod-rl", "--help"]),
                   seconds(["ray", "job", "submit", "--help"]), budget=0.1)  # fmt: skip
