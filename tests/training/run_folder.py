"""A run as it was seen: attempts in Ray's job table with their logs, and what a trainer leaves on the shared file system."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from config.environment import Environment
from config.load import load
from tests.training.console_text import line, step
from tests.training.fakes import FakeRay, connection
from training import jobs, run


def attempt(
    ray: FakeRay, log: str, *, run_id: str = "maze-1", status: str = "SUCCEEDED", message: str = "", env: Environment | None = None,
    settings: tuple[str, ...] = (), dirty: bool = False, minutes: int = 60,
) -> jobs.Attempt:  # fmt: skip
    """The next attempt of a run, ended after `minutes` with this log."""
    env = env or load("reference")
    specification = run.specify(env, run_id=run_id, settings=settings, code=run.Code("a" * 40, dirty=dirty))
    made = jobs.submit(connection(ray, env), specification).attempt
    job = ray.jobs[made.submission_id]
    ray.logs[made.submission_id] = log
    job.status, job.message = status, message
    job.start_time = 1_790_000_000_000 + made.number * 10_000_000
    job.end_time = job.start_time + minutes * 60_000 if status in jobs.TERMINAL else None
    return made


def log(steps: Iterable[int], *, evaluate_every: int = 4, resumed_at: int | None = None, reward_from: float = 0.0) -> str:
    """Console text of these steps; `resumed_at` is the checkpoint, which is evaluated alone before the first step."""
    rated = {"eval/all/avg_score": 0.7, "eval/all/pass_at_1": 0.95, "eval/all/environment/avg_format_success_rate": 0.99}
    text = line("Starting training loop")
    if resumed_at is not None:
        text += step(resumed_at, rated)
    for number in steps:
        metrics: dict[str, object] = {"trainer/global_step": number}
        if number > 0:
            metrics |= {"reward/avg_raw_reward": reward_from + number / 100, "timing/step": 2.0 + number / 10}
        if number % evaluate_every == 0:
            metrics |= rated
        text += line(f"noise before step {number}") + step(number, metrics)
    return text


def dump(folder: Path, number: int, solved: Iterable[int], *, mazes: int = 64, bound: float | None = 0.78125) -> None:
    """One eval dump below a run's folder, the maze of seed 3 cut by its length."""
    place = folder / "exports" / "dumped_evals" / f"global_step_{number}_evals"
    place.mkdir(parents=True, exist_ok=True)
    solved = set(solved)
    rows = [
        {"score": [0.0, 1.0 if seed in solved else 0.2], "stop_reason": "length" if seed == 3 else "stop",
         "env_extras": {"visgym_env_id": "maze_2d/easy", "seed": seed, "max_turns": 15}}
        for seed in range(mazes)
    ]  # fmt: skip
    (place / "unknown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "aggregated_results.jsonl").write_text(json.dumps({"oracle_bound": bound} if bound is not None else {}) + "\n")


def checkpoint(folder: Path, number: int, *, size: int = 1000) -> None:
    """A checkpoint, its marker, and the adapter that was exported with it."""
    place = folder / "checkpoints" / f"global_step_{number}"
    (place / "policy").mkdir(parents=True, exist_ok=True)
    (place / "policy" / "model.pt").write_bytes(b"x" * size)
    (folder / "checkpoints" / "latest_ckpt_global_step.txt").write_text(str(number))
    export = folder / "exports" / f"global_step_{number}" / "policy"
    export.mkdir(parents=True, exist_ok=True)
    (export / "adapter_config.json").write_text("{}")
