"""Does the stand-in trainer learn? `python -m benchmarks.learning [--seeds 5]`.

For every seed: a supervised start of its own, then GRPO in this process with the demo's settings, then the same run with
its rewards shuffled. Prints the solve rate on the 64 held-out mazes with its Wilson 95 % interval beside the oracle bound,
and fails (exit code 1) when a start is not below half the bound, a trained policy is below 90 % of it, or a shuffled run
rises above its start.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy is imported

DEMO = [
    "data.train_data=[/shared/datasets/maze/train.parquet]",
    "data.val_data=[/shared/datasets/maze/eval.parquet]",
    "environment.env_class=visgym",
    "trainer.policy.model.path=/shared/models/stand-in",
    "trainer.policy.model.lora.rank=8",
    "trainer.policy.model.lora.alpha=8",
    "trainer.policy.model.lora.exclude_modules=.*visual.*",
    "trainer.policy.optimizer_config.lr=3.0e-4",
    "trainer.placement.policy_num_nodes=1",
    "trainer.placement.policy_num_gpus_per_node=2",
    "generator.inference_engine.num_engines=2",
    "trainer.epochs=8",
    "trainer.train_batch_size=24",
    "trainer.policy_mini_batch_size=12",
    "trainer.remove_microbatch_padding=false",
    "trainer.algorithm.use_kl_loss=false",
    "trainer.eval_interval=-1",
    "trainer.ckpt_interval=-1",
    "trainer.logger=console",
    "trainer.ckpt_path=/shared/runs/bench/ckpts",
    "trainer.export_path=/shared/runs/bench/exports",
    "trainer.policy.model.lora.lora_sync_path=/tmp/unused",
    "generator.n_samples_per_prompt=8",
    "generator.sampling_params.temperature=1.0",
    "generator.max_turns=15",
    "generator.max_input_length=8192",
    "trainer.max_prompt_length=2048",
    "generator.vision_language_generator=true",
]


@dataclass(frozen=True)
class Outcome:
    """Mazes solved of the held-out ones by the supervised start, after training, and after training on shuffled rewards."""

    seed: int
    start: int
    trained: int
    shuffled: int
    seconds: float


def wilson(solved: int, tried: int, *, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a share, 95 % by default (https://doi.org/10.1080/01621459.1927.10502953)."""
    share, weight = solved / tried, z * z / tried
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / tried + weight / (4 * tried)) / (1 + weight)
    return middle - half, middle + half


def measure(seed: int) -> Outcome:
    """Train with one seed, once with the rewards and once with shuffled ones."""
    from local.trainer.maze import HELD_OUT
    from local.trainer.pretrain import base_model
    from local.trainer.rollout import in_process
    from local.trainer.settings import settings
    from local.trainer.train import Run
    from training.skyrl import parse

    values, problems = parse(DEMO)
    assert not problems, problems
    started = time.perf_counter()
    solved = []
    for shuffle in (False, True):
        chosen = settings(values)
        run = Run(
            replace(
                chosen,
                seed=seed,
                base_seed=seed,
                base_path=chosen.base_path.with_name(f"stand-in-{seed}"),
                shuffle_rewards=shuffle,
                dump_evaluations=False,
            ),
            in_process,
            log=lambda message: None,
            log_step=lambda step, metrics: None,
        )
        trained = run.train()
        base, _ = base_model(run.settings.base_path, seed=seed)
        if not shuffle:
            untrained = run.start(base)  # the adapter that training starts from: no checkpoint was written
            solved.append(run.evaluate(base, untrained))
            seconds = time.perf_counter() - started
        solved.append(run.evaluate(base, trained))
    start, after, control = (round(share * len(HELD_OUT)) for share in solved)
    return Outcome(seed, start, after, control, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default 5), for example --seeds 2")
    seeds = parser.parse_args(arguments).seeds
    from local.trainer.maze import HELD_OUT, maze, oracle_bound

    bound, tried = oracle_bound((maze(seed) for seed in HELD_OUT), max_turns=15), len(HELD_OUT)
    print(f"oracle bound: {bound}/{tried} = {bound / tried:.1%} within 15 turns")
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPERPOD_RL_SHARED"] = str(Path(folder))
        for seed in range(seeds):
            found = measure(seed)
            print(f"seed {seed} ({found.seconds:.0f} s)", flush=True)
            for name, solved in (("start", found.start), ("trained", found.trained), ("shuffled", found.shuffled)):
                low, high = wilson(solved, tried)
                share = f"{solved}/{tried} = {solved / tried:.1%}"
                print(f"  {name:9} {share:16} [{low:.1%}, {high:.1%}]  {solved / bound:.0%} of the bound", flush=True)
            if found.start >= 0.5 * bound:
                failures.append(f"seed {seed}: the start solves {found.start}, not below half of {bound}")
            if found.trained < 0.9 * bound:
                failures.append(f"seed {seed}: the trained policy solves {found.trained}, below 90 % of {bound}")
            if found.shuffled > wilson(found.start, tried)[1] * tried:
                failures.append(f"seed {seed}: shuffled rewards raise {found.start} to {found.shuffled}")
    print("\n".join(failures) or "learning: as required")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
