"""The check of import directions: it passes here, and it would see a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.arrows import circles, problems


def test_imports_of_this_project_run_one_way() -> None:
    assert problems() == []


def test_no_modules_of_this_project_import_each_other_in_a_circle() -> None:
    assert circles() == []


@pytest.mark.parametrize("indented", ["", "def late() -> None:\n    "])
def test_a_circle_is_found_inside_functions_too(tmp_path: Path, indented: str) -> None:
    for name, other in (("run", "jobs"), ("jobs", "console"), ("console", "run")):
        file = tmp_path / "training" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{indented}from training import {other}\n")
    assert len(circles(tmp_path)) == 1
    (tmp_path / "training" / "jobs.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from training import console\n"
    )
    assert circles(tmp_path) == []


@pytest.mark.parametrize(
    ("place", "line", "says"),
    [
        ("training/run.py", "import aws_cdk", "JavaScript"),
        ("training/run.py", "from local import cloud", "may import config"),
        ("config/names.py", "from training import run", "nothing of ours"),
        ("serving/gate.py", "import ray", "inside the function"),
        ("stacks/data.py", "import local.cloud", "may import config, k8s"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, place: str, line: str, says: str) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(line + "\n")
    assert [found for found in problems(tmp_path) if says in found]


def test_an_import_inside_a_function_is_free(tmp_path: Path) -> None:
    file = tmp_path / "training" / "jobs.py"
    file.parent.mkdir()
    file.write_text("def submit() -> None:\n    import ray\n")
    assert problems(tmp_path) == []
