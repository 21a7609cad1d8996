"""SkyRL's override language, typed: read it, write it, and say what is wrong with it before a GPU is paid for.

SkyRL takes `key=value` arguments, reads each value as OmegaConf does (YAML), refuses unknown keys and does not check
types: `trainer.policy_mini_batch_size=abc` is accepted and fails on the nodes (`SkyRLTrainConfig.from_cli_overrides`,
https://github.com/NovaSky-AI/SkyRL, skyrl 0.3.0). So `parse` checks types, and `problems` checks the rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from config.problems import Problem
from training.skyrl_keys import FREE, KEYS, MOVED, SECTIONS, Key, Scalar, Value
from training.skyrl_rules import problems
from training.skyrl_settings import with_defaults

__all__ = [
    "KEYS",
    "Key",
    "Scalar",
    "Value",
    "parse",
    "problems",
    "render",
    "solve_rate_from_log",
    "with_defaults",
]

# OmegaConf's loader is YAML's safe loader with this pattern for floats (`1e-6` is a float) and without timestamps
# (https://github.com/omry/omegaconf/blob/v2.3.0/omegaconf/_utils.py, get_yaml_loader).
_FLOAT: Final = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |\.[0-9_]+(?:[eE][-+][0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_NOT_DECIMAL: Final = re.compile(r"^[-+]?(?:0[0-7_]+|[0-9][0-9_]*(?::[0-9.]+)+)$")
_KINDS: Final = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool|int": "true, false or an integer",
    "list[str]": "a list of texts",
    "list[int]": "a list of integers",
    "list[float]": "a list of numbers",
    "dict": "a dictionary",
}
_PLAIN: Final = re.compile(r"^[A-Za-z0-9_./][A-Za-z0-9_./+@%-]*$")
_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$")


def parse(overrides: Sequence[str]) -> tuple[dict[str, Value], list[Problem]]:
    """Read SkyRL overrides.

    Args:
        overrides: `key=value` words as the trainer gets them, for example `trainer.policy.optimizer_config.lr=3.0e-6`.

    Returns:
        The values by dotted name (an integer given for a float is made a float; a section or a free dictionary given as
        `{a: 1}` becomes `section.a`), and every problem found. A word with a problem has no value in the result.
    """
    values: dict[str, Value] = {}
    found: list[Problem] = []
    for word in overrides:
        name, equals, text = word.partition("=")
        if word.startswith("+"):
            fix = f"drop the plus: {word.lstrip('+')}"
            found.append(Problem(name, text, "SkyRL accepts no '+' prefix, new keys cannot be added", fix))
            continue
        if not equals:
            found.append(Problem(word, "", "an override is written key=value, the '=' is missing", f"write {word[:60]}=VALUE"))
            continue
        if not name:
            found.append(Problem(word, "", "an override is written key=value, the key is missing", "name the key"))
            continue
        try:
            value = _yaml(text)
        except ValueError as error:
            found.append(Problem(name, text, f"the value is not valid YAML ({error})", "quote it, as in key='\"a: b\"'"))
            continue
        for key, item in _leaves(name, value):
            problem = _wrong(key, item) or _double(key, item, values)
            if problem is None:
                values[key] = _as_kind(key, item)
            else:
                found.append(problem)
    return values, found


def render(values: Mapping[str, Value]) -> list[str]:
    """Write values as SkyRL overrides, sorted by name; `parse` gives the same values back."""
    return [f"{name}={_text(values[name])}" for name in sorted(values)]


def solve_rate_from_log(avg_score: float, format_rate: float) -> float:
    """Mazes solved / mazes tried, from `eval/all/avg_score` and `eval/all/environment/avg_format_success_rate`.

    SkyRL's `pass_at_1` counts an episode whose last reward is above 0, and the `sft` variant of the maze environment
    pays 0.2 for format alone: an agent that stops at once passes every maze and solves none. Its terminal reward is
    `0.8 * solved + 0.2 * share of well-formed turns` (examples/train/visgym/env_sft.py), hence this formula. It is
    exact only when no episode was cut by its length, which leaves the terminal reward out; the eval dump has no such
    limit.

    Returns:
        a share between 0 and 1 (the log rounds to 4 decimals, so it is clamped).
    """
    return min(1.0, max(0.0, (avg_score - 0.2 * format_rate) / 0.8))


def _leaves(name: str, value: Value) -> Iterator[tuple[str, Value]]:
    """Spread `section={a: 1}` into `section.a=1`; anything else is one leaf."""
    inside = name in SECTIONS or name in FREE or _free_parent(name) is not None
    if isinstance(value, dict) and value and inside and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    else:
        yield name, value


def _free_parent(name: str) -> str | None:
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        if (parent := ".".join(parts[:depth])) in FREE:
            return parent
    return None


def _wrong(name: str, value: Value) -> Problem | None:
    shown = _text(value)
    if name in MOVED:
        return Problem(name, shown, "SkyRL no longer has this key", MOVED[name])
    if "${" in shown:
        return Problem(name, shown, "OmegaConf would resolve '${...}' on the node", "write the value itself")
    if name not in KEYS and _free_parent(name) is not None:
        return None if _NAME.match(name) else Problem(name, shown, "the key is no dotted name", "use letters, digits, _ and .")
    if name not in KEYS:
        return _unknown(name, shown)
    key = KEYS[name]
    if value is None:
        return None if key.nullable else Problem(name, shown, f"null is no value, {_KINDS[key.kind]} is expected", _example(key))
    if key.kind == "section":
        return Problem(name, shown, "this is a section, not a value", f"set one of its keys, for example {name}.temperature=0")
    if _fits(key.kind, value):
        return None
    return Problem(name, shown, f"{_KINDS[key.kind]} is expected, this is {_kind_of(value)}", _example(key, value))


def _unknown(name: str, shown: str) -> Problem:
    import difflib

    if name in SECTIONS:
        return Problem(name, shown, "this is a section of SkyRL's configuration, not a key", f"set one of the keys below {name}")
    near = difflib.get_close_matches(name, KEYS, n=1, cutoff=0.75)
    if not near:  # right last part at the wrong place, for example trainer.n_samples_per_prompt
        near = [key for key in KEYS if key.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    fix = f"did you mean {near[0]}" if near else "see training/skyrl_keys.py for the keys"
    return Problem(name, shown, "SkyRL 0.3.0 has no such key", fix)


def _double(name: str, value: Value, values: Mapping[str, Value]) -> Problem | None:
    if name in values:
        return Problem(name, _text(value), f"the key is given twice, first as {_text(values[name])}", "give it once")
    for other in values:
        if other.startswith(f"{name}.") or name.startswith(f"{other}."):
            return Problem(name, _text(value), f"it overlaps with {other}, which is also given", "give one of the two")
    return None


def _fits(kind: str, value: Value) -> bool:
    if kind.startswith("list["):
        return isinstance(value, list) and all(_fits(kind[5:-1], item) for item in value)
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        case "str":
            return isinstance(value, str)
        case "dict":
            return isinstance(value, dict)
        case "bool|int":
            return isinstance(value, int)
    raise AssertionError(f"unknown kind {kind}")


def _as_kind(name: str, value: Value) -> Value:
    kind = KEYS[name].kind if name in KEYS else "free"
    if kind == "float" and isinstance(value, int):
        return float(value)
    if kind == "list[float]" and isinstance(value, list):
        return [float(item) if isinstance(item, int) else item for item in value]
    return value


def _kind_of(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    words = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a dictionary",
    }
    return words[type(value)]


def _example(key: Key, value: Value = None) -> str:
    if key.kind == "str" and isinstance(value, (int, float, bool)):
        return f"quote it inside the value: {key.name}='\"{_text(value)}\"'"
    if key.kind == "list[str]" and isinstance(value, str):
        return f"write a list: {key.name}=[{_text(value)}]"
    if key.default not in (None, {}):
        return f"write for example {key.name}={_text(key.default)}"
    words = {"int": "8", "float": "0.5", "str": "word", "bool": "true", "list[str]": "[word]", "dict": "{name: 1}"}
    return f"write for example {key.name}={words.get(key.kind, 'VALUE')}"


# --- YAML as OmegaConf reads it ---------------------------------------------------------------------------------------


@cache
def _loader() -> Any:
    """YAML's safe loader with OmegaConf's changes. Built on first use: importing yaml costs more than this module."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads values the way OmegaConf's command line does; refuses aliases, which can grow without limit."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("aliases are no values")
            return super().compose_node(parent, index)

    dropped = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float")
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in dropped]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def number(loader: Any, node: Any) -> int | float:
        # YAML 1.1 reads 010 as 8 and 1:30 as 90 (https://yaml.org/type/int.html), and so would the trainer.
        if _NOT_DECIMAL.match(node.value):
            raise ValueError(f"{node.value[:20]} is read as an octal or base-60 number, write a decimal one")
        if len(node.value) > 100:
            raise ValueError(f"a number of {len(node.value)} characters")
        return loader.construct_yaml_int(node) if node.tag.endswith(":int") else loader.construct_yaml_float(node)  # type: ignore[no-any-return]

    for tag in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{tag}", number)
    # The float pattern goes last, as OmegaConf adds it: what reads as an int stays an int.
    for first in "-+0123456789.":
        Loader.yaml_implicit_resolvers.setdefault(first, []).append(("tag:yaml.org,2002:float", _FLOAT))
    return Loader


def _yaml(text: str) -> Value:
    import yaml

    try:
        value: Value = yaml.load(text, Loader=_loader())  # noqa: S506  a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    except (LookupError, TypeError, AttributeError, OverflowError) as error:  # PyYAML's, for !!bool abc and !!timestamp abc
        raise ValueError("it does not fit its tag") from error
    if not _plain_data(value):
        raise ValueError("only words, numbers, lists and dictionaries are values")
    return value


def _plain_data(value: object) -> bool:
    if isinstance(value, list):
        return all(_plain_data(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain_data(item) for key, item in value.items())
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return value is None or isinstance(value, (bool, int, float))


def _text(value: Value) -> str:
    """The value in YAML's flow style, on one line, such that OmegaConf reads the same value back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return ".nan"
        return repr(value) if math.isfinite(value) else (".inf" if value > 0 else "-.inf")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}"
    if _PLAIN.match(value) and not _NOT_DECIMAL.match(value) and _yaml(value) == value:
        return value
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    code = ord(character)
    if 0x20 <= code < 0x7F:
        return character
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
