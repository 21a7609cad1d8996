"""The command line as a person meets it first: help, examples, and a start that imports next to nothing."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from cli.main import COMMANDS, cli
from cli.session import Session
from config.load import ROOT, load

HEAVY = ("pydantic", "boto3", "botocore", "ray", "yaml", "rich", "requests", "config.environment", "aws_cdk", "cdk8s", "jsii")


def commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, below) for below in command.commands]
    return found


@pytest.mark.parametrize("words", [(), *commands()], ids=" ".join)
def test_every_help_has_an_example(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, [*words, "--help"], prog_name="hyperpod-rl")
    assert done.exit_code == 0, done.output
    assert "Example:" in done.output
    example = done.output.partition("Example:")[2]
    assert " ".join(("hyperpod-rl", *words[-1:])) in example or words[-1] in example if words else "hyperpod-rl" in example


@pytest.mark.parametrize("words", [words for words in commands() if words not in (("cluster",), ("local",))], ids=" ".join)
def test_every_command_has_json(words: tuple[str, ...]) -> None:
    assert "--json" in CliRunner().invoke(cli, [*words, "--help"]).output


@pytest.mark.parametrize(
    ("words", "said"),
    [(["follow"], "One JSON object a line"), (["supervise"], "One JSON object a line"), (["submit"], "with --supervise one object a line"),
     (["status"], "One JSON document")],
)  # fmt: skip
def test_help_says_what_form_the_json_has(words: list[str], said: str) -> None:
    assert said in " ".join(CliRunner().invoke(cli, [*words, "--help"]).output.split())


def test_the_list_says_what_the_commands_say() -> None:
    for name, (_, line) in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == line, name


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["cluster", "up", "--help"], ["nonsense"]], ids=" ".join)
def test_start_imports_nothing_heavy(words: list[str]) -> None:
    program = f"import sys\nfrom cli.main import run\nrun({words!r})\nprint('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stdout + done.stderr


def test_a_copied_environment_whose_name_was_not_changed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = load("reference")
    monkeypatch.setattr("config.load.load", lambda name: reference)
    assert Session("mine").environment().name == "reference"
    assert "environments/mine.yaml is environment reference" in capsys.readouterr().err
    for quiet in (Session("reference"), Session("/tmp/mine.yaml"), Session("mine", json=True)):
        quiet.environment()
    assert capsys.readouterr().err == ""
