"""What CI does: the project's own commands, and no rights where somebody else's code runs."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cli.main import cli
from config.load import ROOT
from tools import workflow_lint

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yml"))}
ACTIONLINT = workflow_lint.found()
SHELL = {"source", "printf", "cat", "test", "exit", "code=0", "code=$?"}


def steps(workflow: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(job, step) for job, body in workflow["jobs"].items() for step in body["steps"]]


def commands(script: str) -> list[list[str]]:
    """Words of each command of a script; what is piped, chained or redirected is taken apart."""
    parts = re.split(r"\|\||&&|\||\n", re.sub(r">>?\s*\S+", "", script))
    return [shlex.split(part.replace("$?", "'$?'")) for part in parts if part.strip()]


def test_there_are_the_three() -> None:
    assert set(WORKFLOWS) == {"pull-request", "deploy", "nightly"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_scripts_call_the_projects_own_commands(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for _, step in steps(WORKFLOWS[name]):
        for words in commands(step.get("run", "")):
            if words[0] == "make":
                assert words[1] in targets
            elif words[0] == "hyperpod-rl":
                command = cli.get_command(click.Context(cli), words[1])
                assert command is not None
                known = {option for parameter in command.params for option in parameter.opts}
                assert {word for word in words if word.startswith("--")} <= known
            elif words[0] == "cdk":
                assert words[1] == "deploy"
            else:
                assert words[0] in SHELL or words[:3] == ["gh", "pr", "comment"], words


def test_a_pull_request_has_no_secret_and_no_cloud() -> None:
    text = (FOLDER / "pull-request.yml").read_text()
    assert "secrets." not in text
    assert "id-token" not in text
    assert "pull_request_target" not in text
    assert WORKFLOWS["pull-request"]["permissions"] == {"contents": "read"}


def test_what_may_write_runs_nobodys_code() -> None:
    for job in WORKFLOWS["pull-request"]["jobs"].values():
        if "write" in str(job.get("permissions", "")):
            assert not [step for step in job["steps"] if "checkout" in step.get("uses", "") or "make" in step.get("run", "")]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_script_holds_an_expression_that_somebody_else_writes(name: str) -> None:
    for _, step in steps(WORKFLOWS[name]):
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_by_commit(name: str) -> None:
    """Whoever may move a tag of theirs would run with our rights."""
    for _, step in steps(WORKFLOWS[name]):
        assert "uses" not in step or re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]), step


def test_an_edited_text_neither_ends_nor_stands_in_for_the_checks() -> None:
    workflow = WORKFLOWS["pull-request"]
    check = workflow["jobs"]["check"]
    assert "concurrency" not in workflow, "one group for all jobs: an edited text would cancel the checks"
    if "if" in check:  # a job that is left out counts as passed, under its name
        assert "github.event.action == 'edited' &&" in check["name"]
        assert "github.event.action == 'edited' && github.run_id" in check["concurrency"]["group"]


def test_the_review_compares_with_what_the_merge_is_made_of() -> None:
    (script,) = [step["run"] for job, step in steps(WORKFLOWS["pull-request"]) if "hyperpod-rl review" in step.get("run", "")]
    assert '--base "HEAD^1"' in script


def test_a_deploy_waits_for_approval_after_its_plan() -> None:
    jobs = WORKFLOWS["deploy"]["jobs"]
    assert jobs["deploy"]["needs"] == "plan"
    assert jobs["deploy"]["environment"] == "${{ inputs.environment }}"
    assert "environment" not in jobs["plan"]
    roles = {
        job: step["with"]["role-to-assume"].rsplit("-", 1)[-1] for job, step in steps(WORKFLOWS["deploy"]) if "role-to-assume" in str(step)
    }
    assert roles == {"plan": "plan", "deploy": "deploy"}


@pytest.mark.skipif(ACTIONLINT is None, reason="actionlint is not there: `make lint` builds it where there is Go")
def test_actionlint_has_nothing_to_say(tmp_path: Path) -> None:
    """Nor of the actions that they use: one whose runtime is gone from the runners fails before it does anything."""

    def lint(*files: Path) -> tuple[int, str]:
        done = subprocess.run([str(ACTIONLINT), "-no-color", *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert lint(*sorted(FOLDER.glob("*.yml"))) == (0, "")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((FOLDER / "nightly.yml").read_text().replace("vars.AWS_REGION", "vari.AWS_REGION"))
    code, said = lint(wrong)
    assert code == 1
    assert 'undefined variable "vari"' in said
