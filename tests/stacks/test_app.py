"""The app as the CDK CLI runs it: a process with a context, an exit code, and bytes on disk."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from config.load import ENVIRONMENTS, ROOT
from tests.stacks.assembly import CONTEXT

SILENT = {"JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION": "1", "JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION": "1"}


def run(cwd: Path, *, out: Path | None = None, extra: dict[str, str] | None = None, **context: str) -> subprocess.CompletedProcess[str]:
    """The app with a context, no credentials and no network (every proxy leads nowhere)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_", "HYPERPOD_RL_"))}
    environment |= SILENT | {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "AWS_EC2_METADATA_DISABLED": "true"}
    environment |= {"CDK_CONTEXT_JSON": json.dumps(CONTEXT | context), **(extra or {})}
    if out:
        environment["CDK_OUTDIR"] = str(out)
    return subprocess.run(
        [sys.executable, str(ROOT / "app.py")], cwd=cwd, env=environment, text=True, capture_output=True, check=False, timeout=180
    )


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_the_same_bytes_twice_and_from_another_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first = run(ROOT, out=tmp_path / "first")
    second = run(elsewhere, out=tmp_path / "second")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "111122223333" in first.stderr
    one, two = digest(tmp_path / "first"), digest(tmp_path / "second")
    assert one == two
    assert any(name.endswith("HyperPod.template.json") for name in one)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: bad\nregion: us-west-2\ninstance_group: []\n", "instance_group"),
        ("name: [\n", "YAML"),
        ("", "empty"),
    ],
)
def test_a_bad_file_is_refused_in_sentences(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = run(tmp_path, out=tmp_path / "out", env=str(path))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.template.json"))


def test_a_missing_environment_is_refused_with_what_there_is(tmp_path: Path) -> None:
    done = run(tmp_path, env="referense")
    assert done.returncode == 2
    assert "did you mean reference" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_name_is_a_variable_that_was_not_set_and_no_wish_for_reference(tmp_path: Path) -> None:
    done = run(tmp_path, env="")
    assert done.returncode == 2
    assert "a name or a file is needed" in done.stderr


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        (ENVIRONMENTS / "reference.yaml").read_text().replace("count: 3", "count: -3").replace("removal: retain", "removal: shred")
    )
    done = run(tmp_path, env=str(path))
    assert done.returncode == 2
    assert "instance_groups[2].count" in done.stderr
    assert "storage.removal" in done.stderr


@pytest.mark.parametrize(
    "extra",
    [{"AWS_ENDPOINT_URL": "https://cloudformation.us-west-2.amazonaws.com"}, {"CDK_DEFAULT_ACCOUNT": "123456789012"}],
    ids=lambda extra: next(iter(extra)),
)
def test_the_local_environment_stays_on_this_machine(tmp_path: Path, extra: dict[str, str]) -> None:
    done = run(tmp_path, env="local", extra=extra)
    assert done.returncode == 2
    assert next(iter(extra)) in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_in_a_synthesis_ends_it_at_once_and_without_a_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, **SILENT, "CDK_CONTEXT_JSON": json.dumps(CONTEXT), "CDK_OUTDIR": str(tmp_path / "out")}
    # A session of its own: a terminal sends Ctrl-C to the whole group, jsii's JavaScript process with it.
    app = subprocess.Popen(
        [sys.executable, str(ROOT / "app.py")], cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE, start_new_session=True
    )
    assert app.stderr is not None
    said = app.stderr.readline()
    while "names no account" not in said:  # the stacks come next
        said = app.stderr.readline()
        assert said, "it ended before the stacks were made"
    os.killpg(app.pid, signal.SIGINT)
    rest = app.stderr.read()
    assert app.wait(timeout=120) == -signal.SIGINT
    assert "Traceback" not in rest
    assert "Error" not in rest
    assert not list((tmp_path / "out").glob("manifest.json")), "a half-made assembly must not look like a whole one"
    for _ in range(200):  # the JavaScript process sees that it is alone
        try:
            os.killpg(app.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of the synthesis is still there")
