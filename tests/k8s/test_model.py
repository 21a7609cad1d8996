"""The model Job: its script is run for real, against a stand-in of the hub's client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from config.environment import Environment
from config.load import load
from k8s import fetch_model, manifests, model

# A hub with the part of huggingface_hub's interface that the script uses. Faults come from files in $HUB_FAULTS.
HUB = """
import hashlib, os, time
from pathlib import Path
from types import SimpleNamespace

FILES = {
    "mixed/config.json": b"{}", "mixed/model.safetensors": b"weights" * 1000, "mixed/extra/notes.txt": b"hello",
    "other/config.json": b"{1}",
}
FAULTS = Path(os.environ["HUB_FAULTS"])

class HfApi:
    def model_info(self, repository, *, revision, files_metadata):
        assert files_metadata
        rows = []
        for name, data in FILES.items():
            large = name.endswith(".safetensors")
            lfs = SimpleNamespace(sha256=hashlib.sha256(data).hexdigest()) if large else None
            blob = hashlib.sha1(b"blob %d\\0" % len(data) + data).hexdigest()
            rows.append(SimpleNamespace(rfilename=name, size=len(data), lfs=lfs, blob_id=blob))
        return SimpleNamespace(sha="c0ffee", siblings=rows)

def snapshot_download(repository, *, revision, local_dir, allow_patterns):
    assert revision == "c0ffee", "by commit, not by branch"
    (pattern,) = allow_patterns
    for name, data in FILES.items():
        if not name.startswith(pattern.rstrip("*")):
            continue
        path = Path(local_dir) / name
        with open(FAULTS / "requests", "a") as log:
            log.write(("kept " if path.exists() else "got ") + name + "\\n")
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if (FAULTS / "slow").exists() and "safetensors" in name:
            (FAULTS / "started").touch()
            time.sleep(60)
        if (FAULTS / "damaged").exists() and "safetensors" in name:
            (FAULTS / "damaged").unlink()
            data = b"x" * len(data)
        path.write_bytes(data)
    (Path(local_dir) / ".cache" / "huggingface").mkdir(parents=True, exist_ok=True)
"""


class Hub:
    def __init__(self, folder: Path) -> None:
        self.faults = folder / "faults"
        self.faults.mkdir()
        (folder / "hub").mkdir()
        (folder / "hub" / "huggingface_hub.py").write_text(HUB)
        self.target = folder / "shared" / "models" / "maze"
        self.variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(folder / "hub"),
            "HUB_FAULTS": str(self.faults),
            "REPOSITORY": "VisGym/visgym_model",
            "REVISION": "main",
            "SUBFOLDER": "mixed",
            "TARGET": str(self.target),
        }

    def start(self, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, fetch_model.__file__]
        return subprocess.Popen(command, env=self.variables | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, **variables: str) -> tuple[int, str]:
        process = self.start(**variables)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err
        return process.returncode, out + err

    def requests(self) -> list[str]:
        return (self.faults / "requests").read_text().splitlines()

    def files(self) -> set[str]:
        return {path.relative_to(self.target).as_posix() for path in self.target.rglob("*") if path.is_file()}


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


WHOLE = {"config.json", "model.safetensors", "extra/notes.txt", ".complete"}


def test_model_appears_whole_with_its_commit(hub: Hub) -> None:
    code, output = hub.run()
    assert code == 0
    assert "is complete" in output
    assert hub.files() == WHOLE
    record = json.loads((hub.target / ".complete").read_text())
    assert record["commit"] == "c0ffee"
    assert record["repository"] == "VisGym/visgym_model"
    assert [path.name for path in hub.target.parent.iterdir() if not path.name.endswith(".lock")] == ["maze"], "nothing is left beside it"


def test_second_run_downloads_nothing(hub: Hub) -> None:
    hub.run()
    before = hub.requests()
    assert hub.run()[0] == 0
    assert hub.requests() == before


def test_killed_in_the_middle_it_goes_on_with_what_is_there(hub: Hub) -> None:
    (hub.faults / "slow").touch()
    process = hub.start()
    deadline = time.monotonic() + 120
    while not (hub.faults / "started").exists():
        assert time.monotonic() < deadline, "the download did not start"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    assert not hub.target.exists(), "a half model is not seen by anybody"
    (hub.faults / "slow").unlink()
    assert hub.run()[0] == 0
    assert hub.files() == WHOLE
    assert "kept mixed/config.json" in hub.requests()


def test_a_damaged_file_is_fetched_again(hub: Hub) -> None:
    (hub.faults / "damaged").touch()
    code, output = hub.run()
    assert code == 1
    assert "mixed/model.safetensors" in output
    assert not hub.target.exists()
    assert hub.run()[0] == 0
    assert hub.requests().count("got mixed/model.safetensors") == 2
    assert hub.requests().count("got mixed/config.json") == 1


def test_what_somebody_put_there_by_hand_is_not_touched(hub: Hub) -> None:
    hub.target.mkdir(parents=True)
    (hub.target / "config.json").write_text("mine")
    code, output = hub.run()
    assert code == 2, "trying again does not help, so the Job ends"
    assert "touch" in output
    assert (hub.target / "config.json").read_text() == "mine"
    (hub.target / ".complete").touch()
    assert hub.run()[0] == 0


def test_a_folder_that_the_repository_lacks_is_said(hub: Hub) -> None:
    code, output = hub.run(SUBFOLDER="absent")
    assert code == 2
    assert "VisGym/visgym_model has no absent/config.json at main (c0ffee)" in output


def test_two_pods_at_once_make_one_model(hub: Hub) -> None:
    processes = [hub.start() for _ in range(3)]
    assert [process.communicate(timeout=120) and process.returncode for process in processes] == [0, 0, 0]
    assert hub.requests().count("got mixed/model.safetensors") == 1
    assert hub.files() == WHOLE


def test_job_mounts_the_script_it_runs(reference: Environment) -> None:
    config, job = manifests.charts(reference)["model"]
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert config["data"] == {"fetch_model.py": Path(fetch_model.__file__).read_text()}
    assert {"name": "script", "configMap": {"name": config["metadata"]["name"]}} in pod["volumes"]
    assert container["command"][1] == f"{container['volumeMounts'][1]['mountPath']}/fetch_model.py"
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert values["TARGET"] == reference.training.base_model
    assert values["HF_TOKEN"] is None, "a token comes from a Secret only"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    (rule, *_) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [fetch_model.NEVER]


def test_another_model_is_another_job(edited: Callable[..., Environment]) -> None:
    env = edited(("training:\n", "training:\n  base_model_revision: v2\n"))
    names = {manifests.charts(made)["model"][1]["metadata"]["name"] for made in (load("reference"), env)}
    assert len(names) == 2


@pytest.mark.parametrize(("name", "reason"), [("local", "names no repository"), ("production", "egress is closed")])
def test_no_job_where_nothing_can_be_fetched(name: str, reason: str) -> None:
    env = load(name)
    assert manifests.charts(env)["model"] == []
    assert reason in str(model.missing(env))
