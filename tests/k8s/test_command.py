"""`python -m k8s`: what goes wrong is one sentence and an exit code."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from config.load import ROOT
from k8s import __main__ as command


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory", "dist/reference"),
            "dist/reference: it cannot be read or written (Not a directory).",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "output: it cannot be read or written (No space left on device)."),
        (RuntimeError("the kernel\nended"), "manifests: RuntimeError: the kernel ended; HYPERPOD_RL_DEBUG=1 shows where."),
    ],
)  # fmt: skip
def test_the_system_refuses(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def write(_: object) -> None:
        raise error

    monkeypatch.delenv("HYPERPOD_RL_DEBUG", raising=False)
    monkeypatch.setattr(command, "_write", write)
    assert command.main([]) == 3
    out, err = capsys.readouterr()
    assert (out, err) == ("", said + "\n")


def test_a_bad_environment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--env", "referenze"]) == 2
    assert "did you mean reference." in capsys.readouterr().err


@pytest.mark.parametrize(("stream", "code", "said"), [(">&-", 0, ""), (">/dev/full", 3, "No space left on device")])
def test_standard_output_is_closed_or_full(stream: str, code: int, said: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m cli.main --json submit --dry-run --run-id r | "$0" -m k8s --ray-job - {stream}', sys.executable],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said)
