"""The training series for Prometheus: their names, labels and units. Who publishes them and who draws them read them here.

Every series is a gauge of the newest step of one run, but for the counter of attempts. Labels of each: `environment`, `run_id`;
further ones are named beside the series. A series that is not known (no evaluation yet, no checkpoint) is absent, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

COMMON_LABELS: Final = ("environment", "run_id")
# Port and path at which the supervisor in the cluster answers a scrape.
METRICS_PORT: Final = 9108
METRICS_PATH: Final = "/metrics"


class Part(StrEnum):
    """Values of the label `part`: where the time of a step goes."""

    ROLLOUT = "rollout"
    TRAINING = "training"
    SYNC = "sync"
    OTHER = "other"


@dataclass(frozen=True)
class Series:
    """One series: Prometheus name (the unit is its last word), type, further labels, one sentence."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


STEP: Final = Series("hyperpod_rl_step", "gauge", "Newest step that the trainer has logged.")
SOLVE_RATE: Final = Series(
    "hyperpod_rl_solve_rate_ratio", "gauge", "Mazes really solved / mazes tried at the newest evaluation.", ("source",)
)
SOLVE_RATE_LOW: Final = Series("hyperpod_rl_solve_rate_low_ratio", "gauge", "Lower end of its Wilson 95 % interval.", ("source",))
SOLVE_RATE_HIGH: Final = Series("hyperpod_rl_solve_rate_high_ratio", "gauge", "Upper end of its Wilson 95 % interval.", ("source",))
ORACLE_BOUND: Final = Series("hyperpod_rl_oracle_bound_ratio", "gauge", "Best solve rate that any policy can reach within max_turns.")
EVALUATED_STEP: Final = Series("hyperpod_rl_evaluated_step", "gauge", "Step of the newest evaluation.")
REWARD: Final = Series("hyperpod_rl_reward", "gauge", "Mean reward of the newest step's rollouts.")
STEP_SECONDS: Final = Series("hyperpod_rl_step_seconds", "gauge", "Time of the newest step, whole.")
PART_SECONDS: Final = Series("hyperpod_rl_step_part_seconds", "gauge", "Time of the newest step by part.", ("part",))
TOKENS_PER_SECOND: Final = Series(
    "hyperpod_rl_tokens_per_second_per_gpu", "gauge", "Tokens trained a second and GPU, as the trainer logs it."
)
ATTEMPT: Final = Series("hyperpod_rl_attempt", "gauge", "Number of the attempt that is watched.")
ATTEMPTS_ENDED: Final = Series(
    "hyperpod_rl_attempts_ended_total", "counter", "Attempts that ended while watched, by what ended them.", ("outcome",)
)
RUNNING: Final = Series("hyperpod_rl_running", "gauge", "1 while an attempt is watched, 0 while the cluster is waited for.")
CHECKPOINT_STEP: Final = Series("hyperpod_rl_checkpoint_step", "gauge", "Step that a new attempt would go on from.")
CHECKPOINT_AGE: Final = Series("hyperpod_rl_checkpoint_age_seconds", "gauge", "Time since that checkpoint was written.")
ETA_SECONDS: Final = Series("hyperpod_rl_remaining_seconds", "gauge", "Estimated time to the last step.")

SERIES: Final = (
    STEP, SOLVE_RATE, SOLVE_RATE_LOW, SOLVE_RATE_HIGH, ORACLE_BOUND, EVALUATED_STEP, REWARD, STEP_SECONDS, PART_SECONDS, TOKENS_PER_SECOND,
    ATTEMPT, ATTEMPTS_ENDED, RUNNING, CHECKPOINT_STEP, CHECKPOINT_AGE, ETA_SECONDS,
)  # fmt: skip
