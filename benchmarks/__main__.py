"""Measure the budgets on this machine, each as a ratio within one run: `make bench`, or `python -m benchmarks NAME ...`.

A figure outside its budget makes the exit code 1. Nothing here runs in the tests: a timing is a benchmark, never a test.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

BENCHMARKS = ("startup", "synth", "review", "operations", "critical_path", "follow", "submit", "learning", "upload")


def main() -> int:
    """Run the named benchmarks (all by default) and say which budgets were missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or BENCHMARKS
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; these are: {', '.join(BENCHMARKS)}")
    missed: list[str] = []
    for name in names:
        print(f"== {name}", flush=True)
        missed += import_module(f"benchmarks.{name}").run()
    print("\n".join(f"missed: {line}" for line in missed) or "all budgets kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
