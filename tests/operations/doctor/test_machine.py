"""Tools of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from operations.doctor import machine
from operations.doctor.check import Subject
from tests.operations.conftest import Variant


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one folder, and a Python that has nothing beside it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    return tmp_path


def _program(folder: Path, name: str, says: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / name).chmod(0o755)


def _lines(variant: Variant, folder: Path) -> list[tuple[str, str]]:
    return [(found.level, found.why) for found in machine.tools(Subject(variant(), variables={"PATH": str(folder)}))]


def test_what_is_missing_is_named(variant: Variant, alone: Path) -> None:
    said = _lines(variant, alone)
    assert [level for level, _ in said] == ["failed"] * 4
    assert said[0][1] == "cdk is neither beside Python nor on PATH"


def test_versions_that_do_not_fit_are_named_with_those_that_do(variant: Variant, alone: Path) -> None:
    for name, says in {
        "cdk": "2.100.0 (build x)",
        "kubectl": "Client Version: v1.31.0",
        "helm": "v3.2.1+g1",
        "aws": "aws-cli/2.9.0 x",
    }.items():
        _program(alone, name, says)
    said = dict(zip(("cdk", "kubectl", "helm", "aws"), _lines(variant, alone), strict=True))
    assert all(level == "failed" for level, _ in said.values())
    assert "kubectl is v1.31.0, and 1.34 give or take one is needed" in said["kubectl"][1]
    assert "cdk is 2.100.0, and 2." in said["cdk"][1]


def test_versions_that_fit_are_one_line(variant: Variant, alone: Path) -> None:
    for name, says in {"cdk": "2.9999.0", "kubectl": "Client Version: v1.35.1", "helm": "v4.0.0", "aws": "aws-cli/2.31.0 Python"}.items():
        _program(alone, name, says)
    assert _lines(variant, alone) == [("ok", "cdk 2.9999.0, kubectl v1.35.1, helm v4.0.0, aws 2.31.0")]


def test_a_program_that_tells_nothing_is_a_warning(variant: Variant, alone: Path) -> None:
    for name in ("cdk", "kubectl", "helm", "aws"):
        _program(alone, name, "hello")
    assert {level for level, _ in _lines(variant, alone)} == {"warning"}
