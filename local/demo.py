"""`make demo`: the main job on this machine, from an empty cloud to an empty cloud, each command printed before it runs.

The demo has a local cloud of its own (state folder `.local/demo`), so that it disturbs none that you started by hand, and
so that a demo which was killed can be cleared away by the next one.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from config.problems import Failed, Problem, Refused, Unreachable
from local import lifecycle, processes, state

ENVIRONMENT = "local"
RUN = "demo"
OUT = f"cdk.out/{ENVIRONMENT}"
# The first checkpoint must be there, or nothing would be resumed; a little later, so that some steps are really lost.
KILL_AFTER_CHECKPOINT_SECONDS = 8.0
# Several times what a slow machine needs: a demo that hangs says so, instead of taking a night, or the whole time of a CI job.
LIMIT_SECONDS = 40 * 60
NOTHING_LEFT = "nothing left: 0 stacks, 0 resources, 0 processes"

UP = "hyperpod-rl local up"
DIFF = f"cdk diff --app {OUT}"
DIFF_LOG = ".local/demo-diff.txt"
DEPLOY = (
    f"cdk bootstrap aws://000000000000/us-west-2 --app {OUT}",
    DIFF,
    f"cdk deploy --all --app {OUT} --require-approval never --concurrency 3",
)
SYNTH = f"cdk synth --quiet -c env={ENVIRONMENT} -o {OUT}"
CLUSTER_UP = "hyperpod-rl cluster up"
SUBMIT = f"hyperpod-rl submit --run-id {RUN}"
FOLLOW = f"hyperpod-rl follow {RUN}"
STATUS = f"hyperpod-rl status {RUN}"
# Outside the demo's own folder, so that it can be looked at afterwards.
REPORT = f"hyperpod-rl report {RUN} --output .local/demo-report.html"
# The article's own way in, through the unmodified toolkit.
PLAIN_RAY = f"ray job status {RUN}-a2 --address sagemaker_ray://skyrl-visgym/training"
LIST = "hyperpod-rl list"
CLUSTER_STATUS = "hyperpod-rl cluster status"
PODS = "kubectl get pods -n training"
# An early export first, so that there is something to come back to when the best one follows it.
GATE = f"hyperpod-rl gate {RUN} --step 20"
PROMOTE = f"hyperpod-rl promote {RUN} --step 20 --alias current"
CLUSTER_DOWN = "hyperpod-rl cluster down"
SERVE_UP = "hyperpod-rl serve up"
VERIFY = "hyperpod-rl verify"
CHAT = "hyperpod-rl chat --seed 1 --output .local/maze-1.png"
SECOND_GATE = f"hyperpod-rl gate {RUN} --best"
CANARY = f"hyperpod-rl promote {RUN} --best --alias canary --share 0.25"
CHAT_CANARY = "hyperpod-rl chat --seed 1 --model visgym-qwen3vl:canary --output .local/maze-1-canary.png"
SECOND_PROMOTE = f"hyperpod-rl promote {RUN} --best --alias current"
RELEASES = "hyperpod-rl releases"
ROLLBACK = "hyperpod-rl rollback"
SERVE_STATUS = "hyperpod-rl serve status"
SERVE_DOWN = "hyperpod-rl serve down"
SERVING = (
    GATE, PROMOTE, CLUSTER_DOWN, SERVE_UP, VERIFY, CHAT, SECOND_GATE, CANARY, CHAT_CANARY, SECOND_PROMOTE, RELEASES, ROLLBACK, VERIFY,
    SERVE_STATUS, SERVE_DOWN,
)  # fmt: skip
DESTROY = f"cdk destroy --all --force --app {OUT}"
UNDO_BOOTSTRAP = "python -m local.cloud.bootstrap"
DOWN = "hyperpod-rl local down"

# Everything that the demo types, for the pages that show the same.
COMMANDS = (
    UP,
    SYNTH,
    *DEPLOY,
    CLUSTER_UP,
    CLUSTER_STATUS,
    PODS,
    SUBMIT,
    FOLLOW,
    STATUS,
    REPORT,
    LIST,
    PLAIN_RAY,
    *SERVING,
    DESTROY,
    UNDO_BOOTSTRAP,
    DOWN,
)


class StepFailed(Exception):
    """A command of the demo ended otherwise than it should."""


def main() -> int:
    """Run the demo. Returns 0 when nothing is left, 1 when a step failed or something is left, 130 after Ctrl-C."""
    argparse.ArgumentParser(prog="make demo", description=__doc__).parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_SECONDS)
    os.chdir(state.ROOT)
    os.environ[state.FOLDER] = str(state.ROOT / ".local" / "demo")
    begin = time.monotonic()
    try:
        with _alone():
            return _demo(begin)
    except (StepFailed, Failed, Refused, Unreachable) as error:
        print(f"\nthe demo stopped: {error}", file=sys.stderr)
        return 2 if isinstance(error, Refused) else 1
    except KeyboardInterrupt:
        print("\ninterrupted; the demo's local cloud was ended. `make demo` starts again from nothing.", file=sys.stderr)
        return 130


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _too_long(number: int, frame: object) -> None:
    raise StepFailed(f"it was not done within {LIMIT_SECONDS // 60} min, and it takes 5 on two cores; what it waited for stands above")


def _demo(begin: float) -> int:
    lifecycle.down(purge=True)  # what a killed demo may have left
    before = lifecycle.snapshot()
    try:
        print("This machine stands in for AWS, EKS and the GPUs.")
        print(f"\n$ export {state.FOLDER}={_shown(state.folder())}")
        _run(UP)
        print('$ eval "$(hyperpod-rl local env)"', flush=True)
        for name in lifecycle.against_it():
            del os.environ[name]
        os.environ.update(lifecycle.environment())
        _run(SYNTH)
        for command in DEPLOY:
            _run(command, log=state.ROOT / DIFF_LOG if command == DIFF else None)
        _run(CLUSTER_UP)
        _run(CLUSTER_STATUS)
        _run(PODS)
        _run(SUBMIT)
        with _killed_after_its_first_checkpoint():
            _run(FOLLOW, expect=1)
        print("\nThe attempt failed, as it had to. The same command again is the next attempt; it resumes from the last checkpoint.")
        _run(SUBMIT)
        _run(FOLLOW)
        _run(STATUS)
        _run(REPORT)
        _run(LIST)
        _run(PLAIN_RAY)
        for command in SERVING:
            _run(command)
        _run(DESTROY)
        _run(UNDO_BOOTSTRAP)
        remains = [f"{kind}: {name}" for kind, names in lifecycle.inventory().items() for name in names]
        _run(DOWN)
        # What `down` keeps on purpose is not counted; what it leaves against its word is.
        kept = tuple(f"file: {state.folder() / name}" for name in lifecycle.KEPT_BY_DOWN)
        remains += [line for line in lifecycle.compare(before) if not line.startswith(kept)]
    finally:
        with _uninterrupted():
            lifecycle.down(purge=True)
    print(f"\n{time.monotonic() - begin:.0f} s in all")
    if remains:
        print(*remains, sep="\n")
        print(f"left over: {len(remains)}")
        return 1
    print(NOTHING_LEFT)
    return 0


def _run(command: str, *, expect: int = 0, log: Path | None = None) -> None:
    """Print a command, run it, print how long it took. Raises StepFailed on another exit code than the expected one.

    What it says goes to `log` where one is given; its length and last line are shown.
    """
    print(f"\n$ {command}", flush=True)
    begin = time.monotonic()
    with log.open("wb") if log else nullcontext() as output:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT if output else None
        )
    try:
        code = process.wait()
    except (KeyboardInterrupt, StepFailed):
        # Ctrl-C reaches the command too; SIGTERM and the alarm reach this process alone.
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        process.kill()
        raise
    if log is not None:
        lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() or [""]
        print(f"{len(lines)} lines are in {_shown(log)}; the last one: {lines[-1]}")
    print(f"  [{time.monotonic() - begin:.0f} s]", flush=True)
    if code != expect:
        raise StepFailed(f"`{command}` ended with exit code {code}, not {expect}")


@contextmanager
def _killed_after_its_first_checkpoint() -> Iterator[None]:
    """Kill the trainer of the running attempt, as a lost node would, once there is something to resume from."""
    done = threading.Event()
    thread = threading.Thread(target=_kill_trainer, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _kill_trainer(done: threading.Event) -> None:
    marker = state.folder() / "shared" / "runs" / RUN / "checkpoints" / "latest_ckpt_global_step.txt"
    while not marker.exists():
        if done.wait(0.2):
            return
    if done.wait(KILL_AFTER_CHECKPOINT_SECONDS):
        return
    for process in processes.marked(state.folder()):
        if "local.trainer" in process.arguments and Path(process.arguments[0]).name.startswith("python"):
            print(f"\n$ kill -9 {process.pid}   # a fault: the trainer dies after checkpoint {marker.read_text().strip()}", flush=True)
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


@contextmanager
def _alone() -> Iterator[None]:
    """One demo at a time in a checkout. Raises Refused if another one runs."""
    folder = state.ROOT / ".local"
    folder.mkdir(exist_ok=True)
    with (folder / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(Problem("demo", "", "another demo runs in this checkout", "wait for it, or end it")) from None
        yield


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C, SIGTERM or alarm must not leave half of the clearing undone."""
    held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


def _shown(path: Path) -> str:
    return str(path.relative_to(state.ROOT)) if path.is_relative_to(state.ROOT) else str(path)


if __name__ == "__main__":
    sys.exit(main())
