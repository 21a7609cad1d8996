"""Command line tools of the virtual environment, wherever the checkout lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import link


@pytest.mark.parametrize("name", ["a b", "Träger und mehr", "it's", "d" * 140], ids=["blank", "umlaut", "apostrophe", "long"])
def test_a_script_that_a_package_brought_runs_wherever_the_checkout_lies(name: str, tmp_path: Path) -> None:
    """pip writes the interpreter's path into the first line of such scripts (`aws`), which Linux ends at a blank or after 127 bytes."""
    into = tmp_path / name / "bin"
    into.mkdir(parents=True)
    (into / "python").symlink_to(sys.executable)
    script = into / "aws"
    script.write_text(f"#!{into}/python\nimport sys\nprint('said', *sys.argv[1:])\n", encoding="utf-8")
    script.chmod(0o755)
    entry = into / "other"
    entry.write_bytes(b"#!/bin/sh\nexit 3\n")
    before = script.read_bytes()
    mended = link.mend_scripts(into)
    assert mended == (["aws"] if " " in str(into) or len(f"#!{into}/python") > link.LONGEST_FIRST_LINE else [])
    assert (script.read_bytes() == before) == (mended == [])
    done = subprocess.run([script, "one two"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "said one two\n"), done.stderr
    assert entry.read_bytes() == b"#!/bin/sh\nexit 3\n"
    assert link.mend_scripts(into) == [], "once is enough"


def test_kubectl_of_another_platform_does_not_hide_the_machines_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(link.platform, "machine", lambda: "aarch64")
    link.extract_kubectl_and_helm(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "aarch64" in capsys.readouterr().out


def test_npm_gets_a_cache_where_the_home_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into = tmp_path / "venv" / "bin"
    for variable in ("npm_config_cache", "NPM_CONFIG_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert link._npm_cache(into) == []
    monkeypatch.setenv("HOME", "/no-such-home")
    assert link._npm_cache(into) == ["--cache", str(tmp_path / "venv" / "share" / "npm-cache")]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert link._npm_cache(into) != []


def test_kubectl_and_helm_of_this_environment_run() -> None:
    into = Path(sys.executable).parent
    if not (into / "kubectl").exists():
        pytest.skip("not Linux on x86_64")
    for command in (("kubectl", "version", "--client"), ("helm", "version", "--short")):
        assert subprocess.run((into / command[0], *command[1:]), capture_output=True, check=False).returncode == 0
    assert shutil.which("node", path=str(into)) is not None
