"""Two environments in one local cloud, each with a kubeconfig and a shared folder of its own; and what `local status` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cli.main import run
from config import load
from local import lifecycle, state
from tests.local.cloud.conftest import Account, eks

pytestmark = pytest.mark.cloud


@pytest.fixture
def second(tmp_path: Path) -> Path:
    data = yaml.safe_load((load.ENVIRONMENTS / "local.yaml").read_text()) | {"name": "local-two"}
    (tmp_path / "second.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "second.yaml"


def test_two_environments_share_neither_kubeconfig_nor_folder(account: Account, second: Path, capsys: pytest.CaptureFixture[str]) -> None:
    account.deploy("first", eks("hyperpod-rl-local"))
    account.deploy("second", eks("hyperpod-rl-local-two"))
    shown = []
    for name in ("local", str(second)):
        assert run(["--env", name, "local", "env", "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert [where["HYPERPOD_RL_ENV"] for where in shown] == ["local", str(second)]
    contexts = [yaml.safe_load(Path(where["KUBECONFIG"]).read_text())["current-context"] for where in shown]
    assert [context.rpartition("/")[2] for context in contexts] == ["hyperpod-rl-local", "hyperpod-rl-local-two"]
    folders = [Path(where["HYPERPOD_RL_SHARED"]) for where in shown]
    assert folders[0] == state.folder() / "shared"
    assert folders[1] != folders[0]
    assert not folders[1].is_relative_to(folders[0])
    assert all(folder.is_dir() for folder in folders)
    account.destroy("second")
    assert not Path(shown[1]["KUBECONFIG"]).exists()
    assert Path(shown[0]["KUBECONFIG"]).exists(), "the first one's stays"


def test_an_environment_in_aws_is_not_the_local_clouds(daemon: lifecycle.Status, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--env", "production", "local", "env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["HYPERPOD_RL_ENV"] == "local"


def test_the_status_is_for_people_and_its_document_for_programs(daemon: lifecycle.Status, capsys: pytest.CaptureFixture[str]) -> None:
    assert daemon.ports is not None
    assert run(["local", "status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"the local cloud runs as process {daemon.pid}",
        f"AWS             http://127.0.0.1:{daemon.ports.cloud}",
        f"Kubernetes      https://127.0.0.1:{daemon.ports.kubernetes}",
        f"Ray dashboards  https://127.0.0.1:{daemon.ports.dashboards}",
    ]
    assert run(["local", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ports"]["cloud"] == daemon.ports.cloud


def test_the_status_of_a_cloud_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(state.FOLDER, str(tmp_path))
    assert run(["local", "status"]) == 0
    assert capsys.readouterr().out == "the local cloud does not run; hyperpod-rl local up\n"
