"""Runs in the pod of the `model` chart: bring a model from Hugging Face to the shared file system, whole or not at all.

The script stands alone (it is mounted from a ConfigMap). Everything goes into a folder beside the target, is checked there
against the sizes and hashes that the hub publishes, and is renamed as the last step; so a target with its marker is whole.
Killed at any point and run again it goes on with the files that are there.

Exit codes: 0 the model is there, 1 try again, 2 trying again does not help.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

MARKER = ".complete"
DONE, AGAIN, NEVER = 0, 1, 2


def main() -> int:
    """Fetch $REPOSITORY at $REVISION (its folder $SUBFOLDER, if set) to $TARGET. A token, if any, is in $HF_TOKEN."""
    repository, revision, subfolder = (os.environ[name] for name in ("REPOSITORY", "REVISION", "SUBFOLDER"))
    target = Path(os.environ["TARGET"])
    target.parent.mkdir(parents=True, exist_ok=True)
    # A pod that was given up may still run beside its successor; Lustre takes the lock over nodes (mount option flock).
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (target / MARKER).exists():
            print(f"{target} is complete", flush=True)
            return DONE
        if target.exists():
            print(f"{target} exists without {MARKER}: if it is whole, touch {target / MARKER}; if not, remove it", file=sys.stderr)
            return NEVER
        return _fetch(repository, revision, subfolder.strip("/"), target)


def _fetch(repository: str, revision: str, subfolder: str, target: Path) -> int:
    hub = import_module("huggingface_hub")  # in the training image; nothing here needs it elsewhere
    found = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    prefix = f"{subfolder}/" if subfolder else ""
    files = [file for file in found.siblings or [] if file.rfilename.startswith(prefix)]
    if not any(file.rfilename == f"{prefix}config.json" for file in files):
        print(f"{repository} has no {prefix}config.json at {revision} ({found.sha})", file=sys.stderr)
        return NEVER
    part = target.with_name(f".{target.name}.part")
    # By commit: a branch that moves in the middle would mix two models.
    hub.snapshot_download(repository, revision=found.sha, local_dir=part, allow_patterns=[f"{prefix}*"])
    damaged = [file.rfilename for file in files if not _is_whole(part / file.rfilename, file)]
    for name in damaged:
        (part / name).unlink(missing_ok=True)
    if damaged:
        print(f"size or hash is wrong, fetched again at the next try: {', '.join(damaged)}", file=sys.stderr)
        return AGAIN
    source = part / subfolder
    shutil.rmtree(part / ".cache", ignore_errors=True)  # the hub's bookkeeping of the download
    record = {"repository": repository, "revision": revision, "commit": found.sha, "files": {file.rfilename: file.size for file in files}}
    (source / MARKER).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    source.rename(target)
    shutil.rmtree(part, ignore_errors=True)
    print(f"{target} is complete: {repository} at {found.sha}, {sum(file.size or 0 for file in files) / 1e9:.1f} GB", flush=True)
    return DONE


def _is_whole(path: Path, file: Any) -> bool:
    """Whether a file has the size and hash that the hub gives: SHA-256 for large files, git's own for the others."""
    if not path.is_file() or (file.size is not None and path.stat().st_size != file.size):
        return False
    if file.lfs is not None:
        return bool(_hash(path, hashlib.sha256()) == file.lfs.sha256)
    git = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    return bool(file.blob_id is None or _hash(path, git) == file.blob_id)


def _hash(path: Path, total: hashlib._Hash) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: total).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
