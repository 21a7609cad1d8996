"""The supervisor's Deployment: what it may do, and that its very command starts from the zip alone."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from config import names, placeholders, series
from config.load import ROOT, load
from config.placeholders import fill
from config.problems import Refused
from k8s import manifests
from serving.cluster_job import bundle
from training import supervisor_pod
from training.kubernetes import Kubectl
from training.run import Code, current_code

ENV = load("reference")
OPTIONS = {"ATTEMPTS": "5", "HANG_FACTOR": "10", "HANG_MINIMUM": "15", "FIRST_STEP": "60", "READY": "120"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with nothing but its dist/, as `python -m k8s` writes it."""
    root = tmp_path_factory.mktemp("project")
    manifests.write(ENV, root)
    return root


def made(dist: Path, **options: str) -> dict[str, Any]:
    text = (ROOT / "environments/reference.yaml").read_text()
    _, objects = supervisor_pod.manifests(ENV, "reference", root=dist)
    given = supervisor_pod.values(
        "maze-1", options=OPTIONS | options, environment=text, code=bundle(), commit=Code("a" * 40, dirty=True),
        by='ada "$(reboot)" ${RUN_ID}', log_group="/aws/x/1",
    )  # fmt: skip
    return {each["kind"]: each for each in fill(objects, given)}


def test_the_manifest_is_that_of_dist_with_its_placeholders_filled_and_nothing_else_changed(
    dist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, objects = supervisor_pod.manifests(ENV, "reference", root=dist)
    assert folder == dist / "dist/reference/supervisor"
    found = made(dist)
    for one in objects:
        other = found[one["kind"]]
        assert set(one) == set(other)
        assert other["metadata"]["name"] == "supervise-maze-1"
    pod = found["Deployment"]["spec"]["template"]
    variables = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
    assert variables["HYPERPOD_RL_SUBMITTER"] == 'ada "$(reboot)" ${RUN_ID}'  # no shell reads it, and it is not filled again
    assert variables["HYPERPOD_RL_HANG_LOG_GROUP"] == "/aws/x/1"
    # Further attempts tell the commit that the code was taken from: a pod has no checkout.
    monkeypatch.setenv(names.CODE_VARIABLE, variables[names.CODE_VARIABLE])
    assert current_code() == Code("a" * 40, dirty=True)
    monkeypatch.setenv(names.CODE_VARIABLE, "b" * 40)
    assert current_code() == Code("b" * 40, dirty=False)
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(series.METRICS_PORT)
    assert pod["spec"]["serviceAccountName"] == names.SUPERVISOR_SERVICE_ACCOUNT
    assert "nvidia.com/gpu" not in json.dumps(pod)
    assert found["Deployment"]["spec"]["replicas"] == 1
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}  # never two at once


def test_changed_code_or_options_replace_the_pod(dist: Path) -> None:
    def digest(**options: str) -> str:
        found: str = made(dist, **options)["Deployment"]["spec"]["template"]["metadata"]["annotations"]["hyperpod-rl/code"]
        return found

    assert digest() == digest() != digest(ATTEMPTS="6")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: [path.unlink() for path in folder.iterdir()], "there are no manifests of the supervisor"),
        (lambda folder: min(folder.iterdir()).unlink(), "they do not hold a ConfigMap and a Deployment"),
        (lambda folder: max(folder.iterdir()).write_text("a: [1"), "not valid YAML"),
        (lambda folder: _replace(max(folder.iterdir()), "${READY}", "${REDDY}"), "placeholders that nothing fills: REDDY"),
        (lambda folder: _replace(max(folder.iterdir()), "//skyrl-visgym-", "//another-"), "not for the environment's RayCluster training/"),
        (lambda folder: _replace(max(folder.iterdir()), "2026.11", "2026.10"), "do not use the environment's image"),
    ],
)
def test_manifests_that_are_not_these_are_refused(change: Callable[[Path], Any], says: str, dist: Path, tmp_path: Path) -> None:
    shutil.copytree(dist, tmp_path, dirs_exist_ok=True)
    change(tmp_path / "dist/reference/supervisor")
    with pytest.raises(Refused, match=re.escape(says)) as refused:
        supervisor_pod.manifests(ENV, "reference", root=tmp_path)
    assert "python -m k8s --env reference" in str(refused.value) or "anew" in str(refused.value)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_without_its_identity_nothing_is_applied(monkeypatch: pytest.MonkeyPatch, dist: Path) -> None:
    applied: list[Any] = []
    monkeypatch.setattr(Kubectl, "apply", lambda self, folder: applied.append(folder))
    monkeypatch.setattr(Kubectl, "get", lambda self, kind, *, namespace, name: None)
    with pytest.raises(Refused, match=re.escape("deploy the stack Platform")):
        supervisor_pod.apply(Kubectl(ENV), [], {})
    assert applied == []


