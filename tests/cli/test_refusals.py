"""Bad input: one clear message each, exit code 2, no traceback, nothing created; and every other way to fail has its code."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli import main
from config.load import ROOT
from config.names import CODE_VARIABLE
from config.problems import Failed, Problem, Refused, Unreachable

REFERENCE = (ROOT / "environments/reference.yaml").read_text()


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    out, err = capsys.readouterr()
    return code, out, err


def environment(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


BAD_FILES = {
    "misspelt key": (REFERENCE.replace("instance_groups:", "instance_group:"), "instance_group"),
    "negative count": (REFERENCE.replace("count: 3", "count: -3"), "count"),
    "worker without GPU": (REFERENCE.replace("ml.g7e.12xlarge", "ml.m5.4xlarge"), "GPU"),
    "broken YAML": ("name: [", "YAML"),
    "empty file": ("", "empty"),
    "not a mapping": ("- 1", "mapping"),
    "binary": ("\x00\x01", "YAML"),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("words", [["submit", "--dry-run", "--run-id", "r"], ["cluster", "up"], ["list"]], ids=" ".join)
def test_a_bad_environment(case: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, said = BAD_FILES[case]
    code, out, err = call(["--env", environment(tmp_path, text), *words], capsys)
    assert code == 2
    assert said in err
    assert "Traceback" not in out + err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


BAD_WORDS = {
    "run id with a space": (["submit", "--dry-run", "--run-id", "a b"], "run id = a b"),
    "run id of 300 characters": (["submit", "--dry-run", "--run-id", "x" * 300], "(300 characters)"),
    "empty run id": (["submit", "--dry-run", "--run-id", ""], "run id"),
    "unknown --set": (["submit", "--dry-run", "--set", "trainer.epoch=3"], "did you mean trainer.epochs"),
    "ill-typed --set": (["submit", "--dry-run", "--set", "trainer.epochs=many"], "an integer is expected"),
    "--set without =": (["submit", "--dry-run", "--set", "trainer.epochs"], "key=value"),
    "--set of a derived key": (["submit", "--dry-run", "--set", "trainer.ckpt_path=s3://b/c"], "leave it out"),
    "missing environment": (["--env", "referenze", "submit", "--dry-run"], "did you mean reference"),
    "missing environment file": (["--env", "/nowhere/x.yaml", "list"], "there is no such file"),
    "missing command": (["sumbit"], "did you mean `submit`"),
    "missing option": (["submit", "--dry"], "dry-run"),
    "missing argument": (["follow"], "RUN"),
    "bad address": (["list", "--address", "ftp://x"], "http://"),
    "bad timeout": (["cluster", "up", "--timeout", "-1"], "timeout"),
    "follow what is no run": (["follow", "a b"], "run id = a b"),
    "stop what is no run": (["stop", "../x"], "run id = ../x"),
}


@pytest.mark.parametrize("case", BAD_WORDS)
def test_bad_words(case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYPERPOD_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nothing may be asked; whoever tries is refused
    words, said = BAD_WORDS[case]
    code, out, err = call(words, capsys)
    assert code == 2, err
    assert said in err
    assert "Traceback" not in out + err
    assert out == ""
    assert not list(tmp_path.iterdir())


def test_errors_in_json_are_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["submit", "--dry-run", "--json", "--run-id", "a b", "--set", "x=1"],
        ["--json", "nonsense"],
        ["status", "--json", "--bad"],
    ):
        code, out, err = call(words, capsys)
        assert code == 2
        assert err == ""
        document = json.loads(out)
        assert document["exit_code"] == 2
        assert all(problem["message"] for problem in document["problems"])
    assert len(json.loads(call(["submit", "--dry-run", "--json", "--run-id", "a b", "--set", "x=1"], capsys)[1])["problems"]) == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Refused([Problem("a", "1", "no"), Problem("b", "2", "never", "stop")]), 2, "b = 2: never; stop."),
        (Unreachable("nobody answers."), 3, "nobody answers."),
        (Failed("the job failed"), 1, "the job failed."),
        (KeyboardInterrupt(), 130, "goes on"),
        (OSError(errno.ENOSPC, "No space left on device", "/shared/x"), 3, "/shared/x: no space is left"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 3, "/root/x: permission denied"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), 3, "connection refused"),
        (ValueError("something of ours"), 1, "a defect of hyperpod-rl (ValueError: something of ours)"),
        (RecursionError("deep"), 1, "a defect"),
        (click.UsageError("what is this"), 2, "what is this"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_failure_has_a_sentence_and_a_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main.cli, "main", fail)
    got, out, err = call([], capsys)
    assert (got, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def test_a_reader_that_left(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "submit", "--dry-run", "--run-id", "r"],
        cwd=ROOT,
        env={**os.environ, CODE_VARIABLE: "a" * 40},  # else a checkout with changes is warned of
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


def test_a_full_disk_under_standard_output() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", "submit", "--dry-run", "--run-id", "r"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 3
    assert b"no space is left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_environment_may_come_from_a_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_RL_ENV", "local")
    code, out, _ = call(["submit", "--dry-run", "--json", "--run-id", "r"], capsys)
    assert code == 0
    assert json.loads(out)["environment"] == "local"
    code, out, _ = call(["submit", "--dry-run", "--json", "--run-id", "r", "--env", "reference"], capsys)
    assert json.loads(out)["environment"] == "reference"


def test_dry_run_prints_what_submit_would_send(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from config.load import load
    from training import run

    code, out, err = call(["submit", "--dry-run", "--json", "--run-id", "maze-1", "--set", "trainer.epochs=5"], capsys)
    assert (code, err) == (0, "")
    document = json.loads(out)
    expected = run.specify(load("reference"), run_id="maze-1", settings=("trainer.epochs=5",))
    assert document["job"]["entrypoint"] == expected.entrypoint
    assert document["specification"] == expected.digest
    assert document["overrides"]["trainer.epochs"] == 5


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`hyperpod-rl` in a shell's hands, as `$RL`."""
    environment = {**os.environ, "HYPERPOD_RL_CACHE": "/nonexistent", **variables}
    command = command.replace("$RL", f"{shlex.quote(sys.executable)} -m cli.main")
    return subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("command", "code"),
    [("$RL --help >&-", 0), ("$RL sumbit 2>&-", 2), ("$RL sumbit >&- 2>&- <&-", 2), ("$RL --json sumbit >&-", 2),
     ("$RL --help >/dev/full", 3), ("$RL --json sumbit >/dev/full", 3), ("$RL sumbit 2>/dev/full", 2)],
)  # fmt: skip
def test_a_stream_that_is_closed_or_full(command: str, code: int) -> None:
    done = shell(command)
    assert done.returncode == code, done
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    if code == 3:
        assert "no space is left" in done.stderr


