"""The training series: what a scrape reads is what the run's log and record say, under the names that the dashboards use."""

from __future__ import annotations

import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cli import main
from config import series
from config.load import load
from config.problems import Refused
from tests.training import run_folder
from tests.training.fixtures import ray, shared
from tests.training.scripted import DONE, Scripted, failed, start
from training import exporter as exporting
from training import follow, solve_rate
from training.exporter import Exporter
from training.series import step_parts
from training.supervise import Decision

__all__ = ["ray", "shared"]
METRICS = {
    "trainer/tokens_per_second_per_gpu": 5700.0, "timing/generate": 30.0, "timing/train_critic_and_policy": 50.0,
    "timing/policy_train": 40.0, "timing/fwd_logprobs_values_reward": 5.0, "timing/sync_weights": 4.0,
}  # fmt: skip


def seen(step: int = 7, **given: Any) -> follow.StepSeen:
    rate = solve_rate.SolveRate(0.5, 32, 64, "eval dump", 0.9, solve_rate.Bound(0.78125, "eval dump"))
    return follow.StepSeen("maze-1", 2, step, given.get("rate", rate), 0.25, 100.0, METRICS)


def read(exporter: Exporter) -> dict[tuple[str, ...], float]:
    """(name, further labels in their order) -> value."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(exporter.registry).decode()):
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            assert sample.labels.pop("environment") == "reference"
            assert sample.labels.pop("run_id") == "maze-1"
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def test_every_series_and_its_value(shared: Path) -> None:
    run_folder.checkpoint(shared, 6)
    marker = shared / "checkpoints/latest_ckpt_global_step.txt"
    os.utime(marker, (1000.0, 1000.0))
    clock = [1060.0]
    exporter = Exporter(load("reference"), "maze-1", total_steps=17, now=lambda: clock[0])
    exporter.observe(Decision("failed", "attempt 1 failed", 1))
    exporter.observe(Decision("submitted", "attempt 2", 2))
    exporter.observe(seen())
    got = read(exporter)
    low, high = solve_rate.wilson(32, 64)
    assert got == {
        ("hyperpod_rl_step",): 7, ("hyperpod_rl_solve_rate_ratio", "eval dump"): 0.5,
        ("hyperpod_rl_solve_rate_low_ratio", "eval dump"): low,
        ("hyperpod_rl_solve_rate_high_ratio", "eval dump"): high, ("hyperpod_rl_oracle_bound_ratio",): 0.78125,
        ("hyperpod_rl_evaluated_step",): 7, ("hyperpod_rl_reward",): 0.25, ("hyperpod_rl_step_seconds",): 100.0,
        ("hyperpod_rl_step_part_seconds", "rollout"): 30.0, ("hyperpod_rl_step_part_seconds", "training"): 55.0,
        ("hyperpod_rl_step_part_seconds", "sync"): 4.0, ("hyperpod_rl_step_part_seconds", "other"): 11.0,
        ("hyperpod_rl_tokens_per_second_per_gpu",): 5700.0, ("hyperpod_rl_attempt",): 2, ("hyperpod_rl_running",): 1,
        ("hyperpod_rl_attempts_ended_total", "failed"): 1, ("hyperpod_rl_checkpoint_step",): 6,
        ("hyperpod_rl_checkpoint_age_seconds",): 60.0, ("hyperpod_rl_remaining_seconds",): 1000.0,
    }  # fmt: skip
    assert {name[0] for name in got} == {each.name for each in series.SERIES}
    clock[0] = 1300.0  # nothing happened but time
    assert read(exporter)[("hyperpod_rl_checkpoint_age_seconds",)] == 300.0


def test_what_is_not_known_is_not_published(shared: Path) -> None:
    exporter = Exporter(load("reference"), "maze-1")
    exporter.observe(follow.StepSeen("maze-1", 1, 0, None, None, None, {}))
    exporter.observe(Decision("lost", "attempt 1 is lost", 1))
    assert read(exporter) == {
        ("hyperpod_rl_step",): 0, ("hyperpod_rl_running",): 0, ("hyperpod_rl_attempt",): 1, ("hyperpod_rl_attempts_ended_total", "lost"): 1,
    }  # fmt: skip


def test_parts_of_a_step_do_not_overlap() -> None:
    parts = step_parts(METRICS, 100.0)
    assert sum(parts.values()) == 100.0
    assert step_parts({"timing/policy_train": 40.0}, None) == {series.Part.TRAINING: 40.0}
    assert step_parts({"timing/other": 1.0}, 5.0) == {}


def test_supervise_answers_a_scrape_and_lets_go_of_the_port(
    ray: Scripted, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(ray, failed(3), DONE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scraped: list[str] = []
    observe = exporting.Exporter.observe

    def scraping(self: Exporter, event: object) -> None:
        observe(self, event)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{series.METRICS_PATH}", timeout=120) as reply:
            scraped.append(reply.read().decode())

    monkeypatch.setattr(exporting.Exporter, "observe", scraping)
    assert main.run(["supervise", "maze-1", "--metrics-port", str(port)]) == 0
    assert 'hyperpod_rl_attempts_ended_total{environment="reference",outcome="failed",run_id="maze-1"} 1.0' in scraped[-1]
    assert 'hyperpod_rl_attempt{environment="reference",run_id="maze-1"} 2.0' in scraped[-1]
    assert 'outcome="succeeded",run_id="maze-1"} 1.0' in scraped[-1]
    assert 'hyperpod_rl_running{environment="reference",run_id="maze-1"} 0.0' in scraped[-1]
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Refused, match="choose another"):
            Exporter(load("reference"), "maze-1").serve(taken.getsockname()[1])
