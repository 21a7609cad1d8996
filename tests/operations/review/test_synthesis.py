"""Both sides out of a repository: the base from git, the head from disk, each by its own code."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.main import run
from config.load import ROOT
from config.problems import Failed, Refused
from operations.review import synthesis

# Stands for `cdk synth`: a stack that holds what the environment's file says.
CDK = """\
import json, pathlib, sys
name, out = sys.argv[sys.argv.index("-c") + 1].removeprefix("env="), pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
text = pathlib.Path(name if "/" in name else f"environments/{name}.yaml").read_text()
if "broken" in text:
    sys.exit("Error: this environment is broken")
out.mkdir()
(out / "One.template.json").write_text(json.dumps({"Resources": {"P": {"Type": "AWS::SSM::Parameter",
    "Properties": {"Name": "/p", "Value": text.strip()}}}}))
properties = {"templateFile": "One.template.json", "stackName": "p-One"}
(out / "manifest.json").write_text(json.dumps({"artifacts": {"One": {"type": "aws:cloudformation:stack",
    "environment": "aws://1/r", "properties": properties}}}))
folder = pathlib.Path("dist/mine/platform")
folder.mkdir(parents=True, exist_ok=True)
(folder / "00.yaml").write_text("kind: Namespace\\nmetadata: {name: training}\\n")
"""
AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
LOAD = """\
from types import SimpleNamespace
def load(name):
    training = SimpleNamespace(overrides={"a": 1})
    return SimpleNamespace(model_dump=lambda mode: {"name": "mine"}, version_set={"kuberay": "1"}, training=training)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in which `cdk` is the script above."""
    root = tmp_path / "project"
    for name, text in {"cdk.py": CDK, "config/__init__.py": "", "config/load.py": LOAD, "environments/mine.yaml": "value: 1\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    real = synthesis._run

    def script(command: Sequence[str], place: Path) -> subprocess.CompletedProcess[str]:
        import sys

        return real([sys.executable, "cdk.py", *command[1:]] if command[0] == "cdk" else command, place)

    monkeypatch.setattr(synthesis, "_run", script)
    return root


def test_the_base_comes_out_of_git_and_the_head_from_disk(project: Path) -> None:
    (project / "environments/mine.yaml").write_text("value: 2\n")
    base, head, remarks = synthesis.sides("mine", synthesis.commit("HEAD", root=project), root=project)
    values = [each.stacks[0].resources["P"]["Properties"]["Value"] for each in (base, head)]
    assert values == ["value: 1", "value: 2"]
    assert list(head.objects) == ["Namespace training"]
    assert head.facts["overrides"] == {"a": 1}
    assert "overrides as written" in head.facts["remark"]  # this revision has no launcher
    assert remarks == ()
    status = subprocess.run(["git", "worktree", "list"], cwd=project, capture_output=True, text=True, check=True).stdout
    assert len(status.splitlines()) == 1


def test_an_environment_that_only_one_side_has(project: Path) -> None:
    (project / "environments/other.yaml").write_text("value: 3\n")
    base, head, _ = synthesis.sides("other", synthesis.commit("HEAD", root=project), root=project)
    assert (len(base.stacks), len(head.stacks)) == (0, 1)
    assert synthesis.environments("HEAD", root=project) == ["mine", "other"]
    with pytest.raises(Refused, match="neither"):
        synthesis.sides("nobodys", synthesis.commit("HEAD", root=project), root=project)


def test_a_file_of_the_project_is_each_revisions_own(project: Path) -> None:
    (project / "environments/mine.yaml").write_text("value: 2\n")
    base, head, _ = synthesis.sides(str(project / "environments/mine.yaml"), synthesis.commit("HEAD", root=project), root=project)
    assert base.stacks[0].template != head.stacks[0].template


def test_other_pinned_libraries_are_remarked(project: Path) -> None:
    (project / "requirements.txt").write_text("aws-cdk-lib==9\n")
    *_, remarks = synthesis.sides("mine", synthesis.commit("HEAD", root=project), root=project)
    assert remarks == ("requirements.txt differs: both sides were synthesized with the libraries installed here",)


def test_a_side_that_cannot_be_synthesized_says_what_it_said(project: Path) -> None:
    (project / "environments/mine.yaml").write_text("broken\n")
    with pytest.raises(Failed, match="at this checkout: Error: this environment is broken"):
        synthesis.sides("mine", synthesis.commit("HEAD", root=project), root=project)


def test_an_environment_that_is_refused_says_its_sentences_and_no_code(project: Path) -> None:
    refuses = "class Refused(Exception):\n    problems = ('a = 1: it is odd; set 2.', 'b = 1: it is odd; set 2.')\n"
    (project / "config/load.py").write_text(f"{refuses}def load(name):\n    raise Refused\n")
    with pytest.raises(synthesis.Broken) as caught:
        synthesis.sides("mine", synthesis.commit("HEAD", root=project), root=project)
    assert caught.value.said == "a = 1: it is odd; set 2. / b = 1: it is odd; set 2."


def test_outside_of_a_clone_and_in_a_shallow_one_it_says_what_git_lacks(project: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a git repository"):
        synthesis.default_base(root=tmp_path)
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "two"], cwd=project, check=True, env={**os.environ, **AUTHOR})
    shallow = tmp_path / "shallow"
    words = ["git", "clone", "-q", "--depth", "1", "--branch", "topic", f"file://{project}", str(shallow)]
    subprocess.run(["git", "branch", "-f", "topic"], cwd=project, check=True)
    subprocess.run(words, check=True)
    with pytest.raises(Refused, match="git fetch --unshallow origin main"):
        synthesis.default_base(root=shallow)


def test_no_credentials_reach_the_code_under_review(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"):
        monkeypatch.setenv(name, "secret")
    (project / "cdk.py").write_text(CDK + "import os\n(out / 'seen').write_text(repr(dict(os.environ)))\n")
    synthesis.sides("mine", synthesis.commit("HEAD", root=project), root=project, keep=project / "out")
    assert "secret" not in (project / "out/seen").read_text()


def test_each_side_imports_its_own_modules_even_where_python_is_told_not_to(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    (project / "config/load.py").write_text(LOAD.replace('"a": 1', '"a": 2'))
    base, head, _ = synthesis.sides("mine", synthesis.commit("HEAD", root=project), root=project)
    assert [each.facts["overrides"] for each in (base, head)] == [{"a": 1}, {"a": 2}]


def test_no_environment_of_the_local_cloud_and_each_of_another_name_is_reviewed(project: Path) -> None:
    for name in ("local", "local-two", "größer"):
        (project / f"environments/{name}.yaml").write_text("value: 1\n")
    subprocess.run(["git", "add", "."], cwd=project, check=True)
    subprocess.run(["git", "commit", "-qm", "two"], cwd=project, check=True, env={**os.environ, **AUTHOR})
    (project / "environments/größer.yaml").unlink()
    assert synthesis.environments("HEAD", root=project) == ["größer", "mine"]


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command works in that project."""
    for name in ("commit", "default_base", "sides", "environments"):
        real = getattr(synthesis, name)
        monkeypatch.setattr(synthesis, name, lambda *a, _real=real, **k: _real(*a, **{"root": project, **k}))
    return project


