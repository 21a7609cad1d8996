"""What only a running cluster can say: version, GPUs, clock, images, and a task on a worker."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from config.problems import Unreachable
from tests.training.fakes import FakeRay, connection
from tests.training.preflight.test_rules import environment, specification
from training import jobs
from training.kubernetes import Kubectl
from training.preflight import cluster

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


class Answer:
    def __init__(self, document: Any, date: str | None = None) -> None:
        self.document, self.headers = document, {"Date": date} if date else {}

    def json(self) -> Any:
        return self.document


class Dashboard(FakeRay):
    """The job table, and the two pages that preflight reads."""

    version, gpus, date, log, status = "2.57.0", (2, 2, 2), "Sun, 29 Nov 2026 12:00:01 GMT", "", "SUCCEEDED"
    deleted: tuple[str, ...] = ()

    def _do_request(self, method: str, path: str) -> Answer:
        if path == "/api/version":
            return Answer({"version": "4", "ray_version": self.version}, self.date)
        nodes = [{"state": "ALIVE", "resources_total": {"CPU": 8.0, "GPU": float(count)}} for count in self.gpus]
        nodes.append({"state": "DEAD", "resources_total": {"GPU": 8.0}})
        return Answer({"result": True, "data": {"result": {"result": nodes}}})

    def get_job_status(self, job_id: str) -> str:
        if job_id in self.deleted:
            raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")
        return self.status

    def get_job_logs(self, job_id: str) -> str:
        return self.log

    def delete_job(self, job_id: str) -> bool:
        self.deleted = (*self.deleted, job_id)
        return True


def judged(dashboard: Dashboard) -> dict[str, str]:
    seen = cluster.look(connection(dashboard), now=lambda: NOW)
    return {found.name: found.level for found in cluster.judge(seen, specification(), ray="2.57.0", wanted_gpus=6)}


@pytest.mark.parametrize(
    ("name", "kept", "broken", "level"),
    [
        ("cluster-runs-the-version-set", {}, {"version": "2.58.0"}, "error"),
        ("cluster-runs-the-version-set", {}, {"version": "2.57.1"}, "warning"),
        ("cluster-has-all-gpus", {"gpus": (4, 4)}, {"gpus": (2, 2)}, "error"),
        ("clocks-agree", {"date": None}, {"date": "Sun, 29 Nov 2026 12:06:00 GMT"}, "error"),
        ("clocks-agree", {"date": "Sun, 29 Nov 2026 11:59:40 GMT"}, {"date": "Sun, 29 Nov 2026 11:59:00 GMT"}, "warning"),
    ],
)
def test_cluster_rule(name: str, kept: dict[str, Any], broken: dict[str, Any], level: str) -> None:
    dashboard = Dashboard()
    for key, value in kept.items():
        setattr(dashboard, key, value)
    assert judged(dashboard) == {}
    for key, value in broken.items():
        setattr(dashboard, key, value)
    assert judged(dashboard) == {name: level}


@pytest.mark.parametrize("date", ["garbage", "Sun, 99 Nov 2026 12:00:00 GMT", "", "Sun, 29 Nov 2026 12:00:01 -0000"])
def test_a_date_that_is_none_says_nothing_of_the_clock(date: str) -> None:
    dashboard = Dashboard()
    dashboard.date = date
    assert judged(dashboard) == {}


def test_a_page_that_is_no_dashboards() -> None:
    class Page(Answer):
        def json(self) -> Any:
            raise ValueError("Expecting value: line 1 column 1 (char 0)")

    class Portal(Dashboard):
        def _do_request(self, method: str, path: str) -> Answer:
            return Page(None)

    with pytest.raises(Unreachable, match="is no Ray dashboard"):
        cluster.look(connection(Portal()))


def test_a_cluster_that_does_not_tell_its_nodes() -> None:
    class Silent(Dashboard):
        def _do_request(self, method: str, path: str) -> Answer:
            if "nodes" in path:
                raise RuntimeError("Request failed with status code 404: no such page")
            return super()._do_request(method, path)

    assert judged(Silent()) == {"cluster-has-all-gpus": "warning"}


@pytest.mark.parametrize(
    ("name", "log"),
    [
        (None, 'noise\nPREFLIGHT {"module": true, "mount": true}\n'),
        ("worker-runs-a-task", 'PREFLIGHT {"module": true, "mou'),
        ("worker-runs-a-task", "PREFLIGHT {}"),
        ("worker-imports-the-code", 'PREFLIGHT {"module": false, "mount": true}\n'),
        ("worker-imports-the-code", 'PREFLIGHT {"module": "ImportError(\'x\')", "mount": true}\n'),
        ("worker-writes-shared", 'PREFLIGHT {"module": true, "mount": false}\n'),
        ("worker-writes-bucket", 'PREFLIGHT {"module": true, "mount": true, "bucket": "AccessDenied"}\n'),
        ("worker-runs-a-task", "Traceback\nray.exceptions.GetTimeoutError: no CPU\n"),
    ],
)
def test_worker_rule(name: str | None, log: str) -> None:
    dashboard = Dashboard()
    dashboard.log = log
    found = cluster.probe(connection(dashboard), specification(), module="examples", sleep=lambda _: None)
    assert [finding.name for finding in found] == ([name] if name else [])
    (job,) = dashboard.jobs.values()
    assert job.runtime_env["env_vars"]["PYTHONPATH"] == "/home/ray/skyrl"  # the run's own variables
    assert dashboard.deleted == (job.submission_id,)


def test_a_worker_that_never_answers_is_given_up_and_cleared_away() -> None:
    dashboard = Dashboard()
    dashboard.status = "PENDING"
    seconds = itertools.count(0.0, 3.0)

    def stop(job_id: str) -> bool:
        dashboard.status = "STOPPED"
        return True

    dashboard.stop_job = stop  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match="busy"):
        cluster.probe(connection(dashboard), specification(), module=None, sleep=lambda _: None, now=lambda: next(seconds))
    assert len(dashboard.deleted) == 1


class Slow(Dashboard):
    """As Ray is: a job that was asked to stop goes on for a while, and one that goes on is not deleted."""

    asked, once_more = 0, True

    def submit_job(self, **given: Any) -> str:
        name = super().submit_job(**given)
        raise ConnectionError(f"the answer of {name} was lost")

    def get_job_status(self, job_id: str) -> str:
        self.asked += 1
        if job_id not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")
        return "STOPPED" if "stop" in self.calls and self.asked > 6 else "RUNNING"

    def stop_job(self, job_id: str) -> bool:
        self.calls.append("stop")
        return True

    def delete_job(self, job_id: str) -> bool:
        if self.get_job_status(job_id) == "RUNNING":
            raise RuntimeError("Request failed with status code 500: the job is not in a terminal state")
        if self.once_more:  # its watcher writes the last status after the deletion
            self.once_more = False
        else:
            del self.jobs[job_id]
        return True


@pytest.mark.parametrize("at", ["asking", "waiting"])
def test_no_job_of_a_check_stays_behind(at: str) -> None:
    dashboard = Slow()
    notes: list[str] = []
    way = connection(dashboard)
    way.note = notes.append

    def interrupted(seconds: float) -> None:
        if "stop" not in dashboard.calls:
            raise KeyboardInterrupt

    times = iter(range(0, 10_000, 100 if at == "waiting" else 1))
    with pytest.raises((KeyboardInterrupt, Unreachable)):
        cluster.probe(
            way, specification(), module=None, sleep=interrupted if at == "asking" else lambda _: None, now=lambda: float(next(times))
        )
    if at == "asking":
        assert (dashboard.jobs, notes) == ({}, [])
    else:  # it would not go in time: then its name and the command are told
        (name,) = dashboard.jobs
        assert notes == [f"the job {name} may still be there; ray job delete {name} removes it once it has ended"]


def test_the_job_of_a_check_is_no_run() -> None:
    dashboard = Dashboard()
    dashboard.log = 'PREFLIGHT {"module": true, "mount": true}\n'
    for _ in range(20):  # a random end that reads like an attempt's number would show up
        cluster.probe(connection(dashboard), specification(), module=None, sleep=lambda _: None)
    assert jobs.runs(connection(dashboard)) == {}


PINNED = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("pinned", "running", "name"),
    [
        (PINNED, [PINNED, PINNED], None), (PINNED, [PINNED, OTHER], "cluster-runs-the-pinned-image"),
        (None, [OTHER, OTHER], None), (None, [PINNED, OTHER], "cluster-runs-one-image"), (PINNED, [""], None),
    ],
)  # fmt: skip
def test_images_of_the_pods(pinned: str | None, running: list[str], name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment()
    env = env.model_copy(update={"image": env.image.model_copy(update={"digest": pinned})})
    pods = [
        {"metadata": {"name": f"w-{number}"}, "status": {"containerStatuses": [
            {"name": "ray", "imageID": f"1.dkr.ecr/x@{digest}" if digest else ""}, {"name": "side", "imageID": f"x@{'sha256:' + 'c' * 64}"},
        ]}}
        for number, digest in enumerate(running)
    ]  # fmt: skip
    monkeypatch.setattr(Kubectl, "list", lambda self, kind, *, namespace, selector="": pods)
    assert [found.name for found in cluster.images(Kubectl(env))] == ([name] if name else [])


@pytest.mark.parametrize(
    ("entrypoint", "module"),
    [
        ("python examples/train/visgym/entrypoint.py --env_variant sft", "examples"),
        ("python -m local.trainer --env_variant sft", "local.trainer"),
        ("python /opt/run.py", None),
        ("python run.py", None),
        ("sleep 1", None),
    ],
)
def test_module_of_an_entrypoint(entrypoint: str, module: str | None) -> None:
    assert cluster.module_of(entrypoint) == module
