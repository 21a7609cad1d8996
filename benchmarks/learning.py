"""Does the stand-in trainer learn? `python -m benchmarks learning`.

For every seed: a supervised start of its own, then GRPO in this process with the demo's settings, then the same run with
its rewards shuffled. Prints the solve rate on the 64 held-out mazes with its Wilson 95 % interval beside the oracle bound,
and fails (exit code 1) when a start is not below half the bound, a trained policy is below 90 % of it, or a shuffled run
rises above its start.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from config.load import load
from training.solve_rate import wilson

SEEDS = 5
QUIET = ("trainer.eval_interval=-1", "trainer.ckpt_interval=-1", "trainer.hf_save_interval=-1", "trainer.eval_before_train=false")

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy is imported


@dataclass(frozen=True)
class Outcome:
    """Mazes solved of the held-out ones by the supervised start, after training, and after training on shuffled rewards."""

    seed: int
    start: int
    trained: int
    shuffled: int
    seconds: float


def measure(seed: int) -> Outcome:
    """Train with one seed, once with the rewards and once with shuffled ones."""
    from local.trainer.pretrain import base_model
    from local.trainer.rollout import in_process
    from local.trainer.settings import settings
    from local.trainer.train import Run
    from training.maze import HELD_OUT
    from training.run import specify

    # The demo's own settings; evaluations and checkpoints in between change nothing in the result.
    values = specify(load("local"), run_id="bench", settings=QUIET).overrides
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


def run() -> list[str]:
    """Print every seed's solve rates with their intervals; a sentence for each requirement that is missed."""
    from training.maze import HELD_OUT, maze, oracle_bound

    bound, tried = oracle_bound((maze(seed) for seed in HELD_OUT), max_turns=15), len(HELD_OUT)
    print(f"oracle bound: {bound}/{tried} = {bound / tried:.1%} within 15 turns")
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPERPOD_RL_SHARED"] = str(Path(folder))
        for seed in range(SEEDS):
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
    return failures
