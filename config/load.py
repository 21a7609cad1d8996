"""From a name or a file to a validated environment, or to every problem that it has."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from config import rules
from config.environment import Environment
from config.model import sentence
from config.problems import Problem, Refused

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "environments"
LARGEST_FILE = 1 << 20
# An alias repeats what its anchor holds: a few lines can stand for gigabytes. Characters of all scalars, and one for each node.
LARGEST_EXPANDED = 1 << 18


class _Loader(yaml.SafeLoader):
    """YAML as JSON knows it: a key written twice is an error, a date stays a string, and so does a number that is not decimal."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[str, int] = {}
    for key_node, _ in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key `{key}` stands in lines {seen[key]} and {line}", key_node.start_mark)
        seen[key] = line
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
# YAML 1.1 (https://yaml.org/type/int.html) reads 010 as 8 and 1:30 as 90, which nobody means who writes them here.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"^(?:[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?|\.[0-9]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
_LONGEST_NUMBER = 100  # digits; Python itself refuses to read more than 4300
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    if not _NUMBERS[node.tag].match(node.value):  # only an explicit tag comes here: !!int 010
        raise yaml.constructor.ConstructorError(None, None, "this is no decimal number", node.start_mark)
    if len(node.value) > _LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, f"a number of {len(node.value)} characters", node.start_mark)
    if node.tag.endswith(":int"):
        return int(node.value)
    return loader.construct_yaml_float(node)


for _tag in _NUMBERS:
    _Loader.add_constructor(_tag, _number)


def _read_yaml(text: str) -> Any:
    """The data of one YAML document. Raises yaml.YAMLError, and whatever PyYAML's constructors let through."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}) > LARGEST_EXPANDED:
            raise yaml.composer.ComposerError(None, None, f"with its aliases written out it has more than {LARGEST_EXPANDED} characters")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Size of a node with every alias written out; each node is looked at once."""
    if id(node) in known:
        if known[id(node)] < 0:
            raise yaml.composer.ComposerError(None, None, "an alias stands inside its own anchor", node.start_mark)
        return known[id(node)]
    known[id(node)] = -1
    size = 1
    if isinstance(node, yaml.ScalarNode):
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise yaml.composer.ComposerError(None, None, "half of a surrogate pair is no character", node.start_mark)
        size += len(node.value)
    else:
        for item in node.value:
            size += sum(_expanded(part, known) for part in (item if isinstance(item, tuple) else (item,)))
    known[id(node)] = size
    return size


def path_of(name: str) -> Path:
    """The file that a name or path stands for. Raises Refused if there is none."""
    if not name.strip():
        raise Refused(Problem("environment", repr(name), "a name or a file is needed", f"use one of {', '.join(names())}"))
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    try:
        path = Path(name).expanduser() if is_path else ENVIRONMENTS / f"{name}.yaml"
        if path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):  # a name too long for the file system, with a null byte, or ~ of an unknown user
        pass
    close = difflib.get_close_matches(name, names(), n=1)
    fix = f"did you mean {close[0]}" if close else f"use one of {', '.join(names())}, or the path of a YAML file"
    raise Refused(Problem("environment", name, "there is no such file" if is_path else "there is no such environment", fix))


def names() -> list[str]:
    """Environments that the project carries."""
    return sorted(path.stem for path in ENVIRONMENTS.glob("*.yaml"))


def load(name: str, *, account: str | None = None) -> Environment:
    """Read, type and check an environment by name (`reference`) or file.

    `account` overrides the file's account (the CDK context value `account`). Raises Refused with every problem.
    """
    path = path_of(name)
    return parse(_read(path), where=path.name, account=account)


def parse(text: str, *, where: str = "environment", account: str | None = None) -> Environment:
    """Type and check the text of an environment file. Raises Refused with every problem."""
    try:
        data = _read_yaml(text)
    except yaml.YAMLError as error:
        raise Refused(Problem(where, "", f"this is not valid YAML: {_yaml_message(error)}", "mend that line")) from None
    except RecursionError:
        raise Refused(Problem(where, "", "this YAML is nested too deeply", "an environment has four levels")) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        # PyYAML's constructors raise these for a tag that its value does not fit: !!bool abc, !!timestamp abc.
        said = f"a value does not fit its tag ({type(error).__name__}: {error})"
        raise Refused(Problem(where, "", f"this is not valid YAML: {said}", "write the value without a !!tag")) from None
    if data is None:
        raise Refused(Problem(where, "", "the file is empty", "start from environments/reference.yaml"))
    if not isinstance(data, dict):
        raise Refused(
            Problem(
                where,
                type(data).__name__,
                "an environment is a mapping of keys",
                "start from environments/reference.yaml",
            )
        )
    if account is not None:
        data["account"] = account
    try:
        env = Environment.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        raise Refused([*map(_problem, error.errors()), *_behind(data, error)]) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(Problem(where, "", f"the file holds a value that no field takes ({error})", "remove it")) from None
    if found := rules.problems(env):
        raise Refused(found)
    return env


