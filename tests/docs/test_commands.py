"""Every command that a page shows is run: by the demo, by CI, by a test that is named here, or right here."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import cast

import click
import pytest

from cli.main import cli, run
from config.load import ROOT, parse
from config.problems import Refused
from local import demo
from local.cloud import faults
from tests.docs.pages import PAGES, PROGRAMS, described, mentioned, shown

DEPLOYED = "local/test_deploy.py::test_everything_is_deployed_shows_no_difference_and_is_destroyed_but_not_while_a_job_runs"
# Command -> the test that runs it: a function whose text names the command's words.
IN_TESTS = {
    "hyperpod-rl doctor": "operations/doctor/test_command.py::test_against_the_local_cloud_it_says_what_is_missing",
    "hyperpod-rl status": DEPLOYED,
    "hyperpod-rl leaks": "operations/leaks/test_command.py::test_what_is_left_is_shown_first_and_goes_with_delete_alone",
    "hyperpod-rl leaks --before-destroy": DEPLOYED,
    "hyperpod-rl review": "operations/review/test_synthesis.py::test_the_command_prints_text_markdown_and_json",
    "hyperpod-rl --env production review --base HEAD --markdown": "operations/review/test_synthesis.py::test_it_names_its_environment",
    "hyperpod-rl image build": "local/cloud/test_builds.py::test_build_pins_what_status_then_finds",
    "hyperpod-rl image status": "local/cloud/test_builds.py::test_build_pins_what_status_then_finds",
    "hyperpod-rl alias current": "serving/test_release_commands.py::test_gate_promote_alias_rollback_retire",
    "hyperpod-rl verify --in-cluster": "serving/test_cluster_job.py::test_the_commands_hand_on_what_they_were_asked",
    "hyperpod-rl logs RUN": "training/test_end_to_end.py::test_submit_follow_and_the_rest",
    "hyperpod-rl stop RUN": "training/test_end_to_end.py::test_pressed_twice_at_once_then_stopped_while_somebody_follows",
    "hyperpod-rl supervise RUN": "cli/test_supervise.py::test_the_command_and_its_exit_code",
    "hyperpod-rl report RUN": "training/test_report.py::test_one_page_that_needs_nothing_else",
    "hyperpod-rl reproduce RUN": "training/test_reproduce.py::test_the_printed_commands_submit_the_same_again",
}
RESTORE = "drills/test_restore.py::test_a_lost_file_system_comes_back_from_its_backup_as_the_page_says"
UPGRADES = "operations/test_upgrades.py"
# The beginning of a command in a text block -> the test that takes it from its page and runs it.
IN_TEXT = {
    "kubectl -n serving create secret": "kubernetes/test_pages.py::test_keys_for_the_endpoint_are_made_by_the_pages_command",
    "hyperpod-rl --env mine review --live": RESTORE,
    "kubectl annotate raycluster": DEPLOYED,
    "helm show crds": DEPLOYED,
    "kubectl apply --server-side --force-conflicts": DEPLOYED,
    "aws sagemaker update-cluster-software": f"{UPGRADES}::test_new_software_replaces_the_nodes_of_one_group_at_a_time",
    "aws fsx create-backup": f"{UPGRADES}::test_a_file_system_comes_back_from_a_backup_as_another_one",
    "aws fsx describe-backups": f"{UPGRADES}::test_a_file_system_comes_back_from_a_backup_as_another_one",
    "cdk destroy Platform": RESTORE,
}
RELEASED = "serving/test_release_commands.py::test_gate_promote_alias_rollback_retire"
EVALUATED = "serving/test_evaluate.py::test_the_command_writes_a_result_into_the_runs_folder"
# The same, for a command whose names only a test can know: a function whose text has the command's own word and each of its options.
BY_OPTIONS = {
    "hyperpod-rl gate maze-grpo-1 --step 160 --endpoint": RELEASED,
    "hyperpod-rl promote maze-grpo-1 --step 20 --override": RELEASED,
    "hyperpod-rl alias current maze-grpo": RELEASED,
    "hyperpod-rl alias canary": RELEASED,
    "hyperpod-rl rollback --from": RELEASED,
    "hyperpod-rl retire": RELEASED,
    "hyperpod-rl evaluate": EVALUATED,
}
# What a shell does, not a program of ours.
SHELL = re.compile(r"^(export|eval|source|cp) ")
# A page's own names stand for the demo's.
SAME = [
    (r" (-c env=(mine|local)|--app \S+|--quiet|-o \S+|--require-approval never|--concurrency \d|--force|--output \S+)", ""),
    (r" --env mine", ""),
    (r"(demo|first|maze-grpo-1)(-a2)?\b", r"RUN\2"),
    (r"cdk bootstrap.*", "cdk bootstrap"),
]


def normal(command: str) -> str:
    """The command without what differs between an account and the local cloud."""
    for pattern, replacement in SAME:
        command = re.sub(pattern, replacement, command)
    return command


def quoted(command: str) -> str:
    """The words of a command up to its first argument, as a test passes them: `"serve", "up"`."""
    words = [word for word in command.split()[1:] if word.islower() and not word.startswith("-")]
    return ", ".join(f'"{word}"' for word in words)


def source_of(test: str) -> str:
    """The text of a test function, named as pytest names it below tests/."""
    path, _, name = test.partition("::")
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name]
    assert found, f"there is no test {test}"
    return ast.get_source_segment(text, found[0]) or ""


DESCRIBED = sorted({(page.name, command) for page in PAGES for command in described(page)})
COMMANDS = sorted({(page.name, command) for page in PAGES for command in shown(page)})
DEMO = {normal(command) for command in demo.COMMANDS}
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_pages_show_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_shown_command_is_run_somewhere(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    same = normal(command)
    if same in DEMO or command in CI or SHELL.match(command):
        return
    if same in IN_TESTS:
        assert quoted(same) in source_of(IN_TESTS[same])
        return
    words = command.replace(" --env mine", "").split()
    assert words[0] == "hyperpod-rl", f"{page} shows `{command}`, which nothing runs"
    if words[1] == "submit" and "--dry-run" not in words:
        words.append("--dry-run")  # the same words otherwise; the demo submits for real
    assert run(["--env", "local", *words[1:]]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("page", "command"), DESCRIBED)
def test_a_command_that_a_reader_fills_in_is_taken_from_its_page_by_a_test(page: str, command: str) -> None:
    same = normal(command)
    if same in DEMO or same in IN_TESTS:
        return
    for beginning, test in BY_OPTIONS.items():
        if command.startswith(beginning):
            missing = [word for word in command.split()[1:] if word.startswith("--") and f'"{word}"' not in source_of(test)]
            assert not missing
            assert f'"{command.split()[1]}"' in source_of(test)
            return
    (beginning,) = (known for known in IN_TEXT if command.startswith(known))
    assert f'command("{page}", "{beginning}"' in source_of(IN_TEXT[beginning])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    """Commands in the running text have these words and options, targets and modules; files and folders of the repository exist."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(rf"^ {{4,}}({'|'.join(PROGRAMS)}) ", text, re.MULTILINE), (
        "a command stands in a block with a fence, where tests look"
    )
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for said in [*mentioned(page), *shown(page), *described(page)]:
        words = said.split()
        if words[0] == "make":
            assert words[1] in targets or words[1:2] == ["PYTHON=python3.11"], said
        elif words[:2] == ["python", "-m"] and words[2] != "pytest":
            assert importlib.util.find_spec(words[2]) is not None, said
        elif words[0] == "hyperpod-rl" and "…" not in said:
            assert unknown(said.partition(";")[0].split()[1:]) == [], said
    for place in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", text):
        # What a reader writes is called `mine`, what stands for any name is in capitals.
        assert (ROOT / place).exists() or re.search(r"mine|[A-Z]{4}", place), place


