"""Fault drills on the local cloud's real Ray cluster: whatever happens to a run, its last adapter is the undisturbed run's, byte for byte.

`make drill` runs all of them; the tests run the two that hold the most faults in the least time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.load import ROOT
from tests.drills import faults
from tests.drills.cloud import READY_SECONDS, STEPS, Cloud, cloud, environment_data, until
from tests.training.ray_endpoint import endpoint, kubeconfig
from training import follow as following
from training import jobs, keeping, run, supervise
from training.connection import Connection
from training.supervise import Limits, Supervisor, Verdict

pytestmark = pytest.mark.ray
whole = pytest.mark.skipif("HYPERPOD_RL_DRILL" not in os.environ, reason="a drill of minutes: make drill")
NOBODY = "http://127.0.0.1:9"  # with a kubeconfig at hand the launcher asks AWS nothing
WRITES = faults.writes_of_a_checkpoint(world=2)


@pytest.fixture(scope="module")
def here() -> Iterator[Cloud]:
    with cloud() as found:
        yield found


@pytest.fixture(scope="module")
def undisturbed(here: Cloud, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The adapter of a run that nothing happened to, trained in this process (the same bytes as on the cluster: tests/local/trainer)."""
    from local.trainer.rollout import in_process
    from local.trainer.settings import settings
    from local.trainer.train import Run

    values = run.specify(here.environment, run_id="undisturbed").overrides
    Run(settings(values), in_process, log=lambda message: None, log_step=lambda step, metrics: None).train()
    return here.adapter("undisturbed")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, here: Cloud) -> None:
    monkeypatch.setattr(following, "STATUS_SECONDS", 0.3)
    monkeypatch.setattr(supervise, "LOOK_SECONDS", 0.5)
    for path in here.control.iterdir():
        path.unlink()


@contextlib.contextmanager
def supervised(here: Cloud, name: str, *, attempts: int = 4, settings: tuple[str, ...] = ()) -> Iterator[tuple[Connection, list[Any]]]:
    """Submit a run and supervise it in a thread; events come into the list, the verdict last. Waits for that at the end."""
    events: list[Any] = []
    specification = run.specify(here.environment, run_id=name, settings=settings)
    with jobs.connect(here.environment, address=here.address) as link:
        jobs.submit(link, specification)
        one = Supervisor(
            link, name, lambda: specification, here.state, keeping.Keeper(link, name), limits=Limits(attempts=attempts, backoff=0.0)
        )
        thread = threading.Thread(target=lambda: [events.append(event) for event in one.run()], daemon=True)
        thread.start()
        yield link, events
        until(lambda: bool(events) and isinstance(events[-1], Verdict), f"the verdict on {name}: {events[-3:]}")
        thread.join(10)


def holds(here: Cloud, name: str, what: str, then: Callable[[], None], events: list[Any]) -> None:
    """Let the run come to a place and wait there, do something that ends its attempt, and let go when the next one has begun.

    Not before: a task whose driver was killed goes on for a moment, until Ray notices.
    """
    hold, known = here.control / f"hold-{what}", _ends(events)
    begun = here.shared / f"runs/{name}/attempts/{known + 2}"
    try:
        until((here.control / f"at-{what}").exists, f"the run at {what}")
        then()
        until(lambda: _ends(events) > known, f"the end of the attempt at {what}", seconds=120)
        until(begun.exists, f"attempt {known + 2} after {what}; {_told(events)}", seconds=120)
    finally:
        hold.unlink(missing_ok=True)


def _told(events: list[Any]) -> str:
    return "; ".join(str(getattr(event, "text", getattr(event, "step", event))) for event in list(events)[-8:])


def _ends(events: list[Any]) -> int:
    return sum(isinstance(event, supervise.Decision) and event.kind in ("failed", "lost", "stopped") for event in list(events))


def arrange(here: Cloud, what: str) -> None:
    (here.control / f"hold-{what}").touch()


