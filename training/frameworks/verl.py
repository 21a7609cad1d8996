"""verl's PPO trainer (`python -m verl.trainer.main_ppo`): Hydra words, one log line a step, `trainer.resume_mode=auto`.

Read in the source of https://github.com/volcengine/verl (verl/trainer/ppo/ray_trainer.py, verl/trainer/config/ppo_trainer.yaml,
verl/utils/tracking.py) and not run with it here: it needs GPUs. verl goes on from `latest_checkpointed_iteration.txt` by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from config.environment import Environment
from config.problems import Problem
from training import skyrl
from training.console import Metric, Step
from training.frameworks.framework import Command, Framework
from training.frameworks.lines import LineParser
from training.layout import RunFolder
from training.skyrl_keys import Value

MARKER: Final = "checkpoints/latest_checkpointed_iteration.txt"
_ROLLOUT: Final = "actor_rollout_ref.rollout."
_KEY: Final = re.compile(r"^[+~]{0,2}[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*$")
# verl/utils/tracking.py, concat_dict_to_str: `step:3 - actor/loss:0.01 - timing_s/step:12.5`, behind `(TaskRunner pid=1)`.
_STEP: Final = re.compile(r"(?:^|\s)step:(\d{1,12})(?= - |\s*$)")
_PAIR: Final = re.compile(r" - ([\w@/.+-]{1,200}):([^\s]{1,100})(?= - |\s*$)")


def configure(env: Environment, run_id: str, folder: RunFolder, settings: Sequence[str]) -> tuple[dict[str, Value], list[Problem]]:
    """`overrides` of the environment, `--set` words over them, and what follows from environment and run id."""
    found: list[Problem] = []
    values: dict[str, Value] = {key: list(value) if isinstance(value, tuple) else value for key, value in env.training.overrides.items()}
    for word in settings:
        name, equals, text = word.partition("=")
        if not equals or not _KEY.match(name):
            found.append(Problem(f"--set {name}", text, "this is no key=value word of Hydra", "for example trainer.total_epochs=5"))
        else:
            values[name] = _value(text)
    derived: dict[str, Value] = {
        "trainer.default_local_dir": folder.checkpoints, "trainer.experiment_name": run_id, "trainer.resume_mode": "auto",
        "trainer.nnodes": env.workers.count, "trainer.n_gpus_per_node": env.workers.instance.gpus,
        "actor_rollout_ref.model.path": env.training.base_model,
    }  # fmt: skip
    for key, due in derived.items():
        if key in values and values[key] != due:
            found.append(Problem(key, str(values[key]), f"it follows from the environment and the run id and is {due}", "leave it out"))
    return values | derived, found


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def problems(env: Environment, values: Mapping[str, Value]) -> list[Problem]:
    """What `RayPPOTrainer._validate_config` asserts after Ray has started, and sizes that cannot be."""
    found: list[Problem] = []
    sizes = ("data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size", f"{_ROLLOUT}n",
             f"{_ROLLOUT}tensor_model_parallel_size", "trainer.total_epochs", "trainer.save_freq")  # fmt: skip
    for key in sizes:
        value = values.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value == 0 or abs(value) > 10_000_000):
            found.append(Problem(key, str(value), "this is a whole number other than 0, at most 10000000", "for example 8"))
    if found:
        return found
    batch, mini, samples = (int(str(values.get(key, default))) for key, default in ((sizes[0], 1024), (sizes[1], 256), (sizes[2], 1)))
    tensor = int(str(values.get(sizes[3], 2)))
    if (batch * samples) % env.training_gpus:
        rule = f"{batch} prompts x {samples} samples do not spread over {env.training_gpus} GPUs"
        found.append(Problem(sizes[0], str(batch), rule, "choose a multiple"))
    if mini > batch:
        found.append(Problem(sizes[1], str(mini), f"it is above data.train_batch_size={batch}", "lower it"))
    if tensor < 1 or env.workers.instance.gpus % tensor:
        found.append(
            Problem(sizes[3], str(tensor), f"it does not divide the {env.workers.instance.gpus} GPUs of a node", "choose a divisor")
        )
    if values.get("trainer.save_freq", -1) == -1:
        found.append(Problem("trainer.save_freq", "-1", "no checkpoint is ever written, so a fault costs the whole run", "set it to 20"))
    return found


def command(env: Environment, folder: RunFolder, values: Mapping[str, Value]) -> Command:
    """Hydra's words: YAML values, which OmegaConf reads as SkyRL's."""
    return Command(skyrl.render(dict(values)))


def parser(env: Environment) -> LineParser:
    """Steps of the console logger."""

    def read(line: str) -> Step | None:
        match = _STEP.search(line)
        if match is None:
            return None
        metrics: dict[str, Metric] = {}
        for name, text in _PAIR.findall(line[match.end() :]):
            # numpy 2 prints its scalars as np.float64(0.5)
            plain = re.sub(r"^np\.\w+\((.*)\)$", r"\1", text)
            value = _value(plain)
            metrics[name] = value if isinstance(value, (int, float)) and not isinstance(value, bool) else plain
        return Step(int(match[1]), metrics)

    return LineParser(read, marks=(b"step:",))


FRAMEWORK: Final = Framework(
    "verl",
    configure,
    problems,
    command,
    parser,
    reward=("critic/rewards/mean", "critic/score/mean"),
    seconds=("timing_s/step",),
    marker=MARKER,
)