def _behind(data: dict[str, Any], error: ValidationError) -> list[Problem]:
    """What the cross-field rules would say once the fields of `error` are mended, as far as that can be known now.

    A value of the wrong type is taken for what it looks like ("4" for 4), any other wrong one for its default; nothing is
    said about these fields themselves.
    """
    wrong: set[str] = set()
    for _ in range(3):  # a removed key may be a needed one: then there is nothing to judge
        places = [tuple(part for part in detail["loc"] if part not in _UNION_TAGS) for detail in error.errors()]
        wrong.update(_field(place) for place in places)
        try:
            env = Environment.model_validate_json(json.dumps(data, default=str), strict=False)
        except ValidationError as again:
            gone = [_removed(data, tuple(p for p in detail["loc"] if p not in _UNION_TAGS)) for detail in again.errors()]
            if not all(gone):
                return []
            error = again
        except (ValueError, TypeError, RecursionError):
            return []
        else:
            return [problem for problem in rules.problems(env) if not any(_same_place(problem.field, field) for field in wrong)]
    return []


def _removed(data: Any, place: tuple[int | str, ...]) -> bool:
    """Take one key out of a mapping somewhere in `data`; False if it is not there, or is an item of a list or the whole."""
    if not place:
        return False
    for part in place[:-1]:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(data, dict) and data.pop(place[-1], data) is not data


def _same_place(one: str, other: str) -> bool:
    first, second = sorted((one, other), key=len)
    return second == first or second.startswith((f"{first}.", f"{first}["))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise Refused(Problem("environment", str(path), "the file is larger than 1 MiB", "this is hardly an environment file"))
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refused(Problem("environment", str(path), f"the file is not UTF-8 text ({error.reason})", "save it as UTF-8")) from None
    except OSError as error:
        raise Refused(Problem("environment", str(path), f"the file cannot be read ({error.strerror})", "check its permissions")) from None


def _yaml_message(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or error).replace("\n", " ")
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}" if mark is not None else what


def _field(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _shown(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _problem(detail: ErrorDetails) -> Problem:
    location, kind = detail["loc"], detail["type"]
    field = _field(tuple(part for part in location if not (isinstance(part, str) and part in _UNION_TAGS)))
    if kind == "extra_forbidden":
        known = sorted(_keys_at(location[:-1]))
        close = difflib.get_close_matches(str(location[-1]), known, n=1)
        return Problem(field, _shown(detail["input"]), "there is no such key",
                       f"did you mean `{close[0]}`" if close else f"the keys here are {', '.join(known)}")  # fmt: skip
    if kind == "missing":
        return Problem(field, "", "this key is needed", "see environments/reference.yaml")
    if kind == "string_pattern_mismatch":
        return Problem(field, _shown(detail["input"]), *sentence(detail["ctx"]["pattern"]))
    message = detail["msg"][0].lower() + detail["msg"][1:]
    return Problem(
        field,
        _shown(detail["input"]),
        message.replace("input should", "it should").replace("tuple should", "the list should"),
        _fix(kind, detail),
    )


# pydantic puts the tried member of a union into the location; a reader knows only the field.
_UNION_TAGS = {"bool", "int", "float", "str", "none", "tuple"}
_FIXES = {
    "int_type": "write a whole number without quotes",
    "float_type": "write a number without quotes",
    "bool_type": "write true or false",
    "string_type": "write a string (in quotes if it looks like a number)",
    "tuple_type": "write a list",
    "model_type": "write a mapping of keys",
    "dict_type": "write a mapping of keys",
}


def _fix(kind: str, detail: ErrorDetails) -> str:
    if kind == "literal_error":
        return f"use one of {detail.get('ctx', {}).get('expected', 'the values listed')}"
    return _FIXES.get(kind, "mend the value")


def _keys_at(location: tuple[int | str, ...]) -> Iterator[str]:
    """Keys of the model at this place of the environment (for the did-you-mean)."""
    model: Any = Environment
    for part in location:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    if isinstance(model, type) and issubclass(model, BaseModel):
        yield from model.model_fields


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if (found := _model_in(argument)) is not None:
            return found
    return None