FOLDERS = ("benchmarks", "cli", "config", "docker", "docs", "environments", "k8s", "local", "operations", "serving", "stacks", "tests",
           "tools", "training")  # fmt: skip


def unknown(words: list[str]) -> list[str]:
    """Words of a command line of ours that are no command of it, and options that the command does not have."""
    context, group = click.Context(cli), cast("click.Command", cli)
    if words[0] == "--env":
        words = words[2:]
    while isinstance(group, click.Group):
        if not words:
            return []
        found = group.get_command(context, words[0])
        if found is None:
            return words[:1]
        group, words = found, words[1:]
    options = {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]


def test_the_copied_environment_of_the_first_deploy_needs_only_the_edits_that_the_page_names() -> None:
    text = (ROOT / "environments" / "reference.yaml").read_text(encoding="utf-8")
    mine = text.replace("name: reference", 'name: mine\naccount: "123456789012"')
    assert parse(mine).name == "mine"


def test_the_transcript_of_the_demo_shows_its_commands_in_their_order() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    said = [re.sub(r"\s+#.*$", "", line[2:]) for line in lines if line.startswith("$ ")]
    by_the_shell = [line for line in said if SHELL.match(line) or line.startswith("kill ")]
    assert list(dict.fromkeys(line for line in said if line not in by_the_shell)) == list(dict.fromkeys(demo.COMMANDS))


def test_the_mistake_on_the_first_page_is_answered_as_the_page_says() -> None:
    page = (ROOT / "docs" / "01-first-deploy.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^instance_groups\[2\]\.instance_type = .*$", page, re.MULTILINE)
    text = (ROOT / "environments" / "reference.yaml").read_text(encoding="utf-8")
    with pytest.raises(Refused) as caught:
        parse(text.replace("instance_type: ml.g7e.12xlarge", "instance_type: ml.m5.4xlarge"))
    assert sentence in map(str, caught.value.problems)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_fault_switch_that_the_page_shows_is_one() -> None:
    text = (ROOT / "docs" / "13-local-cloud.md").read_text(encoding="utf-8")
    (shown_switches,) = re.findall(r"set_faults\((\[.+?\])\)", text)
    (switch,) = faults.parse(shown_switches)
    assert switch.hits("create", "FileSystem", "AWS::FSx::FileSystem")
