"""docs/environment.md: every key of an environment, written from the typed model itself.

`python -m tools.environment_page` writes it anew; a test fails while it says something else than the model.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from config.environment import Environment
from config.load import ROOT
from config.model import sentence

PAGE = ROOT / "docs" / "environment.md"
COMMAND = "python -m tools.environment_page"
_HEAD = f"""# Every key of an environment

An environment is one YAML file, `environments/NAME.yaml`. Types are strict (`count: "3"` is refused), unknown keys are refused with the
nearest right one, and every problem is told at once, before anything is made. Rules that concern several keys are in `config/rules.py`
and the files beside it. This page is written from the model (`{COMMAND}`).
"""
_LIMITS = (
    (Ge, "ge", "at least"), (Gt, "gt", "more than"), (Le, "le", "at most"), (Lt, "lt", "less than"), (MinLen, "min_length", "at least"),
    (MaxLen, "max_length", "at most"),
)  # fmt: skip
_PLAIN = {int: "integer", str: "text", float: "number", bool: "true or false"}


def page() -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD]
    for prefix, model in _models(Environment, ""):
        parts.append(f"## {prefix or 'The file itself'}\n\n{_first_paragraph(model)}\n")
        comments = _comments(model)
        rows = [_row(name, info, comments.get(name, "")) for name, info in model.model_fields.items()]
        parts.append("\n".join(("| key | takes | default | |", "|---|---|---|---|", *rows)) + "\n")
    return "\n".join(parts)


def _models(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield prefix, model
    for name, info in model.model_fields.items():
        for inner, many in _parts(info.annotation, many=False):
            path = f"{prefix}.{name}" if prefix else name
            yield from _models(inner, f"{path}[]" if many else path)


def _parts(annotation: Any, *, many: bool) -> Iterator[tuple[type[BaseModel], bool]]:
    """The models inside an annotation; `many` for those that stand in a list."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation, many
    for inner in get_args(annotation):
        if not isinstance(inner, str):
            yield from _parts(inner, many=many or get_origin(annotation) in (tuple, list))


def _row(name: str, info: FieldInfo, comment: str) -> str:
    takes = _takes(info.annotation, info.metadata)
    cells = (f"`{name}`", takes, _default(info), comment)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**needed**"
    value = info.default if info.default_factory is None else info.default_factory()  # type: ignore[call-arg]
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    return "" if value is None or value in ((), {}) else f"`{json.dumps(value)}`"


def _takes(annotation: Any, metadata: list[Any]) -> str:
    if (pattern := next((p for item in metadata if (p := getattr(item, "pattern", None))), None)) is not None:
        return _rule(pattern)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_takes(each, metadata) for each in inner if each is not type(None)))
    if hasattr(annotation, "__metadata__"):
        return _takes(annotation.__origin__, [*annotation.__metadata__, *metadata])
    if origin in (tuple, list):
        return f"list of: {_takes(inner[0], [])}{_bounds(metadata)}"
    if origin is dict:
        return f"map to: {_takes(inner[1], [])}"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "see below"
    return f"{_PLAIN.get(annotation, getattr(annotation, '__name__', str(annotation)))}{_bounds(metadata)}"


def _rule(pattern: str) -> str:
    rule, example = sentence(pattern)
    return rule if rule.startswith("it must match") else f"{rule}, {example}"


def _bounds(metadata: list[Any]) -> str:
    """Limits in words, of an integer, a number or a list."""
    limits = [each for item in metadata for each in (getattr(item, "metadata", None) or [item])]
    said = [f"{word} {getattr(each, name)}" for each in limits for kind, name, word in _LIMITS if isinstance(each, kind)]
    return f", {', '.join(said)}" if said else ""


def _first_paragraph(model: type[BaseModel]) -> str:
    text = inspect.cleandoc(model.__doc__ or "")
    return " ".join(text.split("\n\n", 1)[0].split())


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment lines directly above each field: the model's own words."""
    source = inspect.cleandoc("\n" + inspect.getsource(model))
    lines, found = source.splitlines(), {}
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)).body
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above: list[str] = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#"):
                    break
                above.insert(0, line.strip().lstrip("# "))
            found[node.target.id] = " ".join(above)
    return found


def main(target: Path = PAGE) -> int:
    """Write the page."""
    target.write_text(page(), encoding="utf-8")
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
