"""Runs with exports on a shared file system of a test: small adapters with the names that PEFT gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from config import names
from training import record
from training.evaluations import Maze
from training.record import Evaluation, Model, Record

RUN = "demo"
BASE = "/shared/models/maze-standin"
MODULES = ("encoder", "head")
BASELINE, GOOD = set(range(19)), set(range(51))
"""Held-out mazes that are solved before training, and those that can be solved in 15 turns."""


def adapter(rank: int = 8, seed: int = 0) -> dict[str, Any]:
    """Weights of an adapter whose both halves are not zero."""
    rng = np.random.default_rng(seed)
    found = {}
    for module in MODULES:
        found[f"base_model.model.{module}.lora_A.weight"] = rng.standard_normal((rank, 6)).astype(np.float32)
        found[f"base_model.model.{module}.lora_B.weight"] = rng.standard_normal((4, rank)).astype(np.float32)
    return found


def config(**changes: Any) -> dict[str, Any]:
    made = {
        "base_model_name_or_path": BASE, "bias": "none", "lora_alpha": 8, "peft_type": "LORA", "r": 8, "target_modules": list(MODULES),
        "task_type": "CAUSAL_LM",
    }  # fmt: skip
    return {key: value for key, value in (made | changes).items() if value != "absent"}


def write_export(
    shared: Path, step: int, *, run: str = RUN, weights: Mapping[str, Any] | bytes | None = None, settings: Mapping[str, Any] | None = None,
    stand_in: bool = True,
) -> Path:  # fmt: skip
    """An export as SkyRL leaves it, by default whole and sound. Returns its folder."""
    folder = shared / "runs" / run / "exports" / f"global_step_{step}" / "policy"
    folder.mkdir(parents=True)
    content = weights if isinstance(weights, bytes) else save(dict(adapter(seed=step) if weights is None else weights))
    (folder / names.ADAPTER_WEIGHTS).write_bytes(content)
    (folder / names.ADAPTER_CONFIG).write_text(json.dumps(config() if settings is None else dict(settings)))
    mark = {"stand_in": "not a language model"} if stand_in else {}
    (folder / "config.json").write_text(json.dumps({"model_type": "x", **mark}))
    return folder


def evaluation(step: int, solved: set[int], *, mazes: int = 64, format_rate: float = 1.0) -> Evaluation:
    """An evaluation that was read from an eval dump."""
    results = tuple(Maze(seed, seed, seed in solved, "stop", format_rate) for seed in range(mazes))
    return Evaluation(
        step=step, attempt=1, rate=len(solved) / mazes, low=0, high=1, solved=len(solved), mazes=mazes, source="eval dump",
        oracle_bound=51 / 64, bound_source="eval dump", skyrl_pass_at_1=1.0, results=results,
    )  # fmt: skip


def make_record(run: str = RUN, *, evaluations: tuple[Evaluation, ...] = (), **changes: Any) -> Record:
    overrides = {"trainer.policy.model.lora.rank": 8, "trainer.policy.model.lora.alpha": 8, "generator.max_turns": 15}
    return Record(
        run_id=run, environment="local", status="SUCCEEDED", model=Model(path=BASE, revision="main"), overrides=overrides,
        evaluations=evaluations, **changes,
    )  # fmt: skip


def record_of(candidate_solves: set[int], *, format_rate: float = 1.0, baseline: set[int] = BASELINE) -> Record:
    """A run whose baseline and step 10 were evaluated."""
    return make_record(evaluations=(evaluation(0, baseline), evaluation(10, candidate_solves, format_rate=format_rate)))


def write_record(shared: Path, made: Record) -> None:
    record.write(shared / "runs" / made.run_id, made)
