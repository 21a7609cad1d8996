"""What a machine must have before `make setup` begins: every problem at once, each with what mends it.

Run by whatever Python there is, before anything is installed: standard library only, and words that an old Python understands.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED_PYTHON = (3, 11)
# The virtual environment has 1.9 GB, node_modules 0.03 GB; pip unpacks beside them.
NEEDED_BYTES = 2_500_000_000


def problems(root: Path = ROOT) -> list[str]:
    """One sentence for each."""
    found = []
    if sys.version_info < NEEDED_PYTHON:
        version = ".".join(str(part) for part in sys.version_info[:3])
        found.append("Python 3.11 or newer is needed, this is {}: make PYTHON=python3.11 ...".format(version))  # noqa: UP032
    if bad := sorted(set(re.findall(r'["$`\\:\n]', str(root)))):
        found.append(f"the checkout's path {root} has {' and '.join(bad)!r} in it, which PATH or the shell takes otherwise: move it")
    made = root / ".venv"
    python = made / "bin" / "python"
    if (elsewhere := _made_for(made)) not in (None, str(made)):
        found.append(f"{made} was made as {elsewhere}, and its programs still look there: rm -rf .venv, then make setup")
    elif not os.access(python, os.X_OK) and importlib.util.find_spec("ensurepip") is None:
        found.append("this Python cannot make virtual environments, its ensurepip is missing: apt-get install python3-venv, or the like")
    if not os.access(root, os.W_OK | os.X_OK):
        found.append(f"you may not write to {root}, where .venv, node_modules and cdk.out will lie: clone the project as yourself")
    if not made.exists() and (free := shutil.disk_usage(root).free) < NEEDED_BYTES:
        found.append(f"{root} has {free / 1e9:.1f} GB left, and {NEEDED_BYTES / 1e9:.1f} GB are needed: make room, or clone elsewhere")
    temporary = os.environ.get("TMPDIR")
    if temporary and not (os.path.isdir(temporary) and os.access(temporary, os.W_OK | os.X_OK)):  # noqa: PTH112
        found.append(f"TMPDIR={temporary} is no folder that you may write to, and Node ends there: make it, or unset TMPDIR")
    return found


def _made_for(made: Path) -> str | None:
    """The path for which a virtual environment was made; None where there is none."""
    try:
        text = (made / "bin" / "activate").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    said = re.search(r"^\s*(?:export )?VIRTUAL_ENV=(.+)$", text, re.MULTILINE)
    if said is None or "'\"'\"'" in said[1]:  # an apostrophe in pieces: not worth taking apart
        return None
    return said[1].strip().strip("\"'")


if __name__ == "__main__":
    lines = problems()
    for line in lines:
        print(line, file=sys.stderr)
    sys.exit(2 if lines else 0)