@pytest.mark.parametrize(("answer", "code"), [(0, "sleeps"), (1, "sleeps"), (2, "sleeps"), (3, "3"), (137, "137")])
def test_a_verdict_ends_it_and_a_fault_starts_it_again(answer: int, code: str, tmp_path: Path, dist: Path) -> None:
    command = made(dist)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["command"]
    for program, text in (("python", f"exit {answer}"), ("sleep", "exit 99")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=120)
    assert done.returncode == (99 if code == "sleeps" else int(code))


def test_its_command_starts_from_the_zip_alone(tmp_path: Path, dist: Path) -> None:
    found = made(dist)
    (tmp_path / "code.zip").write_bytes(base64.b64decode(found["ConfigMap"]["binaryData"]["code.zip"]))
    (tmp_path / "environment.yaml").write_text(found["ConfigMap"]["data"]["environment.yaml"])
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    words = [word.replace("/opt/hyperpod-rl", str(tmp_path)) for word in container["command"][4:]]
    assert words[words.index("supervise") + 1] == "maze-1"
    assert f"--metrics-port={series.METRICS_PORT}" in words
    assert "--attempts=5" in words
    places = {"--address=": "--address=http://127.0.0.1:9", "--metrics-address=": "--metrics-address=127.0.0.1"}
    for start, word in places.items():
        (index,) = [index for index, word in enumerate(words) if word.startswith(start)]
        words[index] = word
    variables = {each["name"]: each["value"] for each in container["env"]}
    given = {**os.environ, **variables, "PYTHONPATH": str(tmp_path / "code.zip")}
    done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, env=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr  # it ran, and Ray is not there
    assert "Ray at http://127.0.0.1:9 cannot be reached" in done.stderr


def test_the_command_shows_applies_and_removes(monkeypatch: pytest.MonkeyPatch, dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    applied: list[Any] = []

    def apply(self: Kubectl, folder: Path) -> None:
        applied.extend(yaml.safe_load(path.read_text()) for path in sorted(folder.iterdir()))

    monkeypatch.setattr(supervisor_pod.manifests, "__kwdefaults__", {"root": dist})
    monkeypatch.setattr(Kubectl, "apply", apply)
    monkeypatch.setattr(Kubectl, "get", lambda self, kind, *, namespace, name: {"metadata": {"name": name}})
    monkeypatch.setattr(Kubectl, "delete", lambda self, kind, *, namespace, name: applied.append((kind, name)))
    words = ["supervise", "maze-1", "--deploy", "--attempts", "5"]
    assert main.run([*words, "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["applied"], applied) == (False, [])
    assert (document["values"]["ATTEMPTS"], document["values"]["RUN_ID"]) == ("5", "maze-1")
    assert main.run(words) == 0
    assert "kubectl --namespace training logs deploy/supervise-maze-1" in capsys.readouterr().out
    assert [each["kind"] for each in applied] == ["ConfigMap", "Deployment"]
    assert list(placeholders.found(applied)) == []
    assert main.run(["supervise", "maze-1", "--undeploy"]) == 0
    assert ("deployments", "supervise-maze-1") in applied
    assert main.run(["supervise", "maze-1", "--dry-run"]) == 2
    assert main.run(["--env", "local", *words]) == 2
    assert "the local cloud runs no containers" in capsys.readouterr().err
