"""What the demo does when a step takes for ever."""

from __future__ import annotations

import signal
import subprocess

import pytest

from local import demo


def test_a_step_that_hangs_is_ended_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def watched(*words: object, **more: object) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **more))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", watched)
    held = signal.signal(signal.SIGALRM, demo._too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(demo.StepFailed, match="it was not done within 40 min"):
            demo._run("sleep 600")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, held)
    assert started[0].poll() is not None
