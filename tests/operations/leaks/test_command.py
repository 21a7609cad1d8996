"""The command against the local cloud."""

from __future__ import annotations

import json

import pytest

from cli.main import run
from config.names import Stack
from local import lifecycle
from operations.leaks import scan as scanning
from operations.leaks.leak import Found, Leak
from tests.local.cloud.conftest import Account

pytestmark = pytest.mark.cloud
NAME = "/hyperpod-rl/local/left"


@pytest.fixture
def cloud(account: Account, monkeypatch: pytest.MonkeyPatch) -> Account:
    for name, value in lifecycle.environment().items():
        monkeypatch.setenv(name, value)
    return account


def test_what_is_left_is_shown_first_and_goes_with_delete_alone(cloud: Account, capsys: pytest.CaptureFixture[str]) -> None:
    ssm = cloud.client("ssm")
    for name in (NAME, "/hyperpod-rl/other/left"):
        ssm.put_parameter(Name=name, Value="v", Type="String")
    command = f"aws --region us-west-2 ssm delete-parameter --name {NAME}"
    assert run(["--env", "local", "leaks"]) == 1
    assert capsys.readouterr().out == (f"SSM parameter {NAME}: made by a stack of environment local; free\n  $ {command}\n1 left\n")
    assert run(["--env", "local", "leaks", "--delete", "--dry-run"]) == 1
    assert "would remove 1 of them" in capsys.readouterr().out
    assert ssm.get_parameter(Name=NAME)["Parameter"]["Value"] == "v", "nothing was removed yet"
    assert run(["--env", "local", "leaks", "--delete", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["removed"], said["left"], said["leaks"][0]["commands"]) == ([NAME], [], [command])
    assert [item["Name"] for item in ssm.describe_parameters()["Parameters"] if item["Name"] == NAME] == []
    assert ssm.get_parameter(Name="/hyperpod-rl/other/left")["Parameter"]["Value"] == "v", "another environment's stays"
    ssm.delete_parameter(Name="/hyperpod-rl/other/left")


def test_data_that_is_kept_on_purpose_goes_only_when_it_is_named(
    cloud: Account, capsys: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from config import load

    keeping = load.load("local").model_copy(update={"storage": load.load("reference").storage})
    monkeypatch.setattr(load, "load", lambda *_: keeping)
    cloud.client("ecr").create_repository(repositoryName="ray/skyrl-visgym-local")
    assert run(["--env", "local", "leaks", "--delete", "--yes"]) == 0, "nothing but what is kept"
    assert "0 left, and 1 kept on purpose" in capsys.readouterr().out
    assert run(["--env", "local", "leaks", "--delete", "--kept", "--yes"]) == 0
    assert "removed 1 of 1" in capsys.readouterr().out
    assert cloud.client("ecr").describe_repositories()["repositories"] == []


@pytest.mark.parametrize(
    ("standing", "stuck", "said", "code"),
    [
        (tuple(Stack)[:8], False, ("8 stacks still stand (Network, Data, ", "nothing is left beside them"), 0),
        ((Stack.NETWORK,), True, ("1 stack still stands (Network): deployed, no leaks", "1 left"), 1),
        ((), False, ("30 CDK assets in the account's toolkit bucket", "nothing is left"), 0),
    ],
)
def test_stacks_that_stand_are_named_and_cdks_own_files_are_one_line(
    cloud: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    standing: tuple[Stack, ...], stuck: bool, said: tuple[str, str], code: int,
) -> None:  # fmt: skip
    files = () if standing else [Leak("CDK asset", f"s3://b/{n}", "cdk", "free", (f"aws {n}",), kept="CDK keeps it") for n in range(30)]
    failed = [Leak("CloudFormation stack", "hyperpod-rl-local-Platform", "left DELETE_FAILED by cdk", "-", ("aws it",))] if stuck else []
    monkeypatch.setattr(scanning, "scan", lambda *_: Found((*failed, *files), (), standing))
    assert run(["--env", "local", "leaks"]) == code
    *_, one, last = lines = capsys.readouterr().out.splitlines()
    assert (one[: len(said[0])], last) == said
    assert len(lines) == 2 + 2 * stuck
    assert run(["--env", "local", "leaks", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["standing"] == [which.value for which in standing]
    assert len(document["kept"]) == len(files), "each of them is in the document"


def test_another_accounts_credentials_are_refused(
    cloud: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "222222222222")
    assert run(["--env", "local", "leaks"]) == 2
    assert "your credentials belong to 222222222222" in capsys.readouterr().err


def test_options_of_delete_alone_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--env", "local", "leaks", "--kept"]) == 2
    assert "say how to --delete" in capsys.readouterr().err
