"""SkyRL's console output as it was seen: colors, Ray's prefix, one dictionary over many lines."""

from __future__ import annotations

import pprint
from collections.abc import Mapping

ESC = "\x1b"


def line(
    message: str, *, worker: str = "visgym_entrypoint pid=14915", module: str = "skyrl.train.utils.tracking", log: str = "log:189"
) -> str:
    """One message through loguru and Ray's prefix; every line of it gets the prefix."""
    function, _, number = log.partition(":")
    place = ":".join(f"{ESC}[36m{part}{ESC}[0m" for part in (module, function, number))
    head = f"{ESC}[32m2026-11-29 14:48:04.655{ESC}[0m | {ESC}[1m{ESC}[32mINFO    {ESC}[0m | {place} - {ESC}[1m{ESC}[32m"
    prefix = f"{ESC}[36m({worker}){ESC}[0m " if worker else ""
    return "".join(f"{prefix}{part}\n" for part in f"{head}{message}{ESC}[0m".split("\n"))


def step(number: int, metrics: Mapping[str, object], *, worker: str = "visgym_entrypoint pid=14915") -> str:
    """One step as `Tracking.log` writes it: floats as strings of 4 decimals, keys sorted."""
    shown = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in metrics.items()}
    return line(f"Step {number}: \n{pprint.pformat(shown)}", worker=worker)


def training_log(steps: int, *, evaluate_every: int = 2) -> str:
    """A small training from step 0."""
    text = "Running entrypoint for job x-a1: python train.py\n" + line(
        "Starting training loop", module="skyrl.train.trainer", log="train:201"
    )
    for number in range(steps):
        metrics: dict[str, object] = {"reward/avg_raw_reward": number / steps, "timing/step": 2.5, "trainer/global_step": number}
        if number % evaluate_every == 0:
            metrics |= {"eval/all/avg_score": 0.7, "eval/all/pass_at_1": 0.95, "eval/all/environment/avg_format_success_rate": 0.99}
        text += line(f"engine is busy with batch {number}", worker="vllm pid=77, ip=10.1.0.9") + step(number, metrics)
    return text