def test_the_command_prints_text_markdown_and_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "environments/mine.yaml").write_text("value: 2\n")
    assert run(["--env", "mine", "review", "--base", "HEAD"]) == 0
    assert "Value: value: 1 -> value: 2" in capsys.readouterr().out
    assert run(["review", "--all-environments", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("<!-- hyperpod-rl review mine -->")
    assert run(["--env", "mine", "review", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stacks"][0]["resources"][0]["id"] == "One/P"
    assert run(["review", "--all-environments", "--json"]) == 0
    assert [each["environment"] for each in json.loads(capsys.readouterr().out)["reviews"]] == ["mine"]


def test_it_names_its_environment(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "environments/production.yaml").write_text("value: 1\n")
    assert run(["--env", "production", "review", "--base", "HEAD", "--markdown"]) == 0
    assert "a new environment" in capsys.readouterr().out


def test_a_risk_ends_with_1_unless_the_text_accepts_it(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "cdk.py").write_text(CDK.replace('"p-One"', '"q-One"'))
    assert run(["--env", "mine", "review"]) == 1
    assert "RISK orphan:p-One" in capsys.readouterr().out
    text = tmp_path / "text.md"
    text.write_text("Moves it.\n\nAccept: orphan:p-One\n")
    assert run(["--env", "mine", "review", "--pull-request-text", str(text)]) == 0
    assert "accepted orphan:p-One" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\nAccept: orphan:p-One\n"), encoding="utf-8"))
    assert run(["--env", "mine", "review", "--pull-request-text", "-"]) == 0, "from standard input, whatever bytes stand there"


def test_an_environment_whose_file_is_deleted_stays_and_costs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "environments/mine.yaml").unlink()
    assert run(["--env", "mine", "review", "--base", "HEAD", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [risk["id"] for risk in found["risks"]] == ["orphan:p-One"]
    assert (found["effect"], found["kubernetes"]) == ("nothing", [])
    assert found["cost"]["after"] == found["cost"]["before"]
    assert found["remarks"][-1].startswith("what is deployed of mine stays")


def test_a_base_that_is_broken_stops_no_change_that_says_so_and_no_other_environment(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (here / "environments/other.yaml").write_text("broken\n")
    for words in (["add", "."], ["commit", "-qm", "two"]):
        subprocess.run(["git", *words], cwd=here, check=True, env={**os.environ, **AUTHOR})
    (here / "environments/other.yaml").write_text("value: 4\n")
    (here / "environments/mine.yaml").write_text("value: 2\n")
    assert run(["review", "--all-environments", "--base", "HEAD", "--markdown"]) == 1
    said = capsys.readouterr().out
    assert "Value: value: 1 -> value: 2" in said
    assert "the base cannot be synthesized, so nothing is compared: Error: this environment is broken" in said
    assert "Accept: uncompared:base" in said
    text = tmp_path / "text.md"
    text.write_text("Accept: uncompared:base, uncompared:head\n")
    assert run(["--env", "other", "review", "--base", "HEAD", "--pull-request-text", str(text)]) == 0
    capsys.readouterr()
    (here / "environments/mine.yaml").write_text("broken\n")
    assert run(["--env", "mine", "review", "--base", "HEAD", "--json", "--pull-request-text", str(text)]) == 1, "a broken head stays one"
    assert json.loads(capsys.readouterr().out)["failure"] == "this change cannot be synthesized: Error: this environment is broken"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--base", "nowhere"], "git knows no such revision"),
        (["--base", "--upload-pack=x"], "git knows no such revision"),
        (["--markdown", "--json"], "--json"),
        (["--live", "--all-environments"], "--all-environments"),
        (["--pull-request-text", "/nowhere/x"], "cannot be read"),
        (["--max-cost-increase", "-1"], "max-cost-increase"),
    ],
)
def test_bad_words_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "revision" in said and not (ROOT / ".git").exists():  # this project as an archive, without its history
        said = "git does not know this checkout"
    assert run(["review", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err + captured.out
    assert "Traceback" not in captured.err
