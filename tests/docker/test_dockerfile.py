"""The training image's Dockerfile against the version set, and against hadolint."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from config import images
from config.load import ROOT, load

DOCKERFILE = ROOT / "docker" / "Dockerfile"
# Written so by ARG, with a default or without.
ARGUMENT = re.compile(r"^ARG (\w+)(?:=(\S+))?$", re.MULTILINE)


def test_every_argument_is_given_by_the_build_and_has_the_version_sets_default() -> None:
    given = images.build_arguments(load("reference"))
    declared = dict(reversed(ARGUMENT.findall(DOCKERFILE.read_text())))
    assert set(declared) == set(given)
    assert {name: value for name, value in declared.items() if value and value != given[name]} == {}


def test_the_buildspec_passes_every_argument_and_pins_the_base() -> None:
    spec = yaml.safe_load((ROOT / "docker" / "buildspec.yml").read_text())
    commands = "\n".join(command for phase in spec["phases"].values() for command in phase["commands"])
    for name in images.build_arguments(load("reference")):
        value = "PINNED" if name == "BASE" else name
        assert f'--build-arg {name}="${value}"' in commands
    for name in spec["env"]["exported-variables"]:
        assert f"export {name}=" in commands


def test_labels_carry_the_version_set() -> None:
    text = DOCKERFILE.read_text()
    labels = text[text.index("LABEL ") :]
    for name in ("VERSION_SET", "RAY_VERSION", "SKYRL_REF", "VISGYM_REF", "TOOLKIT_VERSION", "BASE"):
        assert f'="${{{name}}}"' in labels, name


def test_visgym_is_the_last_thing_installed() -> None:
    """Its distribution is named gymnasium and replaces the one that SkyRL brought."""
    installs = [line.strip() for line in DOCKERFILE.read_text().splitlines() if "uv pip install" in line or "uv sync" in line]
    assert "-e ." in installs[-1]
    assert "pygame" in installs[-1]


def test_no_variable_does_nothing() -> None:
    """EFA's variables need aws-ofi-nccl, which the base does not bring; the article's others are read by nobody."""
    text = "\n".join(line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    assert set(re.findall(r"^ENV (\w+)=", text, re.MULTILINE)) == {"UV_PROJECT_ENVIRONMENT", "PYTHONPATH"}
    assert "PYTHONPATH=/home/ray/skyrl\n" in text
    assert "FI_" not in text


def test_the_container_runs_as_the_user_that_owns_the_shared_file_system() -> None:
    from k8s.pods import RAY_USER

    users = re.findall(r"^USER (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert users[-1].split(":")[0] == str(RAY_USER)


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("hadolint")), "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