def judge(here: Cloud, name: str, events: list[Any], undisturbed: bytes, *, statuses: list[str], first: int = 0) -> None:
    """The verdict, the bytes, the attempts, and a report without a gap or a double."""
    verdict = events[-1]
    assert verdict.succeeded, verdict
    assert here.adapter(name) == undisturbed
    history = keeping.history(here.environment, name, connection=None)
    assert history is not None
    assert [row.step for row in history.series] == list(range(first, STEPS + 1))
    assert history.record.missing_steps == ()
    assert [each.status for each in history.record.attempts] == statuses
    assert [each.number for each in history.record.attempts] == list(range(1, len(statuses) + 1))
    for before, after in zip(history.record.attempts, history.record.attempts[1:], strict=False):
        # Nothing before the last checkpoint is trained again: one is written at every step.
        assert after.first_step is not None
        assert before.last_step is None or after.first_step >= before.last_step - 1, (before, after)


def printed(here: Cloud, name: str, attempt: int, step: int) -> None:
    """Wait until Ray has brought a step's line to the driver: what a worker has printed since is lost with its node."""
    log = here.shared / f"runs/{name}/logs/driver-a{attempt}.log"

    def there() -> bool:
        return log.is_file() and f"'trainer/global_step': {step}," in log.read_text()

    try:
        until(there, f"step {step} in {log.name}", seconds=60)
    except AssertionError as error:
        raise AssertionError(
            f"{error}; it ends with {log.read_text()[-1500:] if log.is_file() else sorted(p.name for p in log.parent.glob('*'))!r}"
        ) from None


def test_killed_job_then_a_torn_checkpoint_then_a_killed_head(here: Cloud, undisturbed: bytes) -> None:
    for step in (4, 8, 12):
        arrange(here, f"step-{step}")
    with supervised(here, "short") as (_, events):
        holds(here, "short", "step-4", lambda: here.kill_driver("short"), events)

        def tear() -> None:
            printed(here, "short", 2, 7)
            newest = here.shared / "runs/short/checkpoints/global_step_7/policy/model_world_size_2_rank_1.pt"
            newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
            here.kill_driver("short")

        holds(here, "short", "step-8", tear, events)

        def behead() -> None:
            printed(here, "short", 3, 11)
            here.kill("head", "gcs_server")

        holds(here, "short", "step-12", behead, events)
    judge(here, "short", events, undisturbed, statuses=["FAILED", "FAILED", "LOST", "SUCCEEDED"])
    # The new head knew no job; the run's folder knew of three attempts.
    assert any("short-a4" in event.text for event in events if isinstance(event, supervise.Decision))


@whole
def test_a_worker_killed_during_a_rollout(here: Cloud, undisturbed: bytes) -> None:
    arrange(here, "rollout-6")
    with supervised(here, "rollout") as (_, events):
        until((here.control / "at-rollout-6").exists, "the rollout of step 6")
        (here.control / "hold-rollout-6").unlink()
        here.kill("worker", "raylet/raylet")
    # Ray may bring the rollout back by itself, or the task that trains was on that node: then it takes a second attempt, and a third
    # where the second met the node before Ray had noticed that it was gone.
    assert events[-1].attempts <= 3
    judge(here, "rollout", events, undisturbed, statuses=["FAILED"] * (events[-1].attempts - 1) + ["SUCCEEDED"])


@whole
def test_no_space_at_each_write_of_a_checkpoint_in_turn(here: Cloud, undisturbed: bytes) -> None:
    (here.control / "full").write_text("1")
    with supervised(here, "full", attempts=WRITES + 2, settings=("trainer.eval_before_train=false",)) as (_, events):
        pass
    assert (here.control / "full").read_text() == str(WRITES + 1)  # it was full at each of them
    judge(here, "full", events, undisturbed, statuses=["FAILED"] * WRITES + ["SUCCEEDED"], first=1)
    failures = [event.text for event in events if isinstance(event, supervise.Decision) and event.kind == "failed"]
    assert len(failures) == WRITES
    assert all("No space left on device" in text for text in failures)


