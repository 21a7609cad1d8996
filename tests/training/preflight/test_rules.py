"""Each rule of preflight beyond SkyRL's configuration: an example that breaks it and one that keeps it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.environment import Environment
from config.load import load
from tests.training.fakes import FakeRay, connection
from training import jobs
from training.preflight import checks, disk, resume
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
    "engine-leaves-the-rest": [
        (((f"{ENGINE}gpu_memory_utilization=0.93",), {}, _nothing), ((f"{ENGINE}gpu_memory_utilization=0.95",), {}, _nothing)),
        (((f"{ENGINE}gpu_memory_utilization=0.88",), {}, _nothing), ((f"{ENGINE}gpu_memory_utilization=1.0",), {}, _nothing)),
    ],
    "engine-leaves-a-margin": [
        (((f"{ENGINE}gpu_memory_utilization=0.88",), {}, _nothing), ((f"{ENGINE}gpu_memory_utilization=0.9",), {}, _nothing))
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
