"""Ctrl-C, pressed as people press it: more than once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from config.load import ROOT

# `follow` of a job that never ends, on a cluster that is a job table; giving the connection back takes a moment.
PROGRAM = """
import contextlib, signal, sys, time
signal.alarm(300)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born deaf to Ctrl-C
from tests.training.fakes import FakeRay, connection
from training import jobs, run
from config.load import load
from cli import main

ray, env = FakeRay(), load("reference")
jobs.submit(connection(ray, env), run.specify(env, run_id="maze-1", code=run.Code("a" * 40, dirty=False)))
ray.jobs["maze-1-a1"].status = "RUNNING"

@contextlib.contextmanager
def connect(env, **_):
    try:
        print("connected", flush=True)
        yield connection(ray, env)
    finally:
        time.sleep(0.3)
        print("given back", flush=True)

jobs.connect = connect
sys.argv = ["hyperpod-rl", *sys.argv[1:]]
main.main()
"""


@pytest.mark.parametrize("command", ["follow", "supervise"])
def test_ctrl_c_again_and_again_is_one_ctrl_c(command: str) -> None:
    words = [sys.executable, "-c", PROGRAM, command, "maze-1"]
    variables = {**os.environ, "HYPERPOD_RL_SHARED": "/nowhere"}
    process = subprocess.Popen(words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    for _ in range(200):
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    out, err = process.communicate(timeout=240)
    # As a shell sees both: 130. A signal in Python's own last moments finds no handler any more.
    assert process.returncode in (130, -signal.SIGINT), err
    assert out.splitlines()[-1] == "given back"
    assert err.count("goes on") == 1
    for word in ("Traceback", "File ", "KeyboardInterrupt", "Exception"):
        assert word not in out + err
