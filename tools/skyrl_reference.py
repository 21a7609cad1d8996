"""SkyRL itself, beside the project: what the rules of training/skyrl_rules.py are compared with.

SkyRL's own check of a configuration (`validate_cfg`) is pure Python, but its package pulls in torch, vLLM and CUDA. So it is
installed without dependencies into a folder of its own below the virtual environment, where nothing imports it by accident,
and the comparison runs it in a process of its own (tests/training/skyrl_verdicts.py). Run by `make setup`; again changes nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

# skyrl -> what is installed with it. 0.3.0 is also the newest release on PyPI (2026-11-29), so there is one version; the
# training image carries a newer commit of the repository (config/versions.py), which no registry has.
VERSIONS = {"0.3.0": ("skyrl==0.3.0", "skyrl-gym==0.4.0", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3")}


def folder(version: str) -> Path:
    """Where a version lies: `<virtual environment>/share/skyrl-reference/<version>`."""
    return Path(sys.prefix) / "share" / "skyrl-reference" / version


def install(version: str) -> Path:
    """Install one version whole or not at all, and return its folder. Exits with a sentence if pip cannot."""
    target = folder(version)
    stamp = target / ".installed"
    packages = VERSIONS[version]
    if stamp.exists() and stamp.read_text() == "\n".join(packages):
        return target
    part = target.with_name(f"{version}.part")
    shutil.rmtree(part, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(part))
    if code := subprocess.run((*pip, *packages), check=False).returncode:
        sys.exit(f"pip could not install skyrl {version} (exit code {code}); its message stands above")
    (part / ".installed").write_text("\n".join(packages))
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
    return target


def main() -> None:
    """Install every version."""
    for version in VERSIONS:
        install(version)


if __name__ == "__main__":
    main()
