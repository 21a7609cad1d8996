"""What is delivered to the endpoint through the artifact bucket: the thin application in front of Ray's, as one archive.

The name carries a digest of the content, so a manifest says exactly which code it starts, and an archive never changes.
"""

from __future__ import annotations

import hashlib
import io
import zipfile

from config import names
from config.environment import Environment
from config.load import ROOT

FILES = ("serving/routing.py", "serving/ingress.py")
IMPORT_PATH = "serving.ingress:build"
# Ray takes away the one folder at the top of an archive that it downloads
# (https://docs.ray.io/en/latest/ray-core/handling-dependencies.html#remote-uris).
_TOP = "ingress"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def contents() -> dict[str, bytes]:
    """The files of the archive, by their names in it."""
    found = {f"{_TOP}/{name}": (ROOT / name).read_bytes() for name in FILES}
    return {f"{_TOP}/serving/__init__.py": b'"""The endpoint\'s ingress."""\n', **found}


def archive() -> bytes:
    """The archive: same files, same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as written:
        for name, content in contents().items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            written.writestr(entry, content)
    return buffer.getvalue()


def key() -> str:
    """Its key in the artifact bucket, below the prefix that the endpoint's role may read."""
    return f"{names.CODE_PREFIX}ingress-{hashlib.sha256(archive()).hexdigest()[:16]}.zip"


def uri(env: Environment) -> str:
    """Its address for Ray's `runtime_env`."""
    return f"s3://{names.artifact_bucket(env)}/{key()}"
