"""What the pages show, for the tests that run it word for word."""

from __future__ import annotations

import re
from pathlib import Path

from config.load import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("hyperpod-rl", "cdk", "kubectl", "helm", "aws", "ray", "make", "python", "gh", "git")


def _lines(page: Path, language: str) -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [re.sub(r"\s+#.*$", "", line).strip() for block in blocks for line in block.splitlines()]
    return [part.strip() for line in lines if line and not line.startswith("#") for part in line.split("&&")]


def shown(page: Path) -> list[str]:
    """Commands in a page's shell blocks, one a line, comments left out: they can be run as they stand."""
    return _lines(page, "sh")


def described(page: Path) -> list[str]:
    """Commands in a page's text blocks: they hold names in capitals that a reader fills in, or need more than this machine."""
    return [line for line in _lines(page, "text") if line.split()[0] in PROGRAMS]


def mentioned(page: Path) -> list[str]:
    """Commands in the running text: each begins with a program and a word, in quotes of code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    quoted = [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", text)]
    return [each for each in quoted if re.match(rf"({'|'.join(PROGRAMS)}) ", each)]


def command(page: str, beginning: str, **names: str) -> str:
    """The one command of a page that begins so, with its names in capitals filled in. A page that no longer shows it fails the caller."""
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    (found,) = {line for line in (*shown(path), *described(path)) if line.startswith(beginning)}
    for name, value in names.items():
        assert re.search(rf"\b{name}\b", found), f"{found} has no {name}"
        found = re.sub(rf"\b{name}\b", value, found)
    return found
