"""Where a run keeps what it writes: everything below `/shared/runs/<run-id>/`, so that two runs never meet.

SkyRL's own defaults put checkpoints of all runs into one folder, where `resume_mode=latest` would go on with another
experiment's weights (skyrl/train/config/config.py, `ckpt_path`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from config import names
from config.environment import Environment

# Where this machine sees the shared file system, if it does (a login node mounts it; the local cloud has a folder).
SHARED_VARIABLE = "HYPERPOD_RL_SHARED"


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run as the cluster's pods see them."""

    root: str

    @property
    def checkpoints(self) -> str:
        """Full training state, to resume from (`trainer.ckpt_path`)."""
        return f"{self.root}/checkpoints"

    def checkpoint(self, step: int) -> str:
        """One checkpoint."""
        return f"{self.checkpoints}/global_step_{step}"

    @property
    def exports(self) -> str:
        """Inference-ready adapters and eval dumps (`trainer.export_path`)."""
        return f"{self.root}/exports"

    @property
    def lora_sync(self) -> str:
        """Adapter on its way from the trainer to the rollout engines; overwritten in place, so one run per path."""
        return f"{self.root}/lora_sync"

    @property
    def logs(self) -> str:
        """Logs of the engines and workers (`trainer.log_path`)."""
        return f"{self.root}/logs"

    @property
    def attempts(self) -> str:
        """One file an attempt, written by the job itself at its start: outlives the Ray head and its job table."""
        return f"{self.root}/attempts"

    def driver_log(self, attempt: int) -> str:
        """All that one attempt's trainer printed, written by the job itself: outlives the Ray head, which keeps the only other copy."""
        return f"{self.logs}/driver-a{attempt}.log"

    def evaluation(self, step: int) -> str:
        """Eval dump of one step (`trainer.dump_eval_results`)."""
        return f"{self.exports}/dumped_evals/global_step_{step}_evals"


def run_folder(env: Environment, run_id: str) -> RunFolder:
    """Paths of a run. Raises Refused for a run id that breaks the rule."""
    return RunFolder(names.run_folder(env, names.check_run_id(run_id)))


def runs(env: Environment) -> str:
    """The folder of all runs."""
    return str(PurePosixPath(names.run_folder(env, "x")).parent)


def here(env: Environment, path: str) -> Path | None:
    """The path on this machine that stands for a path below `/shared`; None if the file system is not visible here."""
    mount = env.storage.file_system.mount_path
    if not path.startswith(mount + "/"):
        return None
    root = Path(os.environ.get(SHARED_VARIABLE) or mount)
    # A local cloud's runs are only where the variable says: a /shared of this machine belongs to something else.
    if env.local and not os.environ.get(SHARED_VARIABLE):
        return None
    return root / path[len(mount) + 1 :] if root.is_dir() else None
