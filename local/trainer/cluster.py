"""The stand-in on Ray: where its pieces run, as SkyRL places them.

The driver only starts `visgym_entrypoint`, a task with one CPU that Ray places on any node with a free one (SkyRL keeps the
loop off the head, whose num-cpus is 0). It reserves one bundle of {GPU: 1, CPU: 1} per policy GPU, and every rollout task
runs in one of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from config.problems import Failed
from local.trainer.checkpoint import OtherRun
from local.trainer.rollout import Chunk, Plan, Rollout, roll_chunk
from local.trainer.settings import Settings
from local.trainer.shared import SHARED_VARIABLE

GROUP_TIMEOUT_VARIABLE: Final = "SKYRL_RAY_PG_TIMEOUT_IN_S"
_GROUP_TIMEOUT: Final = 180.0  # seconds, SkyRL's default
_LOG_PAUSE: Final = 1.5  # seconds: Ray forwards a worker's log with a delay, and drops what comes after the driver's end
_ROLLOUT_TIMEOUT: Final = 120.0  # seconds; a round takes well below one
_ROOT: Final = Path(__file__).resolve().parents[2]


def worker_environment() -> dict[str, str]:
    """Variables of every worker process: where our modules are, one thread for the same bytes everywhere, /shared."""
    variables = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in (SHARED_VARIABLE, GROUP_TIMEOUT_VARIABLE):
        if name in os.environ:
            variables[name] = os.environ[name]
    return variables


def run_on_cluster(settings: Settings) -> None:
    """Train on the Ray cluster that RAY_ADDRESS or this node names; returns when training is done.

    Raises:
        Failed: the GPUs were not free in time, or a worker was lost for good.
    """
    import ray

    ray.init(address="auto", log_to_driver=True)
    # A task's own runtime_env reaches workers also when the job has a working_dir, which hides the driver's path from them.
    entrypoint = ray.remote(num_cpus=1, max_retries=0, runtime_env={"env_vars": worker_environment()})(visgym_entrypoint)
    try:
        ray.get(entrypoint.remote(settings))
        time.sleep(_LOG_PAUSE)
    except ray.exceptions.RayTaskError as error:
        raise Failed(str(error.cause) if isinstance(error.cause, Failed | OtherRun) else str(error)) from None
    except ray.exceptions.RayError as error:
        raise Failed(f"the training task was lost: {error}") from error
    finally:
        ray.shutdown()


def visgym_entrypoint(settings: Settings) -> None:
    """The task that trains. Its name is SkyRL's, since Ray puts it before every line of the log."""
    from local.trainer.train import Run

    group = _reserve(settings.gpus)
    try:
        Run(settings, GroupExecutor(group)).train()
    finally:
        import ray

        sys.stderr.flush()
        ray.util.remove_placement_group(group)


class GroupExecutor:
    """Rolls each chunk as a Ray task in its own bundle of the placement group; results in the order of the chunks."""

    def __init__(self, group: Any) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote = ray.remote(num_cpus=1, num_gpus=1)(roll_chunk)
        self._tasks = [
            remote.options(
                name="rollout",
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            )
            for index in range(group.bundle_count)
        ]

    def __call__(self, weights: Any, chunks: Sequence[Chunk], plan: Plan) -> list[list[list[Rollout]]]:
        import ray

        shared_weights: Any = ray.put(dict(weights))
        pending = [task.remote(shared_weights, chunk, plan) for task, chunk in zip(self._tasks, chunks, strict=False)]
        try:
            return list(ray.get(pending, timeout=_ROLLOUT_TIMEOUT))
        except ray.exceptions.GetTimeoutError as error:
            raise Failed(f"no rollouts within {_ROLLOUT_TIMEOUT:.0f} s; a worker node is gone") from error


def _reserve(gpus: int) -> Any:
    import ray
    from ray.util.placement_group import placement_group

    group = placement_group([{"GPU": 1, "CPU": 1}] * gpus, strategy="PACK")
    timeout = float(os.environ.get(GROUP_TIMEOUT_VARIABLE, _GROUP_TIMEOUT))
    try:
        ray.get(group.ready(), timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        ray.util.remove_placement_group(group)
        raise Failed(
            f"{gpus} bundles of one GPU and one CPU were not free within {timeout:.0f} s; the cluster has "
            f"{have.get('GPU', 0):.0f} GPUs and {have.get('CPU', 0):.0f} CPUs, one of them for the training task"
        ) from None
    return group
