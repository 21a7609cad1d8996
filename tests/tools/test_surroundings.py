"""What a machine lacks is said before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from tools import surroundings


def activate(root: Path, made_as: str) -> None:
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (root / ".venv" / "bin" / "activate").write_text(f"VIRTUAL_ENV={made_as}\nexport VIRTUAL_ENV\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, 10**12))


@pytest.mark.parametrize("name", ["plain", "with blanks", "Grün", "it's", "a,b"])
@pytest.mark.parametrize("quoted", ['"{}"', "'{}'", "{}"])
def test_a_checkout_may_lie_in_most_places(name: str, quoted: str, tmp_path: Path) -> None:
    root = tmp_path / name
    root.mkdir()
    assert surroundings.problems(root) == []
    if name != "it's":  # newer versions of venv write it as '\'', in pieces
        activate(root, quoted.format(root / ".venv"))
        assert surroundings.problems(root) == []


@pytest.mark.parametrize("sign", ['"', "$", "`", "\\", ":"])
def test_a_path_that_path_or_the_shell_would_take_otherwise(sign: str, tmp_path: Path) -> None:
    root = tmp_path / f"a{sign}b"
    root.mkdir()
    (line,) = surroundings.problems(root)
    assert "move it" in line


def test_an_environment_that_was_made_elsewhere(tmp_path: Path) -> None:
    """A checkout that was moved or copied: its programs would run the other one's code, or none."""
    activate(tmp_path, '"/old/place/.venv"')
    (line,) = surroundings.problems(tmp_path)
    assert "was made as /old/place/.venv" in line
    assert "rm -rf .venv" in line


def test_all_that_is_lacking_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 10**9))
    monkeypatch.setattr(surroundings.sys, "version_info", (3, 9, 2, "final", 0))
    monkeypatch.setattr(surroundings.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("TMPDIR", "/no/such")
    said = surroundings.problems(tmp_path)
    for words in ("this is 3.9.2", "ensurepip", "you may not write", "1.0 GB left", "TMPDIR=/no/such"):
        assert len([line for line in said if words in line]) == 1, words
    assert len(said) == 5


def test_the_command_needs_nothing_installed(tmp_path: Path) -> None:
    command = (sys.executable, "-I", "-S", str(surroundings.ROOT / "tools" / "surroundings.py"))
    done = subprocess.run(command, env={"TMPDIR": "/no/such"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "TMPDIR=/no/such is no folder" in done.stderr
