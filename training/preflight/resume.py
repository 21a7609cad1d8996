"""Whether a run can go on from its last checkpoint: what changed since its last attempt, and what may not change.

SkyRL does not compare: it loads weights, optimizer and data position into whatever the new configuration makes of them, and the
number of GPUs is in the files' names (`model_world_size_W_rank_R.pt`, skyrl/backends/skyrl_train/distributed/fsdp_strategy.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from config.problems import Problem, Refused
from training import layout
from training.checkpoints import MARKER, marked, step_folders
from training.preflight.findings import Finding, Rule, Subject
from training.skyrl_keys import Value
from training.skyrl_settings import PLACE, with_defaults

_LORA: Final = "trainer.policy.model.lora."
# What a checkpoint depends on, and why.
FIXED: Final[Mapping[str, str]] = {
    "trainer.policy.model.path": "the checkpoint holds another model's weights",
    _LORA + "rank": "the checkpoint's adapter has another shape",
    _LORA + "alpha": "the same adapter would count for more or less",
    _LORA + "target_modules": "the checkpoint's adapter sits on other layers",
    _LORA + "exclude_modules": "the checkpoint's adapter sits on other layers",
    "trainer.strategy": "the checkpoint has another format",
    "trainer.bf16": "weights and optimizer were saved in another precision",
    f"{PLACE}policy_num_nodes": "the number of GPUs is in the names of the checkpoint's files",
    f"{PLACE}policy_num_gpus_per_node": "the number of GPUs is in the names of the checkpoint's files",
    "environment.env_class": "the policy would go on in another environment",
}
# Their product is the number of GPUs; how it is split over nodes may change.
WORLD: Final = (f"{PLACE}policy_num_nodes", f"{PLACE}policy_num_gpus_per_node")
# What SkyRL goes on with, in a way that may surprise.
SURPRISING: Final[Mapping[str, str]] = {
    "data.train_data": "the position in the old data is taken over to the new",
    "trainer.train_batch_size": "the position in the data counts batches of the old size",
    "trainer.epochs": "only the remaining steps are trained",
    "trainer.seed": "the order of the data follows the saved generator, not the new seed",
    "trainer.policy.optimizer_config.lr": "the saved schedule goes on with the rate that it holds",
}
_NEW_RUN: Final = "give the old value, or choose another run id for a new run"


def resumes(subject: Subject) -> bool:
    """Whether this configuration looks for a checkpoint."""
    return subject.settings["trainer.resume_mode"] in ("latest", "from_path")


def compare(before: Mapping[str, Value], subject: Subject) -> list[Finding]:
    """What differs from the last attempt, defaults filled in: an error for what may not change, a warning for the rest."""
    if not resumes(subject):
        return []
    old, new = with_defaults(before), subject.settings.full
    same_world = _product(old, WORLD) == _product(new, WORLD)
    found = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was == now or (key in WORLD and same_world):
            continue
        values = f"{json.dumps(was)} in the last attempt, {json.dumps(now)} here"
        if key in FIXED:
            problem = Problem(key, json.dumps(now), f"it may not change in a run ({values}): {FIXED[key]}", _NEW_RUN)
            found.append(Finding("resume-keeps-what-checkpoints-hold", "error", problem))
        else:
            surprise = f": {SURPRISING[key]}" if key in SURPRISING else ""
            found.append(Finding("resume-changes", "warning", Problem(key, json.dumps(now), f"it changed ({values}){surprise}")))
    return found


def _product(values: Mapping[str, Value], keys: tuple[str, ...]) -> int:
    total = 1
    for key in keys:
        value = values.get(key)
        total *= value if isinstance(value, int) else 1
    return total


def folder(subject: Subject) -> Path | None:
    """The run's checkpoints, if they are visible from here."""
    path = layout.here(subject.environment, str(subject.settings["trainer.ckpt_path"]))
    return path if path is not None and path.is_dir() and resumes(subject) else None


def marker_agrees(subject: Subject) -> Iterator[Problem]:
    """SkyRL refuses a marker more than `ckpt_interval` behind the newest folder, and without one it starts at step 0, silently."""
    path = folder(subject)
    if path is None or subject.settings["trainer.resume_mode"] != "latest":
        return
    steps, mark = [step for step, _ in step_folders(path)], marked(path)
    interval = int(subject.settings["trainer.ckpt_interval"])
    if mark is None:
        if len(steps) > 1:
            yield Problem(
                str(path / MARKER), "", f"it is missing or unreadable beside {len(steps)} checkpoints, so training would start at step 0",
                f"write the step to go on from into it, for example {steps[-1]}",
            )  # fmt: skip
    elif mark not in steps:
        yield Problem(str(path / MARKER), str(mark), "there is no such checkpoint", f"there are {', '.join(map(str, steps)) or 'none'}")
    elif steps[-1] - mark > interval > 0:
        yield Problem(
            str(path / MARKER), str(mark), f"the newest checkpoint is global_step_{steps[-1]}, more than ckpt_interval={interval} ahead",
            "remove the newer folders, or write the step to go on from into it",
        )  # fmt: skip


