"""Imports run one way: this checks that no folder imports one that it must not know of.

A launcher that starts a JavaScript kernel to print its help is broken, and a product that knows its stand-in proves nothing.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("config", "k8s", "stacks", "training", "serving", "operations", "local", "cli")
JAVASCRIPT = ("aws_cdk", "cdk8s", "cdk8s_plus_27", "constructs", "jsii", "cdk_nag")
# Folder -> what of ours it may import. Nothing but local/ and the command line (lazily, by name) knows of local/.
MAY_IMPORT = {
    "config": (),
    "k8s": ("config",),
    "stacks": ("config", "k8s"),
    "training": ("config",),
    "serving": ("config", "training"),
    "operations": ("config", "training"),
    "cli": ("config", "training", "serving", "operations", "local"),
    "local": OURS,
}
WITHOUT_JAVASCRIPT = ("config", "training", "serving", "operations", "cli", "local")
ONLY_INSIDE_FUNCTIONS = ("ray", "boto3", "botocore", "kubernetes", "sagemaker_ray")


def imports(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Every import of a module: (top-level name, line, whether it runs when the module is imported)."""
    lazy: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            lazy.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        else:
            continue
        for module in modules:
            yield module.split(".")[0], node.lineno, node not in lazy


def problems(root: Path = ROOT) -> list[str]:
    """One sentence for each forbidden import."""
    found = []
    for folder, allowed in MAY_IMPORT.items():
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root)
            for name, line, at_import in imports(ast.parse(path.read_text(encoding="utf-8"))):
                if name in OURS and name != folder and name not in allowed:
                    found.append(f"{place}:{line} imports {name}: {folder}/ may import {', '.join(allowed) or 'nothing of ours'}.")
                if name in JAVASCRIPT and folder in WITHOUT_JAVASCRIPT:
                    found.append(f"{place}:{line} imports {name}: {folder}/ must work without a JavaScript kernel.")
                if name in ONLY_INSIDE_FUNCTIONS and at_import and folder in ("config", "training", "serving", "operations", "cli"):
                    found.append(f"{place}:{line} imports {name} at the top: import it inside the function that needs it.")
    return found


def _modules(root: Path) -> dict[str, Path]:
    """Every module of ours, by its dotted name."""
    found = {}
    for folder in OURS:
        for path in sorted((root / folder).rglob("*.py")):
            words = path.relative_to(root).with_suffix("").parts
            found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def _imported(tree: ast.Module, known: Collection[str]) -> Iterator[str]:
    """The modules of ours that a module imports, inside functions too; what only types need (TYPE_CHECKING) is left out."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known or node.module in known:
                    yield name if name in known else node.module


def circles(root: Path = ROOT) -> list[str]:
    """One sentence for each circle of imports: modules that none of them can be understood, or tested, without."""
    known = _modules(root)
    graph = {name: set(_imported(ast.parse(path.read_text(encoding="utf-8")), known)) - {name} for name, path in known.items()}
    sorter = graphlib.TopologicalSorter(graph)
    try:
        sorter.prepare()
    except graphlib.CycleError as circle:
        return [f"{' -> '.join(reversed(circle.args[1]))} is a circle of imports: move what both need into a module of its own."]
    return []


if __name__ == "__main__":
    lines = problems() + circles()
    print("\n".join(lines) or "arrows: imports run one way")
    sys.exit(1 if lines else 0)
