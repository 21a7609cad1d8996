"""One digest for a folder of manifests, shared by who writes it and who applies it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path


def folder_digest(folder: Path) -> str:
    """`sha256:…` over the relative names and the bytes of all files below `folder`, in the order of their names.

    Raises OSError if a file cannot be read. The same files give the same digest wherever the folder lies.
    """
    total = hashlib.sha256()
    for path in sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.relative_to(folder).as_posix()):
        content = path.read_bytes()
        # Lengths keep apart what would otherwise run together: file `a` holding `bc` and file `ab` holding `c`.
        name = path.relative_to(folder).as_posix().encode()
        total.update(len(name).to_bytes(8, "big") + name + len(content).to_bytes(8, "big") + content)
    return f"sha256:{total.hexdigest()}"


def value_digest(value: Mapping[str, object]) -> str:
    """`sha256:…` over a mapping of JSON values; the order of the keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
