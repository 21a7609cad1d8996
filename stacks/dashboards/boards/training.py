"""Training: what the run has reached, where its time goes, and whether it would survive a fault now."""

from __future__ import annotations

from config import series
from config.series import Series
from stacks.dashboards.panel import Board, Panel, Query, Row, of_label

RUN = 'environment=~"$environment", run_id=~"$run_id"'


def of(one: Series, more: str = "") -> str:
    """The series of the chosen runs."""
    return f"{one.name}{{{RUN}{', ' + more if more else ''}}}"


BOARD = Board(
    uid="hyperpod-rl-training",
    title="Training",
    description="Solve rate, reward and step time of the runs, as the supervisor publishes them. Solve rate is mazes really solved / "
    "mazes tried; never the share of positive rewards.",
    variables=(
        of_label("environment", "Environment", series.STEP.name),
        of_label("run_id", "Run", series.STEP.name, within='environment=~"$environment"'),
    ),
    rows=(
        Row("Now", (
            Panel("Running", (Query(of(series.RUNNING), "{{run_id}}"),), kind="stat", width=4, red_below=1),
            Panel("Step", (Query(of(series.STEP), "{{run_id}}"),), kind="stat", width=4),
            Panel("Attempt", (Query(of(series.ATTEMPT), "{{run_id}}"),), kind="stat", width=4, red_above=3),
            Panel("Solve rate", (Query(of(series.SOLVE_RATE), "{{run_id}} ({{source}})"),), "percentunit", "stat", width=4, maximum=1),
            Panel("Age of the checkpoint", (Query(of(series.CHECKPOINT_AGE), "{{run_id}}"),), "s", "stat", width=4, red_above=3600),
            Panel("Time left", (Query(of(series.ETA_SECONDS), "{{run_id}}"),), "s", "stat", width=4),
        )),
        Row("What it has learned", (
            Panel(
                "Solve rate, its 95 % interval, and the oracle bound",
                (
                    Query(of(series.SOLVE_RATE), "solve rate {{run_id}} ({{source}})"),
                    Query(of(series.SOLVE_RATE_LOW), "low {{run_id}}"),
                    Query(of(series.SOLVE_RATE_HIGH), "high {{run_id}}"),
                    Query(of(series.ORACLE_BOUND), "oracle bound {{run_id}}"),
                ),
                "percentunit", width=12, maximum=1,
                description="The oracle bound is the best solve rate that any policy can reach within max_turns.",
            ),
            Panel("Mean reward of the rollouts", (Query(of(series.REWARD), "{{run_id}}"),), width=6, minimum=None),
            Panel("Step, and step of the newest evaluation", (
                Query(of(series.STEP), "step {{run_id}}"), Query(of(series.EVALUATED_STEP), "evaluated {{run_id}}"),
            ), width=6),
        )),
        Row("Where the time goes", (
            Panel("Step time by part", (Query(of(series.PART_SECONDS), "{{part}} {{run_id}}"),), "s", width=8, stacked=True),
            Panel("Step time", (Query(of(series.STEP_SECONDS), "{{run_id}}"),), "s", width=8),
            Panel("Tokens trained a second and GPU", (Query(of(series.TOKENS_PER_SECOND), "{{run_id}}"),), width=8),
        )),
        Row("Whether it comes back", (
            Panel("Step of the newest checkpoint", (Query(of(series.CHECKPOINT_STEP), "{{run_id}}"),), width=8),
            Panel("Age of the newest checkpoint", (Query(of(series.CHECKPOINT_AGE), "{{run_id}}"),), "s", width=8),
            Panel("Attempts that ended, by what ended them", (
                Query(f"sum by (run_id, outcome) ({of(series.ATTEMPTS_ENDED)})", "{{outcome}} {{run_id}}"),
            ), width=8),
        )),
    ),
)  # fmt: skip
