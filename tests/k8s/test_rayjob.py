"""A run as a RayJob: the launcher's own command, on a cluster that lives as long as the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from config import kubernetes_rules
from config.environment import Environment
from config.problems import Refused
from k8s import rayjob
from k8s.__main__ import main
from k8s.raycluster import cluster_spec
from training import run


@pytest.fixture
def specification(reference: Environment) -> run.Specification:
    return run.specify(reference, run_id="maze-grpo-1", code=run.Code(commit="0" * 40, dirty=False))


def test_job_runs_what_the_launcher_would_run(reference: Environment, specification: run.Specification) -> None:
    made = rayjob.ray_job(reference, rayjob.from_document(json.loads(json.dumps(specification.document()))))
    assert made["metadata"]["name"] == "maze-grpo-1"
    assert made["metadata"]["namespace"] == "training"
    spec = made["spec"]
    assert spec["entrypoint"] == specification.entrypoint
    variables = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert variables == dict(specification.job(1).runtime_env["env_vars"])
    assert spec["rayClusterSpec"] == cluster_spec(reference)
    assert "upgradeStrategy" not in spec["rayClusterSpec"]
    assert "authOptions" not in spec["rayClusterSpec"]
    assert spec["submissionMode"] == "HTTPMode"
    assert spec["backoffLimit"] == 2, "three attempts in all"
    assert spec["shutdownAfterJobFinishes"] is True
    assert kubernetes_rules.problems(made) == []


def test_a_deadline_is_set_where_one_is_given(reference: Environment) -> None:
    assert "activeDeadlineSeconds" not in rayjob.ray_job(reference, rayjob.Job("a", "true", {}))["spec"]
    assert rayjob.ray_job(reference, rayjob.Job("a", "true", {}, deadline_seconds=60))["spec"]["activeDeadlineSeconds"] == 60
    with pytest.raises(Refused) as refused:
        rayjob.ray_job(reference, rayjob.Job("a", "true", {}, deadline_seconds=0))
    assert "activeDeadlineSeconds" in str(refused.value)


@pytest.mark.parametrize(("run_id", "name"), [("maze", "maze"), ("2026-maze", "run-2026-maze"), ("a" * 47, "a" * 47)])
def test_name_of_a_job(run_id: str, name: str) -> None:
    assert rayjob.name(run_id) == name


@pytest.mark.parametrize("run_id", ["a" * 48, "1" + "a" * 46, "Maze", "", "a b"])
def test_a_run_id_that_is_no_name_is_refused(run_id: str) -> None:
    with pytest.raises(Refused) as refused:
        rayjob.name(run_id)
    assert "47" in str(refused.value)


def test_command_prints_the_object(specification: run.Specification, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(specification.document()))
    assert main(["--env", "reference", "--ray-job", str(file)]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert made["kind"] == "RayJob"
    assert made["spec"]["entrypoint"] == specification.entrypoint


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"run_id": "a", "job": {}}', '{"run_id": 1, "job": {"entrypoint": "x", "runtime_env": {"env_vars": {}}}}']
)
def test_anything_else_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    file.write_text(content)
    assert main(["--env", "reference", "--ray-job", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "submit --dry-run --json" in captured.err


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert main(["--env", "reference", "--ray-job", str(tmp_path / "absent.json")]) == 2
