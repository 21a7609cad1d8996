"""The command line that a Ray job runs: a small shell script on the cluster, or just the trainer's command.

The script puts the datasets on the shared file system whole or not at all (built beside, then renamed), and starts no trainer
before the base model is whole. A guard that looks for one file (`config.json`) takes an interrupted copy for a whole model.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from config.environment import Environment
from training.base_model import MARKER
from training.layout import RunFolder

_MODEL = f"""\
if [ ! -e "$MODEL/{MARKER}" ]; then
  echo "the base model $MODEL is not there, or not whole: hyperpod-rl cluster up brings it." >&2
  echo "One that was put there by hand needs the file $MODEL/{MARKER} beside its weights." >&2
  exit 1
fi"""

_PREPARE = f"""\
# prepare FOLDER COMMAND...: makes FOLDER with COMMAND, whole or not at all; COMMAND finds its output folder in $PART
prepare() {{
  folder=$1; shift
  if [ -e "$folder/{MARKER}" ]; then return 0; fi
  if [ -e "$folder" ]; then
    echo "$folder exists without $folder/{MARKER}: an interrupted copy, or one made by hand." >&2
    echo "If it is whole: touch $folder/{MARKER}; if not: remove it. Then submit again." >&2
    return 1
  fi
  PART="$folder.part-$RUN_ID"; export PART
  mkdir -p "$PART"
  "$@"
  touch "$PART/{MARKER}"
  mv -T "$PART" "$folder" || {{ [ -e "$folder/{MARKER}" ] && rm -rf "$PART"; }}
}}"""


def dataset_folder(env: Environment, *, rows: int, held_out: bool) -> str:
    """Folder of one dataset. What the rows hold depends on the code that makes them, so its commits are in the name."""
    made_by = env.version_set.training
    maze = env.training.maze.replace("/", "-")
    kind = "eval" if held_out else "train"
    root = f"{env.storage.file_system.mount_path}/datasets"
    return f"{root}/{maze}/{made_by.skyrl_commit[:8]}-{made_by.visgym_commit[:8]}/{kind}-{rows}"


def command(env: Environment, *, run_id: str, folder: RunFolder, overrides: Sequence[str]) -> str:
    """The entrypoint of the Ray job (Ray gives it to a shell): the trainer with its overrides, prepared for where needed.

    `overrides` are SkyRL's `key=value` words; each is quoted, so that no shell reads into it.
    """
    trainer = " ".join((env.training.entrypoint, *(shlex.quote(word) for word in overrides)))
    if env.training.dataset_command is None:
        return trainer
    return "bash -c " + shlex.quote(_script(env, run_id=run_id, folder=folder, trainer=trainer))


def _script(env: Environment, *, run_id: str, folder: RunFolder, trainer: str) -> str:
    training = env.training
    lines = ["set -euo pipefail", f"export RUN_ID={shlex.quote(run_id)}"]
    if training.code_path is not None:
        lines.append(f"cd {shlex.quote(training.code_path)}")
    lines += [
        # Ray's job table dies with the head; this file says that the attempt was.
        f"mkdir -p {shlex.quote(folder.attempts)}",
        f'date -u +%Y-%m-%dT%H:%M:%SZ > {shlex.quote(folder.attempts)}/"${{HYPERPOD_RL_ATTEMPT:?}}"',
        f"MODEL={shlex.quote(training.base_model)}",
        _MODEL,
        _PREPARE,
    ]
    for rows, held_out in ((training.train_rows, False), (training.eval_rows, True)):
        target = dataset_folder(env, rows=rows, held_out=held_out)
        seed = " --seed" if held_out else ""
        make = f'{training.dataset_command} --env_id {shlex.quote(training.maze)} --num_rows {rows}{seed} --output_dir "$PART"'
        lines.append(f"prepare {shlex.quote(target)} bash -c {shlex.quote(make)}")
    # exec: a signal from Ray's supervisor reaches the trainer itself.
    lines.append(f"exec {trainer}")
    return "\n".join(lines) + "\n"
