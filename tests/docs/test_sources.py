"""What the comments and docstrings name is there."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from config.load import ROOT
from tests.docs.test_commands import FOLDERS

SOURCES = [*sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")), ROOT / "app.py"]
# A file or folder of ours; what follows a letter, a slash or a dash is part of somebody's address or of another project's path.
PLACE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w(?![\w*<{{/-])")


def said(path: Path) -> Iterator[str]:
    """Docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    with path.open("rb") as file:
        yield from (token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT)


def test_files_that_comments_name_exist() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {place}"
        for path in SOURCES
        for text in said(path)
        for place in PLACE.findall(re.sub(r"https?://\S+", "", text))
        if not (ROOT / place).exists()
    }
    assert not missing
