"""The Job that runs gate and promote where /shared is. What it would run is run here: the same words, from the zip alone."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import run as command
from config import names
from config.load import load
from config.problems import Failed, Refused
from serving import cluster_job
from serving.cluster_job import Ended, Job
from tests.serving.exports import RUN, evaluation, make_record, write_export, write_record

REFERENCE = load("reference")


def made(*words: str, gpus: int = 0) -> Job:
    return cluster_job.job(REFERENCE, environment_name="reference", words=words, gpus=gpus, by="ada")


def test_it_stands_where_the_file_system_is_with_an_identity_of_its_own() -> None:
    job = made("promote", RUN, "--step", "10")
    configuration, found = job.objects
    pod = found["spec"]["template"]["spec"]
    assert configuration["metadata"]["name"] == found["metadata"]["name"] == job.name
    assert pod["serviceAccountName"] == names.RELEASE_SERVICE_ACCOUNT
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == names.SHARED_CLAIM
    (container,) = pod["containers"]
    assert container["command"] == [
        "python",
        "-m",
        "cli.main",
        "--env",
        "/opt/hyperpod-rl/environment.yaml",
        "promote",
        RUN,
        "--step",
        "10",
    ]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert found["spec"]["backoffLimit"] == 0
    assert len(job.text()) < 1_000_000  # a ConfigMap holds 1 MiB
    assert [type(each) for each in yaml.safe_load_all(job.text())] == [dict, dict]


def test_the_gate_takes_a_gpu_of_a_worker() -> None:
    _, found = made("gate", RUN, gpus=1).objects
    pod = found["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert list(pod["nodeSelector"].values()) == [REFERENCE.workers.name]


def test_kubernetes_takes_both_objects() -> None:
    import kubernetes_validate

    for each in made("promote", RUN).objects:
        kubernetes_validate.validate(each, "1.34", strict=True)


def test_the_code_is_the_same_bytes_every_time_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_job.bundle() == cluster_job.bundle()
    monkeypatch.setattr(cluster_job, "LARGEST", 1000)
    with pytest.raises(Refused, match="does not fit into a ConfigMap"):
        cluster_job.bundle()


def test_the_zip_alone_runs_the_command(tmp_path: Path) -> None:
    """In another folder, with nothing of the checkout on the path: what the pod has."""
    write_export(tmp_path / "shared", 10)
    write_record(tmp_path / "shared", make_record(evaluations=(evaluation(0, set(range(19))), evaluation(10, set(range(51))))))
    (configuration, found) = cluster_job.job(load("local"), environment_name="local", words=("gate", RUN, "--dry-run"), by="ada").objects
    (tmp_path / "code.zip").write_bytes(base64.b64decode(configuration["binaryData"]["code.zip"]))
    (tmp_path / "environment.yaml").write_text(configuration["data"]["environment.yaml"])
    words = found["spec"]["template"]["spec"]["containers"][0]["command"]
    words = [str(word).replace(cluster_job.MOUNT, str(tmp_path)) for word in words]
    code = f"import sys; sys.path[:] = [{str(tmp_path / 'code.zip')!r}, *(p for p in sys.path if p and 'main' not in p.split('/')[-1:])];"
    code += "import cli.main; assert 'code.zip' in cli.main.__file__; sys.exit(cli.main.run(sys.argv[1:]))"
    environment = {
        **os.environ, "HYPERPOD_RL_SHARED": str(tmp_path / "shared"), "HYPERPOD_RL_BUCKET": "b", "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y", "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *words[3:]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    # It read the record and checked the export, and only then looked for the bucket, which is not there.
    assert (done.returncode, done.stdout) == (3, "")
    assert "bucket b cannot be reached" in done.stderr


class FakeKubectl:
    """Answers with one state of the Job after the other."""

    def __init__(self, *states: dict[str, Any] | None, exit_code: int | None = None) -> None:
        self.states, self.applied, self.deleted, self.patched, self.exit_code = list(states), "", [], [], exit_code

    def apply(self, folder: Path) -> None:
        self.applied = (folder / "job.yaml").read_text()

    def get(self, kind: str, *, namespace: str, name: str) -> dict[str, Any] | None:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return None if state is None else {"metadata": {"uid": "u-1"}, "status": state}

    def list(self, kind: str, *, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        assert (kind, selector.split("=")[0]) == ("pods", "batch.kubernetes.io/job-name")
        state = {"running": {}} if self.exit_code is None else {"terminated": {"exitCode": self.exit_code}}
        return [{"status": {}}, {"status": {"containerStatuses": [{"state": state}]}}]

    def delete(self, kind: str, *, namespace: str, name: str) -> None:
        self.deleted.append((kind, name))

    def run(self, *arguments: str) -> str:
        if arguments[0] == "patch":
            self.patched.append(json.loads(arguments[-1]))
            return ""
        assert arguments[0] == "logs"
        return "release x is at s3://b/x\n"


def ended(kind: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "message": "BackoffLimitExceeded"}]}


def test_it_is_waited_for_and_its_code_removed() -> None:
    kubectl, notes, job = FakeKubectl({}, {"active": 1}, {"active": 1, "ready": 1}, ended("Complete")), [], made("promote", RUN)
    done = cluster_job.run(kubectl, job, note=notes.append, sleep=lambda _: None)  # type: ignore[arg-type]
    assert done == Ended("release x is at s3://b/x\n", 0)
    assert kubectl.deleted == [("configmaps", job.name)]
    assert len(list(yaml.safe_load_all(kubectl.applied))) == 2
    assert [note.split(" is ")[-1].split(":")[0] for note in notes[1:]] == ["waiting", "running"]


def test_its_code_belongs_to_the_job_and_an_interruption_takes_it_from_no_pod() -> None:
    kubectl, job = FakeKubectl({"active": 1}), made("promote", RUN)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster_job.run(kubectl, job, note=print, sleep=interrupted)  # type: ignore[arg-type]
    assert kubectl.deleted == []
    (change,) = kubectl.patched
    assert change["metadata"]["ownerReferences"] == [{"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": "u-1"}]


@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_command_that_says_no_in_the_cluster_says_it_here(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = FakeKubectl({}, ended("Failed"), exit_code=code)
    monkeypatch.setattr("training.kubernetes.Kubectl", lambda env: kubectl)
    assert command(["gate", RUN, "--in-cluster"]) == code
    assert capsys.readouterr().out == "release x is at s3://b/x\n"
    assert len(kubectl.deleted) == 1


def test_a_job_that_fails_or_vanishes_or_stays_is_said() -> None:
    for states, said in (
        ([ended("Failed")], "failed: BackoffLimitExceeded; kubectl -n training logs job/gate-"), ([None], "is gone"),
        ([{"active": 1}], "did not end within 1 minutes"),
    ):  # fmt: skip
        kubectl, clock = FakeKubectl(*states), iter(range(0, 1000, 30))
        with pytest.raises(Failed, match=said):
            cluster_job.run(kubectl, made("gate", RUN), note=print, minutes=1, sleep=lambda _: None, now=lambda c=clock: next(c))  # type: ignore[arg-type,misc]
    killed = FakeKubectl(ended("Failed"), exit_code=137)
    with pytest.raises(Failed, match=r"BackoffLimitExceeded \(exit code 137\)"):
        cluster_job.run(killed, made("gate", RUN), note=print, sleep=lambda _: None)  # type: ignore[arg-type]


def test_the_commands_hand_on_what_they_were_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Job] = []

    def run(kubectl: Any, job: Job, *, note: Any) -> Ended:
        seen.append(job)
        return Ended("done there\n", 0)

    monkeypatch.setattr(cluster_job, "run", run)
    assert command(["promote", RUN, "--step", "160", "--override", "two words", "--alias", "canary", "--share", "0.2", "--in-cluster"]) == 0
    assert capsys.readouterr().out == "done there\n"
    assert command(["gate", RUN, "--in-cluster"]) == 0
    monkeypatch.setattr("training.kubernetes.Kubectl", FakeKubectl)
    monkeypatch.setattr("serving.endpoint.cluster_url", lambda kubectl: "http://inside:8000")
    assert command(["--env", "reference", "verify", "--mazes", "32", "--in-cluster"]) == 0
    ran = [job.objects[1]["spec"]["template"]["spec"]["containers"][0]["command"][5:] for job in seen]
    assert ran == [["promote", RUN, "--step", "160", "--override", "two words", "--alias", "canary", "--share", "0.2"], ["gate", RUN],
                   ["verify", "--endpoint", "http://inside:8000", "--mazes", "32", "--concurrency", "16"]]  # fmt: skip
    capsys.readouterr()
    assert command(["gate", RUN, "--in-cluster", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True
    assert len(seen) == 3


@pytest.mark.parametrize("words", [["--env", "local", "gate", RUN, "--in-cluster"], ["gate", "Bad_Run", "--in-cluster"],
                                   ["--env", "local", "verify", "--in-cluster"]])  # fmt: skip
def test_where_it_cannot_work_it_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(words) == 2
    assert "leave it out" in (said := capsys.readouterr().err) or "1 to 48" in said