@whole
@pytest.mark.parametrize("write", [1, WRITES // 2, WRITES])
def test_a_stop_during_a_checkpoint(write: int, here: Cloud, undisturbed: bytes) -> None:
    name = f"stop-{write}"
    arrange(here, f"save-5-{write}")
    specification = run.specify(here.environment, run_id=name)
    with jobs.connect(here.environment, address=here.address) as link:
        jobs.submit(link, specification)
        until((here.control / f"at-save-5-{write}").exists, "the checkpoint of step 5")
        assert jobs.stop(link, name)[0].status == "STOPPED"
        keeping.history(here.environment, name, connection=link)
    (here.control / f"hold-save-5-{write}").unlink()
    with supervised(here, name) as (_, events):
        pass
    judge(here, name, events, undisturbed, statuses=["STOPPED", "SUCCEEDED"])


@whole
def test_submit_pressed_twice_at_once(here: Cloud, undisturbed: bytes) -> None:
    specification = run.specify(here.environment, run_id="twice")
    outcomes: list[str] = []
    both = threading.Barrier(2)

    def press() -> None:
        with jobs.connect(here.environment, address=here.address) as link:
            jobs.runs(link)
            both.wait()
            outcomes.append(jobs.submit(link, specification).action)

    threads = [threading.Thread(target=press) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(outcomes) == ["attached", "submitted"]
    with supervised(here, "twice") as (link, events):
        assert len(jobs.attempts(link, "twice")) == 1
    judge(here, "twice", events, undisturbed, statuses=["SUCCEEDED"])


@whole
def test_a_follower_whose_connection_is_cut_twenty_times(here: Cloud, undisturbed: bytes, tmp_path: Path) -> None:
    """The command, through the unmodified toolkit: every cut ends the websocket without a word, every fourth the session, too."""
    file = tmp_path / "local.yaml"
    file.write_text(yaml.safe_dump(environment_data(here.control)))
    last = 22  # a step for each cut; the export of step 16 is the undisturbed run's last
    settings = (f"trainer.max_training_steps={last}",)
    for step in range(1, last):
        arrange(here, f"step-{step}")
    with jobs.connect(here.environment, address=here.address) as link:
        jobs.submit(link, run.specify(here.environment, run_id="cut", settings=settings))
    with endpoint(here.address, tmp_path) as proxy:
        cache = tmp_path / "cache/local"
        cache.mkdir(parents=True)
        (cache / "kubeconfig").write_text(kubeconfig(proxy.kubernetes, aws_endpoint=NOBODY))
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "AWS_"))} | {
            "AWS_ENDPOINT_URL": NOBODY, "HYPERPOD_RL_CACHE": str(tmp_path / "cache"), "HYPERPOD_RL_SHARED": str(here.shared),
            "REQUESTS_CA_BUNDLE": str(proxy.certificate), "SSL_CERT_FILE": str(proxy.certificate),
        }  # fmt: skip
        command = [sys.executable, "-m", "cli.main", "--env", str(file), "follow", "cut", "--json"]
        follower = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
        events: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: [events.append(json.loads(line)) for line in follower.stdout or ()], daemon=True)
        reader.start()
        try:
            cuts = 0
            for step in range(1, last):
                until((here.control / f"at-step-{step}").exists, f"step {step}")
                until(lambda step=step: step - 1 in _steps(events), f"the follower at step {step - 1}: {events[-3:]}")  # type: ignore[misc]
                if cuts < 20:
                    until(lambda: proxy.cut() > 0, "an open connection to cut")
                    cuts += 1
                    if cuts % 4 == 0:
                        proxy.expire()
                (here.control / f"hold-step-{step}").unlink()
            assert follower.wait(READY_SECONDS) == 0
            reader.join(10)
        finally:
            follower.kill()
            follower.wait()
    assert cuts == 20
    assert _steps(events) == list(range(last + 1))  # each once, none left out
    assert sum("connection lost" in event.get("text", "") for event in events) >= 10
    history = keeping.history(here.environment, "cut", connection=None)
    assert history is not None
    assert [row.step for row in history.series] == list(range(last + 1))
    assert here.export("cut", STEPS) == undisturbed


def _steps(events: list[dict[str, Any]]) -> list[int]:
    return [event["step"] for event in list(events) if event["event"] == "step"]
