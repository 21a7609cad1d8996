"""The page on disasters, followed word for word on a deployed local cloud: a file system that is lost, and its backup."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from local import lifecycle, state
from tests.docs.pages import command
from tests.local.test_deploy import BIN, Project

pytestmark = [
    pytest.mark.cloud,
    pytest.mark.skipif("HYPERPOD_RL_DRILL" not in os.environ, reason="a drill of minutes: make drill"),
]
PAGE = "12-disaster.md"


def _file_system(project: Project) -> str:
    (found,) = json.loads(project.shell("aws fsx describe-file-systems --output json"))["FileSystems"]
    return str(found["FileSystemId"])


def test_a_lost_file_system_comes_back_from_its_backup_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = yaml.safe_load((state.ROOT / "environments/local.yaml").read_text())
    file = tmp_path / "local.yaml"
    file.write_text(yaml.safe_dump(settings))
    monkeypatch.setenv(state.FOLDER, str(tmp_path / "state"))
    lifecycle.up(node_delay=0.2)
    try:
        project = Project(tmp_path / "out", {**os.environ, **lifecycle.environment(), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}, {})

        def follow(line: str) -> str:
            """The page's environment is this one, and nobody is here to be asked."""
            line = line.replace("-c env=mine", f"-c env={file} -o {tmp_path}/out").replace("--env mine", f"--env {file}")
            line = line.replace("cdk deploy", "cdk deploy --require-approval never").replace("cdk destroy", "cdk destroy --force")
            return project.shell(line.replace("Value=mine", "Value=local"))

        follow("cdk bootstrap aws://000000000000/us-west-2 -c env=mine")
        follow(command(PAGE, "cdk deploy --all -c env=mine"))
        review = command("08-review.md", "hyperpod-rl --env mine review --live")
        said = follow(f"{review} --base HEAD || test $? -eq 1")
        assert "Data: drift IN_SYNC" in said
        assert "Not known" not in said
        follow(command(PAGE, "hyperpod-rl --env mine cluster up"))
        lost = _file_system(project)
        made = follow(command(PAGE, "aws fsx create-backup", FILE_SYSTEM=lost) + " --output json")
        backup = json.loads(made)["Backup"]["BackupId"]
        project.shell(f"aws fsx delete-file-system --file-system-id {lost}")  # the disaster

        settings["storage"].setdefault("file_system", {})["restore_from_backup"] = backup
        file.write_text(yaml.safe_dump(settings))
        follow(command(PAGE, "hyperpod-rl --env mine cluster down"))
        follow(command("12-disaster.md", "cdk destroy Platform"))
        follow(command(PAGE, "cdk deploy --all -c env=mine"))
        follow(command(PAGE, "hyperpod-rl --env mine cluster up"))
        restored = _file_system(project)
        assert restored != lost
        volumes = json.loads(project.shell("kubectl get pv -o json"))["items"]
        assert {volume["spec"]["csi"]["volumeHandle"].split("::")[0] for volume in volumes} == {restored}

        follow("hyperpod-rl --env mine cluster down")
        follow("cdk destroy --all -c env=mine")
        assert backup in follow("hyperpod-rl --env mine leaks || test $? -eq 1"), "the backup that was asked for is nobody's but a person's"
        follow("hyperpod-rl --env mine leaks --delete --yes")
        assert "FSx backup" not in lifecycle.inventory()
    finally:
        lifecycle.down(purge=True)
