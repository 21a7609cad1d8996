"""The supervisor's Deployment: what it may do, and that its very command starts from the zip alone."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from config import names, series
from config.load import ROOT, load
from serving.cluster_job import bundle
from training import supervisor_pod
from training.kubernetes import Kubectl

ENV = load("reference")


def made() -> dict[str, Any]:
    text = (ROOT / "environments/reference.yaml").read_text()
    found = supervisor_pod.objects(ENV, "maze-1", words=("--attempts=5",), environment=text, code=bundle(), by="ada")
    return {each["kind"]: each for each in found}


def test_it_may_reach_ray_and_the_file_system_and_nothing_else() -> None:
    found = made()
    assert found["ServiceAccount"]["metadata"]["name"] == names.SUPERVISOR_SERVICE_ACCOUNT
    assert found["ServiceAccount"]["automountServiceAccountToken"] is False
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert "nvidia.com/gpu" not in json.dumps(pod)
    policy = found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == {"ray.io/cluster": ENV.ray_cluster.name, "ray.io/node-type": "head"}
    (rule,) = policy["ingress"]
    chosen = rule["from"][0]["podSelector"]["matchLabels"]
    assert chosen.items() <= found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert [port["port"] for port in rule["ports"]] == [names.DASHBOARD_PORT]
    assert found["Deployment"]["spec"]["replicas"] == 1
    assert found["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}  # never two at once


def test_changed_code_or_words_replace_the_pod() -> None:
    one = made()["Deployment"]["spec"]["template"]["metadata"]["annotations"]["hyperpod-rl/code"]
    other = supervisor_pod.objects(ENV, "maze-1", words=("--attempts=6",), environment="", code=b"", by="ada")[-1]
    assert one == made()["Deployment"]["spec"]["template"]["metadata"]["annotations"]["hyperpod-rl/code"]
    assert one != other["spec"]["template"]["metadata"]["annotations"]["hyperpod-rl/code"]


@pytest.mark.parametrize(("answer", "code"), [(0, "sleeps"), (1, "sleeps"), (2, "sleeps"), (3, "3"), (137, "137")])
def test_a_verdict_ends_it_and_a_fault_starts_it_again(answer: int, code: str, tmp_path: Path) -> None:
    (script,) = made()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["command"][2:]
    for program, text in (("python", f"exit {answer}"), ("sleep", "exit 99")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=30)
    assert done.returncode == (99 if code == "sleeps" else int(code))


def test_its_command_starts_from_the_zip_alone(tmp_path: Path) -> None:
    found = made()
    (tmp_path / "code.zip").write_bytes(base64.b64decode(found["ConfigMap"]["binaryData"]["code.zip"]))
    (tmp_path / "environment.yaml").write_text(found["ConfigMap"]["data"]["environment.yaml"])
    script = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    words = shlex.split(script.partition(";")[0].replace(supervisor_pod.MOUNT, str(tmp_path)))
    assert words[words.index("supervise") + 1] == "maze-1"
    assert words[words.index("--metrics-port") + 1] == str(series.METRICS_PORT)
    words = [sys.executable, *words[1:]]
    address = words.index("--address") + 1
    words[address], words[words.index("--metrics-address") + 1] = "http://127.0.0.1:9", "127.0.0.1"
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "code.zip")}
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr  # it ran, and Ray is not there
    assert "Ray at http://127.0.0.1:9 cannot be reached" in done.stderr


def test_the_command_writes_applies_and_removes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    applied: list[Any] = []
    monkeypatch.setattr(supervisor_pod, "ROOT", tmp_path)
    monkeypatch.setattr(supervisor_pod.write, "__kwdefaults__", {"root": tmp_path})
    monkeypatch.setattr(Kubectl, "apply", lambda self, folder: applied.append(folder))
    monkeypatch.setattr(Kubectl, "delete", lambda self, kind, *, namespace, name: applied.append((kind, name)))
    words = ["supervise", "maze-1", "--deploy", "--attempts", "5"]
    assert main.run([*words, "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["applied"], applied) == (False, [])
    kinds = [yaml.safe_load(path.read_text())["kind"] for path in sorted(Path(document["folder"]).iterdir())]
    assert kinds == ["ServiceAccount", "ConfigMap", "NetworkPolicy", "Deployment"]
    assert main.run(words) == 0
    assert "kubectl --namespace training logs deploy/supervise-maze-1" in capsys.readouterr().out
    assert applied == [Path(document["folder"])]
    assert main.run(["supervise", "maze-1", "--undeploy"]) == 0
    assert ("deployments", "supervise-maze-1") in applied
    assert main.run(["supervise", "maze-1", "--dry-run"]) == 2
