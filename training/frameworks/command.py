"""A plain command: any trainer whose log has a line a step, and that takes other words once there is something to resume from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from config.environment import Environment
from config.problems import Problem
from training.console import Step
from training.frameworks.framework import Command, Framework
from training.frameworks.lines import LineParser
from training.layout import RunFolder
from training.skyrl_keys import Value

_WORD: Final = re.compile(r"^-{0,2}[A-Za-z_][\w.-]*=")


def configure(env: Environment, run_id: str, folder: RunFolder, settings: Sequence[str]) -> tuple[dict[str, Value], list[Problem]]:
    """The environment's `overrides`, and `--set` words over them. The command gets them as `key=value` words."""
    values: dict[str, Value] = {key: list(value) if isinstance(value, tuple) else value for key, value in env.training.overrides.items()}
    found = []
    for word in settings:
        name, equals, text = word.partition("=")
        if not equals or not _WORD.match(word):
            found.append(Problem(f"--set {name}", text, "this is no key=value word", "for example --set epochs=5"))
        else:
            values[name] = text
    return values, found


def problems(env: Environment, values: Mapping[str, Value]) -> list[Problem]:
    """What is wrong with the pattern and with the way to resume. What the command itself refuses, `training.checks` says."""
    plain, found = env.training.command, []
    try:
        if "step" not in re.compile(plain.step_pattern).groupindex:
            found.append(Problem("training.command.step_pattern", plain.step_pattern, "it has no group named step", "write (?P<step>\\d+)"))
    except re.error as error:
        found.append(Problem("training.command.step_pattern", plain.step_pattern, f"this is no regular expression: {error}", "mend it"))
    if plain.resume_words and plain.resume_marker is None:
        rule = "nothing says when they are due"
        found.append(Problem("training.command.resume_words", " ".join(plain.resume_words), rule, "set training.command.resume_marker"))
    if plain.resume_marker is not None and (plain.resume_marker.startswith("/") or ".." in plain.resume_marker.split("/")):
        rule = "it is relative to the run's folder"
        found.append(Problem("training.command.resume_marker", plain.resume_marker, rule, "for example checkpoints/latest"))
    return found


def words(values: Mapping[str, Value]) -> list[str]:
    """`key=value` words as a shell user would type them."""
    return [f"{key}={'' if value is None else str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]


def command(env: Environment, folder: RunFolder, values: Mapping[str, Value]) -> Command:
    """The words, and those after a checkpoint was written. $RUN_FOLDER and $RUN_ID are there for the command to use."""
    plain = env.training.command
    given = words(values)
    return Command(given, plain.resume_marker, [*given, *plain.resume_words]) if plain.resume_marker is not None else Command(given)


def parser(env: Environment) -> LineParser:
    """Steps by the environment's pattern; groups other than `step` that read as numbers are numbers."""
    pattern = re.compile(env.training.command.step_pattern)

    def read(line: str) -> Step | None:
        match = pattern.search(line[:4096])
        if match is None or not (match["step"] or "").isdecimal():
            return None
        told = {name: text for name, text in match.groupdict().items() if name != "step" and text is not None}
        return Step(int(match["step"]), {name: _number(text) for name, text in told.items()})

    return LineParser(read)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


FRAMEWORK: Final = Framework("command", configure, problems, command, parser, reward=("reward",), seconds=("seconds",))
