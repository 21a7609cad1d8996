"""Trainers on Ray behind one small interface: a command with its own checks, its own log, and its own way to resume."""

from __future__ import annotations

from config.environment import Environment
from training.frameworks.framework import Framework, LogParser


def of(env: Environment) -> Framework | None:
    """The environment's trainer; None for SkyRL, which the rest of the launcher is about."""
    if env.training.framework == "verl":
        from training.frameworks import verl

        return verl.FRAMEWORK
    if env.training.framework == "command":
        from training.frameworks import command

        return command.FRAMEWORK
    return None


def parser(env: Environment) -> LogParser:
    """A parser of the trainer's log."""
    from training.console import Parser

    framework = of(env)
    return framework.parser(env) if framework is not None else Parser()
