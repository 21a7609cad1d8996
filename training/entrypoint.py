"""The command line that a Ray job runs: a small shell script that ends by becoming the trainer.

It leaves a mark of the attempt in the run's folder, and a copy of all that the trainer prints, since Ray's job table and its logs
die with the head. Where the environment says how, it puts the datasets on the shared file system whole or not at all (built
beside, then renamed). It starts no trainer before the base model is whole: a guard that looks for one file (`config.json`) takes
an interrupted copy for a whole model.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from config.environment import Environment
from training import checkpoints
from training.base_model import MARKER
from training.layout import SHARED_VARIABLE, RunFolder

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


# Ray gives the job a file for all that it prints. The copy reads that file, so that nothing stands between trainer and Ray, and
# ends with the trainer, whose process this shell becomes: a signal and the exit code are the trainer's own.
_COPY = """\
if [ -n "$RUN_FOLDER" ] && [ -f "/proc/$$/fd/1" ]; then
  LOG="$RUN_FOLDER/logs/driver-a$HYPERPOD_RL_ATTEMPT.log"
  (trap "" TERM INT; exec tail -c +1 -s 0.2 -f --pid=$$ "/proc/$$/fd/1" >> "$LOG" 2> /dev/null) &
fi"""


def dataset_folder(env: Environment, *, rows: int, held_out: bool) -> str:
    """Folder of one dataset. What the rows hold depends on the code that makes them, so its commits are in the name."""
    made_by = env.version_set.training
    maze = env.training.maze.replace("/", "-")
    kind = "eval" if held_out else "train"
    root = f"{env.storage.file_system.mount_path}/datasets"
    return f"{root}/{maze}/{made_by.skyrl_commit[:8]}-{made_by.visgym_commit[:8]}/{kind}-{rows}"


def command(
    env: Environment, *, run_id: str, folder: RunFolder, overrides: Sequence[str], first: Sequence[str] | None = None,
    marker: str | None = None,
) -> str:  # fmt: skip
    """The entrypoint of the Ray job (Ray gives it to a shell): the trainer with its overrides, prepared for where needed.

    `overrides` are the trainer's words (SkyRL: `key=value`); each is quoted, so that no shell reads into it. `first`, where given,
    stands in for them as long as the run has no checkpoint of its own: as long as `marker` is not in its folder.
    """
    start = f"exec {_trainer(env, overrides)}"
    if first is not None:
        quoted = shlex.quote(marker or f"checkpoints/{checkpoints.MARKER}")
        own = f'if [ -e "${{RUN_FOLDER:-}}"/{quoted} ]; then'
        start = "\n".join((own, f"  {start}", "else", f"  exec {_trainer(env, first)}", "fi"))
    return "exec bash -c " + shlex.quote(_script(env, run_id=run_id, folder=folder, start=start))


def _trainer(env: Environment, overrides: Sequence[str]) -> str:
    return " ".join((env.training.entrypoint, *(shlex.quote(word) for word in overrides)))


def _script(env: Environment, *, run_id: str, folder: RunFolder, start: str) -> str:
    training = env.training
    lines = ["set -euo pipefail", f"export RUN_ID={shlex.quote(run_id)} RUN_FOLDER="]
    if training.code_path is not None:
        lines.append(f"cd {shlex.quote(training.code_path)}")
    lines += _mark(env, folder)
    if training.base_model_repository or training.dataset_command is not None:
        lines += [f"MODEL={shlex.quote(training.base_model)}", _MODEL]
    if training.dataset_command is not None:
        lines.append(_PREPARE)
        lines += _datasets(env, training.dataset_command)
    return "\n".join((*lines, _COPY, start)) + "\n"


def _mark(env: Environment, folder: RunFolder) -> list[str]:
    begin = [
        'mkdir -p "$RUN_FOLDER/attempts" "$RUN_FOLDER/logs"',
        'date -u +%Y-%m-%dT%H:%M:%SZ > "$RUN_FOLDER/attempts/${HYPERPOD_RL_ATTEMPT:?}"',
    ]
    if not env.local:
        return [f"RUN_FOLDER={shlex.quote(folder.root)}", *begin]
    # The local cloud's /shared is a folder that a variable names; without it nothing of this machine is written to.
    below = shlex.quote(folder.root.removeprefix(env.storage.file_system.mount_path))
    inner = [f'RUN_FOLDER="${SHARED_VARIABLE}"{below}', *begin]
    return [f'if [ -n "${{{SHARED_VARIABLE}:-}}" ]; then', *(f"  {line}" for line in inner), "fi"]


def _datasets(env: Environment, command: str) -> Iterator[str]:
    training = env.training
    for rows, held_out in ((training.train_rows, False), (training.eval_rows, True)):
        target = dataset_folder(env, rows=rows, held_out=held_out)
        seed = " --seed" if held_out else ""
        make = f'{command} --env_id {shlex.quote(training.maze)} --num_rows {rows}{seed} --output_dir "$PART"'
        yield f"prepare {shlex.quote(target)} bash -c {shlex.quote(make)}"
