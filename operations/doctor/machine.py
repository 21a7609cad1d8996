"""This machine: the programs that the commands call, and its clock."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from config.load import ROOT
from operations.doctor.check import Finding, Subject, failed, ok, warning

# AWS refuses signatures that are more than 5 minutes off:
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
SKEW_FAILED_SECONDS, SKEW_WARNING_SECONDS = 300.0, 30.0
SETUP = "make setup puts the pinned one into .venv/bin; source .venv/bin/activate"
Version = tuple[int, ...]


@dataclass(frozen=True)
class Tool:
    """A program: how to learn its version, and which ones will do."""

    name: str
    found: Callable[[Path], str | None]
    fits: Callable[[Version, Subject], bool]
    wanted: Callable[[Subject], str]


def tools(subject: Subject) -> Iterator[Finding]:
    """Everything is on PATH in a version that fits."""
    fine = []
    for tool in TOOLS:
        beside = Path(sys.executable).parent / tool.name
        place = str(beside) if os.access(beside, os.X_OK) else shutil.which(tool.name, path=subject.variables.get("PATH"))
        if place is None:
            yield failed(f"{tool.name} is neither beside Python nor on PATH", SETUP)
            continue
        said = tool.found(Path(place))
        number = parsed(said or "")
        if said is None or not number:
            yield warning(f"{place} does not tell its version", SETUP)
        elif not tool.fits(number, subject):
            yield failed(f"{tool.name} is {said}, and {tool.wanted(subject)} is needed ({place})", SETUP)
        else:
            fine.append(f"{tool.name} {said}")
    if fine:
        yield ok(", ".join(fine))


def clock(subject: Subject) -> Iterator[Finding]:
    """Against the time that AWS wrote on its first answer."""
    then = subject.answered_at
    if then is None:
        yield Finding("warning", "not looked at: AWS did not say what time it is", looked=False)
        return
    skew = subject.now() - then
    fix = "synchronise it (chrony, ntpd)"
    if abs(skew) > SKEW_FAILED_SECONDS:
        yield failed(f"this machine's clock is {skew:+.0f} s off; AWS refuses signatures that are {SKEW_FAILED_SECONDS:.0f} s off", fix)
    elif abs(skew) > SKEW_WARNING_SECONDS:
        yield warning(f"this machine's clock is {skew:+.0f} s off", fix)
    else:
        yield ok(f"within {SKEW_WARNING_SECONDS:.0f} s of AWS's")


def parsed(said: str) -> Version:
    """The first dotted number of a text."""
    match = re.search(r"(\d+(?:\.\d+)+)", said)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def _said(*arguments: str) -> Callable[[Path], str | None]:
    def found(place: Path) -> str | None:
        try:
            done = subprocess.run(
                [str(place), *arguments], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r"v?\d+\.\d+\.\d+", done.stdout + done.stderr)
        return match.group(0) if match else None

    return found


def _cdk(place: Path) -> str | None:
    """From its package: asking the program itself starts a Node for most of a second."""
    for folder in place.resolve().parents:
        try:
            package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if package.get("name") == "aws-cdk":
            return str(package.get("version"))
    return _said("--version")(place)


def _aws(place: Path) -> str | None:
    """From its package where it is a Python one beside this Python, for the same reason."""
    if place.parent == Path(sys.executable).parent:
        try:
            return version("awscli")
        except PackageNotFoundError:
            pass
    return _said("--version")(place)


def _pinned_cdk() -> Version:
    package = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    return parsed(str(package["dependencies"]["aws-cdk"]))


def _kubernetes(subject: Subject) -> Version:
    return parsed(subject.environment.version_set.platform.kubernetes)


TOOLS = (
    Tool("cdk", _cdk, lambda found, _: found >= _pinned_cdk(), lambda _: ".".join(map(str, _pinned_cdk())) + " or newer"),
    # One minor version apart at most: https://kubernetes.io/releases/version-skew-policy/#kubectl
    Tool(
        "kubectl", _said("version", "--client"),
        lambda found, subject: found[0] == _kubernetes(subject)[0] and abs(found[1] - _kubernetes(subject)[1]) <= 1,
        lambda subject: f"{subject.environment.version_set.platform.kubernetes} give or take one",
    ),
    Tool("helm", _said("version", "--short"), lambda found, _: found >= (3, 8), lambda _: "3.8 or newer (charts from OCI registries)"),
    # `aws eks get-token` speaks client.authentication.k8s.io/v1beta1 from these on:
    # https://docs.aws.amazon.com/eks/latest/userguide/create-kubeconfig.html
    Tool("aws", _aws, lambda found, _: found >= (1, 27, 160) and not (2,) <= found < (2, 13), lambda _: "1.27.160, or 2.13, or newer"),
)  # fmt: skip