def begins_with(subject: Subject) -> list[Finding]:
    """What may not differ from the run whose checkpoint is this run's beginning, as far as its record is visible from here."""
    before = last_overrides(subject, run_id=subject.origin.run_id) if subject.origin is not None else None
    return [finding for finding in compare(before, subject) if finding.level == "error"] if before is not None else []


def folder_of(subject: Subject, run_id: str) -> Path | None:
    """The checkpoints of a run, if they are visible from here."""
    path = layout.here(subject.environment, layout.run_folder(subject.environment, run_id).checkpoints)
    return path if path is not None and path.is_dir() else None


def _newest(subject: Subject) -> Path | None:
    path = folder(subject)
    mark = marked(path) if path is not None else None
    if mark is None and subject.origin is not None:  # nothing of its own yet
        path, mark = folder_of(subject, subject.origin.run_id), subject.origin.step
    return path / f"global_step_{mark}" / "policy" if path is not None and mark is not None else None


def world_size_stays(subject: Subject) -> Iterator[Problem]:
    """A checkpoint of W GPUs is read by W GPUs only."""
    policy = _newest(subject)
    if policy is None or not policy.is_dir():
        return
    sizes = {int(match[1]) for file in policy.iterdir() if (match := re.fullmatch(r"model_world_size_(\d+)_rank_\d+\.pt", file.name))}
    have = subject.settings.policy_gpus
    if sizes and have not in sizes:
        yield Problem(
            f"{PLACE}policy_num_nodes", str(subject.settings[f"{PLACE}policy_num_nodes"]),
            f"{policy.parent.name} was written by {' or '.join(map(str, sorted(sizes)))} GPUs and this run has {have}",
            "give it as many, or start a new run",
        )  # fmt: skip


def ranks_are_whole(subject: Subject) -> Iterator[Problem]:
    """Every rank finds its own files."""
    policy = _newest(subject)
    if policy is None or not policy.is_dir():
        return
    world = subject.settings.policy_gpus
    names = [f"{kind}_world_size_{world}_rank_{rank}.pt" for kind in ("model", "optim", "extra_state") for rank in range(world)]
    missing = [name for name in names if not (policy / name).is_file()]
    if missing and len(missing) < len(names):
        yield Problem(
            str(policy), "", f"{len(missing)} of its {len(names)} files are missing, for example {missing[0]}",
            f"write an older step into {MARKER} if the trainer cannot read it",
        )  # fmt: skip


def adapter_stays(subject: Subject) -> Iterator[Problem]:
    """The adapter beside the checkpoint has the rank and scale of this run."""
    policy = _newest(subject)
    try:
        config: dict[str, Any] = json.loads((policy / "lora_adapter" / "adapter_config.json").read_text()) if policy is not None else {}
    except (OSError, ValueError):
        return
    for name, key in (("r", _LORA + "rank"), ("lora_alpha", _LORA + "alpha")):
        if name in config and config[name] != subject.settings[key]:
            yield Problem(key, str(subject.settings[key]), f"the checkpoint has {config[name]}: {FIXED[key]}", _NEW_RUN)


def steps_remain(subject: Subject) -> Iterator[Problem]:
    """After its last step a run trains nothing, evaluates, saves and succeeds."""
    from training.preflight.disk import steps

    path = folder(subject)
    mark, total = (marked(path) if path is not None else None), steps(subject)[1]
    if mark is not None and mark >= total:
        yield Problem("trainer.epochs", str(subject.settings["trainer.epochs"]), f"the run has made all of its {total} steps", "raise it")


def last_overrides(subject: Subject, *, run_id: str | None = None) -> Mapping[str, Value] | None:
    """What the record of the run, or of another one, tells of its last attempt, where it is visible from here."""
    try:
        path = layout.here(subject.environment, layout.run_folder(subject.environment, run_id or subject.run_id).root)
        overrides = json.loads((path / "record.json").read_text()).get("overrides") if path is not None else None
    except (OSError, ValueError, AttributeError, Refused):  # Refused: no run can have this id
        return None
    return overrides if isinstance(overrides, dict) and overrides else None


RULES: Final = (
    Rule("resume-marker-agrees", "error", marker_agrees),
    Rule("resume-keeps-world-size", "error", world_size_stays),
    Rule("resume-keeps-adapter", "error", adapter_stays),
    Rule("resume-finds-every-rank", "warning", ranks_are_whole),
    Rule("resume-has-steps-left", "warning", steps_remain),
)
