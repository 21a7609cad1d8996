"""Each rule of preflight beyond SkyRL's configuration: an example that breaks it and one that keeps it."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from config.environment import Environment
from config.load import load
from config.problems import Unreachable
from tests.training.fakes import FakeRay, connection
from training import jobs
from training.preflight import checks, cluster, disk, resume
from training.preflight.findings import Subject
from training.run import Code, Specification, specify

ENGINE, LORA = "generator.inference_engine.", "trainer.policy.model.lora."


def environment(*, capacity_gib: int = 4800, model: str = "VisGym/visgym_model", instance_type: str = "ml.g7e.12xlarge") -> Environment:
    env = load("reference")
    files = env.storage.file_system.model_copy(update={"capacity_gib": capacity_gib})
    groups = [g.model_copy(update={"instance_type": instance_type}) if g.role == "workers" else g for g in env.instance_groups]
    return env.model_copy(
        update={
            "storage": env.storage.model_copy(update={"file_system": files}),
            "training": env.training.model_copy(update={"base_model_repository": model}),
            "instance_groups": tuple(groups),
        }
    )


def specification(*settings: str, env: Environment | None = None) -> Specification:
    return specify(env or environment(), run_id="maze-1", settings=settings, code=Code("0" * 40, dirty=False))


def subject(*settings: str, env: Environment | None = None) -> Subject:
    env = env or environment()
    return Subject(env, specification(*settings, env=env).overrides, "maze-1")


def names(of: Subject) -> set[str]:
    return {found.name for found in checks.laptop(of, variables=frozenset()).findings}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10**15)  # not this machine's disk
    return tmp_path


def checkpoint(shared: Path, step: int, *, world: int = 6, rank: int = 32, alpha: int = 32, marker: int | None = None) -> Path:
    policy = shared / f"runs/maze-1/checkpoints/global_step_{step}/policy"
    (policy / "lora_adapter").mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        for number in range(world):
            (policy / f"{kind}_world_size_{world}_rank_{number}.pt").touch()
    (policy / "lora_adapter/adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": alpha}))
    mark = step if marker is None else marker
    (policy.parents[1] / resume.MARKER).write_text(str(mark))
    return policy


def _nothing(shared: Path) -> None:
    """No run yet."""


def _torn(shared: Path) -> None:
    (checkpoint(shared, 10) / "optim_world_size_6_rank_3.pt").unlink()


def _unmarked(shared: Path) -> None:
    checkpoint(shared, 10)
    (checkpoint(shared, 20).parents[1] / resume.MARKER).unlink()


def _marked_nowhere(shared: Path) -> None:
    checkpoint(shared, 10, marker=30)


def _spelt_otherwise(shared: Path) -> None:
    """Copies and links that somebody made are no checkpoints: SkyRL would not count them."""
    policy = checkpoint(shared, 20)
    (policy.parents[1] / "global_step_090").mkdir()
    (policy.parents[1] / "global_step_95").symlink_to(policy.parents[0])
    (policy.parents[1] / "global_step_99").touch()


def _far_behind(shared: Path) -> None:
    checkpoint(shared, 10)
    checkpoint(shared, 40, marker=10)


def _whole(shared: Path) -> None:
    checkpoint(shared, 10)
    checkpoint(shared, 20)


Folder = Callable[[Path], Any]
TRAIN, FORWARD = "trainer.micro_train_batch_size_per_gpu", "trainer.micro_forward_batch_size_per_gpu"
KEEP = "trainer.max_ckpts_to_keep"
# rule -> what keeps it, what breaks it: settings, environment, the run's folder.
Case = tuple[tuple[str, ...], dict[str, Any], Folder]
EXAMPLES: dict[str, list[tuple[Case, Case]]] = {
    "training-step-fits-gpu": [
        (((f"{TRAIN}=4",), {}, _nothing), ((f"{TRAIN}=8",), {}, _nothing)),
        (
            ((f"{TRAIN}=2",), {"instance_type": "ml.g6e.12xlarge"}, _nothing),
            ((f"{TRAIN}=4",), {"instance_type": "ml.g6e.12xlarge"}, _nothing),
        ),
    ],
    "forward-pass-fits-gpu": [(((f"{FORWARD}=16",), {}, _nothing), ((f"{FORWARD}=32",), {}, _nothing))],
    "engine-holds-a-conversation": [
        (((f"{ENGINE}gpu_memory_utilization=0.45",), {}, _nothing), ((f"{ENGINE}gpu_memory_utilization=0.2",), {}, _nothing))
    ],
    "engine-holds-a-group": [
        (((f"{ENGINE}gpu_memory_utilization=0.35",), {}, _nothing), ((f"{ENGINE}gpu_memory_utilization=0.25",), {}, _nothing))
    ],
    "weights-meet-on-the-gpu": [
        (((), {}, _nothing), ((f"{ENGINE}gpu_memory_utilization=0.9",), {"instance_type": "ml.g5.12xlarge"}, _nothing))
    ],
    "memory-is-checked": [(((), {}, _nothing), ((), {"model": "somebody/else"}, _nothing))],
    "checkpoints-fit-file-system": [
        (((f"{KEEP}=3",), {"capacity_gib": 1200}, _nothing), ((f"{KEEP}=-1", "trainer.epochs=40"), {"capacity_gib": 1200}, _nothing))
    ],
    "checkpoints-leave-room": [
        (((f"{KEEP}=20",), {"capacity_gib": 1200}, _nothing), ((f"{KEEP}=28", "trainer.epochs=40"), {"capacity_gib": 1200}, _nothing))
    ],
    "resume-marker-agrees": [
        (((), {}, _whole), ((), {}, _unmarked)),
        (((), {}, _nothing), ((), {}, _marked_nowhere)),
        (((f"trainer.ckpt_interval={40}",), {}, _far_behind), ((), {}, _far_behind)),
        (((), {}, _spelt_otherwise), ((), {}, _marked_nowhere)),
    ],
    "resume-keeps-world-size": [(((), {}, _whole), ((), {}, lambda shared: checkpoint(shared, 10, world=4)))],
    "resume-keeps-adapter": [
        (((), {}, _whole), ((f"{LORA}rank=16",), {}, _whole)),
        (((), {}, _whole), ((), {}, lambda shared: checkpoint(shared, 10, alpha=64))),
    ],
    "resume-finds-every-rank": [(((), {}, _whole), ((), {}, _torn))],
    "resume-has-steps-left": [(((), {}, _whole), (("trainer.epochs=2",), {}, _whole))],
}


@pytest.mark.parametrize(("name", "number"), [(name, number) for name, pairs in EXAMPLES.items() for number in range(len(pairs))])
@pytest.mark.parametrize("broken", [False, True], ids=["keeps", "breaks"])
def test_rule(name: str, number: int, broken: bool, shared: Path) -> None:
    settings, changes, folder = EXAMPLES[name][number][broken]
    folder(shared)
    assert (name in names(subject(*settings, env=environment(**changes)))) is broken


def test_every_rule_has_its_examples() -> None:
    assert set(EXAMPLES) | {"free-space-is-there"} == {rule.name for rule in checks.RULES}


def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path))
    what = subject()
    need = disk.disk(what)
    assert need is not None
    for free, refused in ((need.written, False), (need.written - 1, True)):
        found = os.statvfs_result((1, 1, free, free, free, 0, 0, 0, 0, 255, 0))
        monkeypatch.setattr(disk.os, "statvfs", lambda path, found=found: found)
        assert ("free-space-is-there" in names(what)) is refused
    # What the run has written already needs no space again.
    (tmp_path / "runs/maze-1/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/maze-1/checkpoints/file").write_bytes(b"x" * 10)
    assert "free-space-is-there" not in names(what)


def test_nothing_is_looked_for_where_the_file_system_is_not_visible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYPERPOD_RL_SHARED", str(tmp_path / "absent"))
    assert names(subject()) == set()


def test_disk_arithmetic() -> None:
    what = disk.disk(subject())
    assert what is not None
    # 8,767,123,696 parameters in fp32; adapter 87,293,952: fp32 weights twice, AdamW's two moments.
    assert what.checkpoint == 4 * 8_767_123_696 + 16 * 87_293_952
    assert (what.kept, what.exports) == (4, 20)  # 3 and the one that is being written; every epoch's end
    assert disk.saves(10, 200, 20) == 20
    assert disk.saves(10, 200, 4) == 60
    assert disk.saves(10, 200, -1) == 0
    every = disk.disk(subject(f"{KEEP}=-1"))
    assert every is not None
    assert every.kept == 20
    assert "GB of 5154 GB" in what.formula(disk.capacity(subject()))


def test_disk_fix_fits() -> None:
    env = environment(capacity_gib=1200)
    (problem,) = disk.checkpoints_fit(subject(f"{KEEP}=-1", "trainer.epochs=40", env=env))
    keep = problem.fix.split("=")[1].split(",")[0]
    assert list(disk.checkpoints_fit(subject(f"{KEEP}={keep}", "trainer.epochs=40", env=env))) == []


# --- against the last attempt ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", resume.FIXED)
def test_what_may_not_change(key: str) -> None:
    now = subject()
    assert resume.compare(now.values, now) == []
    before = {**now.values, key: {"int": 999, "bool": "x"}.get(type(now.settings[key]).__name__, "something else")}
    errors = [found for found in resume.compare(before, now) if found.level == "error"]
    assert [found.problem.field for found in errors] == [key]
    assert "choose another run id" in errors[0].problem.fix


def test_the_same_number_of_gpus_in_another_shape_goes_on() -> None:
    now = subject()
    before = {**now.values, "trainer.placement.policy_num_nodes": 6, "trainer.placement.policy_num_gpus_per_node": 1}
    assert [found for found in resume.compare(before, now) if found.level == "error"] == []


def test_what_changed_is_listed() -> None:
    (found,) = resume.compare(subject().values, subject("trainer.epochs=30"))
    assert (found.level, found.problem.field) == ("warning", "trainer.epochs")
    assert "20 in the last attempt, 30 here" in found.problem.rule
    assert resume.compare({**subject().values, "trainer.seed": 42}, subject()) == []  # a default that is written out is no change
    assert resume.compare({}, Subject(environment(), {**subject().values, "trainer.resume_mode": "none"})) == []


def test_the_record_tells_the_last_attempt_where_ray_does_not(shared: Path) -> None:
    folder = shared / "runs/maze-1"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"overrides": dict(subject(f"{LORA}rank=16").values)}))
    assert "resume-keeps-what-checkpoints-hold" in names(subject())
    (folder / "record.json").write_text("{")
    assert names(subject()) == set()


def test_the_job_table_tells_the_last_attempt() -> None:
    ray = FakeRay()
    jobs.submit(connection(ray), specification())
    ray.jobs["maze-1-a1"].status = "RUNNING"
    changed = subject(f"{LORA}alpha=64")
    assert checks.last_attempt(connection(ray), changed).errors == []  # submit itself compares with what runs
    ray.end("maze-1-a1", "FAILED")
    assert [found.problem.field for found in checks.last_attempt(connection(ray), changed).errors] == [f"{LORA}alpha"]
    assert checks.last_attempt(connection(ray), subject()).findings == []


# --- the cluster ----------------------------------------------------------------------------------------------------------

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
        ("worker-imports-the-code", 'PREFLIGHT {"module": false, "mount": true}\n'),
        ("worker-imports-the-code", 'PREFLIGHT {"module": "ImportError(\'x\')", "mount": true}\n'),
        ("worker-writes-shared", 'PREFLIGHT {"module": true, "mount": false}\n'),
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