def test_json_is_json_in_every_encoding() -> None:
    done = shell("$RL --json --env 'é€\udcff' list", PYTHONIOENCODING="ascii")
    assert done.returncode == 2, done
    assert json.loads(done.stdout)["problems"][0]["value"].startswith("é€")
    done = subprocess.run(
        [sys.executable.encode(), b"-m", b"cli.main", b"--json", b"--env", b"a\xff", b"list"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 2, done
    assert json.loads(done.stdout.decode("utf-8"))["problems"][0]["value"] == "a\udcff"


def test_text_is_readable_in_ascii() -> None:
    done = shell("$RL --env é list", PYTHONIOENCODING="ascii")
    assert done.returncode == 2, done
    assert "environment = \\xe9: there is no such environment" in done.stderr


def test_ctrl_c_while_the_command_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = shell("$RL list", PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="")
    # `-m` puts the current folder first and PYTHONPATH second, before the real click.
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("words", [[], ["cluster"], ["local"]], ids=str)
def test_no_command_is_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(words, capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: hyperpod-rl")
    code, out, err = call(["--json", *words], capsys)
    assert code == 2
    assert "--help" in json.loads(out)["problems"][0]["message"]


@pytest.mark.parametrize("address", ["ftp://me:secret@host", "me:secret@host:8265", "http://me:sec ret@host", "http://me:secret@/x y"])
def test_a_password_in_an_address_is_masked(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["list", "--address", address], ["--json", "list", "--address", address]):
        code, out, err = call(words, capsys)
        assert code == 2
        assert "***@" in out + err
        assert "secret" not in out + err
        assert "ret@" not in out + err
