"""Submit, attach, stop: one job however often it is pressed, and the state is Ray's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from config.load import load
from config.problems import Failed, Refused, Unreachable
from tests.training.fakes import FakeRay, connection
from training import jobs, layout, run
from training.connection import Lost


def specification(run_id: str = "maze-1", *settings: str) -> run.Specification:
    return run.specify(load("reference"), run_id=run_id, settings=settings, code=run.Code("0" * 40, dirty=False))


def test_submit_then_attach() -> None:
    ray = FakeRay()
    first = jobs.submit(connection(ray), specification())
    assert (first.action, first.attempt.submission_id) == ("submitted", "maze-1-a1")
    ray.jobs["maze-1-a1"].status = "RUNNING"
    second = jobs.submit(connection(ray), specification())
    assert (second.action, second.attempt.number) == ("attached", 1)
    assert list(ray.jobs) == ["maze-1-a1"]


def test_a_running_run_with_another_specification_is_refused_with_the_differences() -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification())
    with pytest.raises(Refused) as refused:
        jobs.submit(connection(ray), specification("maze-1", "trainer.epochs=5", "trainer.seed=7"))
    said = [str(problem) for problem in refused.value.problems]
    assert any("trainer.epochs: 20 there, 5 here" in line for line in said)
    assert any("trainer.seed: nothing there, 7 here" in line for line in said)
    assert list(ray.jobs) == ["maze-1-a1"]


@pytest.mark.parametrize("status", ["FAILED", "STOPPED"])
def test_after_failure_comes_the_next_attempt(status: str) -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification())
    ray.end("maze-1-a1", status)
    outcome = jobs.submit(connection(ray), specification("maze-1", "trainer.epochs=30"))
    assert outcome.attempt.submission_id == "maze-1-a2"
    assert outcome.changes == ["trainer.epochs: 20 there, 30 here"]


def test_a_run_that_succeeded_is_done() -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification())
    ray.end("maze-1-a1", "SUCCEEDED")
    assert jobs.submit(connection(ray), specification()).action == "done"
    assert jobs.submit(connection(ray), specification("maze-1", "trainer.epochs=30")).attempt.number == 2


def test_attempt_ten_comes_after_nine() -> None:
    ray = FakeRay()
    for number in range(1, 12):
        assert jobs.submit(connection(ray), specification()).attempt.number == number
        ray.end(f"maze-1-a{number}", "FAILED")


def test_pressed_twice_at_once_submits_one_job() -> None:
    ray = FakeRay()
    together = threading.Barrier(2, timeout=120)
    outcomes: list[jobs.Outcome] = []

    def press() -> None:
        mine = connection(ray)
        submit = ray.submit_job

        class Client:
            def __getattr__(self, name: str) -> object:
                return getattr(ray, name)

            def submit_job(self, **arguments: object) -> str:
                together.wait()  # both have seen an empty table
                return submit(**arguments)  # type: ignore[arg-type]

        mine.factory = lambda _: Client()
        outcomes.append(jobs.submit(mine, specification()))

    threads = [threading.Thread(target=press) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcome.action for outcome in outcomes) == ["attached", "submitted"]
    assert list(ray.jobs) == ["maze-1-a1"]


def test_an_answer_that_was_lost_does_not_submit_twice() -> None:
    ray = FakeRay()

    def lose_the_answer() -> None:
        ray.drop = 1

    ray.before_submit = lose_the_answer
    outcome = jobs.submit(connection(ray), specification())
    assert outcome.attempt.number == 1
    assert list(ray.jobs) == ["maze-1-a1"]


def test_another_run_holds_the_gpus() -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification())
    with pytest.raises(Refused, match="hyperpod-rl stop maze-1"):
        jobs.submit(connection(ray), specification("maze-2"))
    ray.end("maze-1-a1", "SUCCEEDED")
    assert jobs.submit(connection(ray), specification("maze-2")).action == "submitted"


def test_runs_whose_names_begin_alike_are_not_mixed() -> None:
    ray = FakeRay()
    for run_id in ("maze", "maze-a1", "maze-1"):
        jobs.submit(connection(ray), specification(run_id))
        ray.end(f"{run_id}-a1", "FAILED")
    assert jobs.submit(connection(ray), specification("maze")).attempt.submission_id == "maze-a2"
    ray.end("maze-a2", "FAILED")
    assert [len(its) for its in jobs.runs(connection(ray)).values()] == [1, 1, 2]


def test_jobs_of_others_are_not_runs() -> None:
    ray = FakeRay()
    ray.submit_job(entrypoint="true", submission_id="raysubmit_12345", runtime_env={}, metadata={})
    ray.submit_job(entrypoint="true", submission_id="maze-1-a1", runtime_env={}, metadata={"run_id": "another"})
    assert jobs.runs(connection(ray)) == {}


def test_attempts_that_a_restarted_head_forgot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    folder = tmp_path / "runs/maze-1/attempts"
    folder.mkdir(parents=True)
    for name in ("1", "2", "notes.txt"):
        (folder / name).touch()
    assert jobs.submit(connection(FakeRay()), specification()).attempt.number == 3


def test_what_ray_refuses_is_said() -> None:
    ray = FakeRay()

    def refuse(**_: object) -> str:
        raise RuntimeError("Request failed with status code 400: runtime_env is not valid.")

    ray.submit_job = refuse  # type: ignore[method-assign]
    with pytest.raises(Failed, match="runtime_env is not valid"):
        jobs.submit(connection(ray), specification())


def test_stop_waits_and_is_content_twice() -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification())
    attempt, was_running = jobs.stop(connection(ray), "maze-1")
    assert (attempt.status, was_running) == ("STOPPED", True)
    attempt, was_running = jobs.stop(connection(ray), "maze-1")
    assert (attempt.status, was_running) == ("STOPPED", False)
    assert ray.calls.count("stop") == 1


def test_a_job_that_does_not_stop_is_said() -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification())
    ray.stop_job = lambda job_id: True  # type: ignore[method-assign]
    clock = iter(range(0, 10_000, 30))
    with pytest.raises(Unreachable, match="still pending"):
        jobs.stop(connection(ray), "maze-1", sleep=lambda _: None, now=lambda: float(next(clock)))


def test_an_unknown_run_names_a_close_one() -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification("maze-grpo-1"))
    with pytest.raises(Refused, match="did you mean maze-grpo-1"):
        jobs.newest(connection(ray), "maze-grpo-2")
    with pytest.raises(Refused, match="there is none yet"):
        jobs.newest(connection(FakeRay()), "maze-grpo-2")


def test_one_lost_call_is_repeated_two_are_told() -> None:
    ray = FakeRay(drop=1)
    assert jobs.runs(connection(ray)) == {}
    with pytest.raises(Unreachable, match="cannot be reached"):
        jobs.runs(connection(FakeRay(drop=2)))


class SlowHead(FakeRay):
    """A head whose job agent comes up late: Ray answers 500 for a while."""

    def __init__(self, *, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def submit_job(self, **arguments: object) -> str:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("Request failed with status code 500: No available agent to submit job, please try again later.")
        return str(super().submit_job(**arguments))  # type: ignore[arg-type]


def test_a_head_whose_job_agent_is_late_gets_the_job_in_the_end() -> None:
    ray = SlowHead(refusals=2)
    assert jobs.submit(connection(ray), specification()).action == "submitted"
    assert list(ray.jobs) == ["maze-1-a1"]


def test_a_head_whose_job_agent_never_comes_is_unreachable() -> None:
    ray = SlowHead(refusals=99)
    with pytest.raises(Unreachable, match="job agent"):
        jobs.submit(connection(ray), specification())
    assert not ray.jobs


@pytest.mark.parametrize(("said", "kind"), [("Job maze-1-a1 does not exist", jobs.Gone), ("GCS is not up yet", Lost)])
def test_only_a_job_that_does_not_exist_is_gone(said: str, kind: type[Exception]) -> None:
    """A dashboard that comes up before its head's store answers with errors, and the job goes on."""
    ray = FakeRay()
    attempt = jobs.submit(connection(ray), specification()).attempt

    def info(name: str) -> Any:
        raise RuntimeError(f"Request failed with status code 500: {said}.")

    ray.get_job_info = info  # type: ignore[method-assign]
    with pytest.raises(kind) as raised:
        jobs.details(connection(ray), attempt)
    assert raised.type is kind


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Job entrypoint command failed with exit code -9, last available logs (truncated):\n'tokens': 5\n",
         "Job entrypoint command failed with exit code -9 (killed by SIGKILL)"),
        ("Job entrypoint command failed with exit code 1, last available logs (truncated):\nValueError: no\n",
         "Job entrypoint command failed with exit code 1; its log ends with: ValueError: no"),
        ("Job entrypoint command failed with exit code -200", "Job entrypoint command failed with exit code -200"),
    ],
)  # fmt: skip
def test_why_a_job_ended(message: str, said: str) -> None:
    ray = FakeRay()
    link = connection(ray, load("reference"))
    jobs.submit(link, run.specify(load("reference"), run_id="maze-1"))
    ray.end("maze-1-a1", "FAILED")
    ray.jobs["maze-1-a1"].message = message
    assert jobs.newest(link, "maze-1").message == said
