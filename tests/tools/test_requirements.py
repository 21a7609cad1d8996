"""What the code imports is named in `requirements.in`: what is here only through another package may go with its next version."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("config", "k8s", "stacks", "training", "serving", "operations", "local", "cli", "tools", "benchmarks", "tests")
# In the training image only, or (pydantic_core) a part of a named one.
ELSEWHERE = {"skyrl", "gymnasium", "pydantic_core"}
# Several distributions share the name `google`.
SHARED = {"google": "protobuf"}


def imported() -> set[str]:
    found = set()
    for path in (ROOT / "app.py", *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {*FOLDERS, "app"} - ELSEWHERE


def test_every_imported_package_is_named() -> None:
    text = (ROOT / "requirements.in").read_text(encoding="utf-8")
    named = {plain(name) for name in re.findall(r"^[A-Za-z][\w.-]*", text, re.MULTILINE)}
    brings = importlib.metadata.packages_distributions()
    owners = {name: {SHARED[name]} if name in SHARED else {plain(each) for each in brings.get(name, ())} for name in imported()}
    assert {name: sorted(owner) for name, owner in owners.items() if not owner & named} == {}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
