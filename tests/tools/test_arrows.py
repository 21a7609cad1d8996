"""The check of import directions: it passes here, and it would see a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.arrows import problems


def test_imports_of_this_project_run_one_way() -> None:
    assert problems() == []


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
