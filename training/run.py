"""The run specification: from environment and flags to the one Ray job that trains, with nothing reached on the way.

The same object is printed by `submit --dry-run` and submitted by `submit`.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from config import names
from config.digest import value_digest
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused
from training import entrypoint, frameworks, layout, skyrl
from training.checkpoints import Origin
from training.frameworks.framework import Framework
from training.skyrl_keys import Value

# SkyRL waits this long for its placement group; its default of 180 s is too short while a node is being replaced.
PLACEMENT_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Code:
    """The commit that the launcher ran from."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class Specification:
    """One run, completely: what is submitted, apart from the attempt's number."""

    run_id: str
    environment: str
    image: str
    entrypoint: str
    overrides: Mapping[str, Value]
    variables: Mapping[str, str]
    code: Code
    config: str
    folder: str
    origin: Origin | None = None

    @property
    def digest(self) -> str:
        """What makes two submissions the same run: not the commit of the launcher, which does not reach the cluster."""
        return value_digest({"entrypoint": self.entrypoint, "image": self.image, "variables": dict(self.variables)})

    def job(self, attempt: int) -> Job:
        """The Ray job of one attempt (1, 2, …)."""
        metadata = {
            "run_id": self.run_id,
            "attempt": str(attempt),
            "environment": self.environment,
            "specification": self.digest,
            "commit": self.code.commit,
            "dirty": "true" if self.code.dirty else "false",
            "config": self.config,
            "image": self.image,
            **({"from_run": str(self.origin)} if self.origin is not None else {}),
        }
        variables = {**self.variables, "HYPERPOD_RL_RUN": self.run_id, "HYPERPOD_RL_ATTEMPT": str(attempt)}
        return Job(
            submission_id=names.submission_id(self.run_id, attempt), entrypoint=self.entrypoint,
            runtime_env={"env_vars": variables}, metadata=metadata,
        )  # fmt: skip

    def document(self, *, attempt: int = 1) -> dict[str, Any]:
        """As `submit --dry-run --json` prints it."""
        job = self.job(attempt)
        return {
            "run_id": self.run_id, "environment": self.environment, "folder": self.folder, "specification": self.digest,
            "from_run": str(self.origin) if self.origin is not None else None,
            "overrides": dict(sorted(self.overrides.items())), "job": asdict(job),
        }  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Arguments of Ray's `JobSubmissionClient.submit_job`. No CPU is reserved for the driver, so Ray runs it on the head,
    which offers none to tasks (https://docs.ray.io/en/latest/cluster/running-applications/job-submission/, entrypoint resources)."""

    submission_id: str
    entrypoint: str
    runtime_env: Mapping[str, Any]
    metadata: Mapping[str, str]


# Linux takes no longer word of a command line (MAX_ARG_STRLEN, 32 pages), and Ray hands the entrypoint to a shell as one.
LONGEST_ENTRYPOINT: Final = 128 * 1024 - 4096


def _short_enough(specification: Specification) -> Specification:
    """The same. Raises Refused for an entrypoint that no node could start."""
    if (size := len(specification.entrypoint.encode())) > LONGEST_ENTRYPOINT:
        longest = max(specification.overrides, key=lambda key: len(str(specification.overrides[key])))
        rule = f"the command would have {size} bytes, and Linux starts none of more than {LONGEST_ENTRYPOINT}"
        raise Refused(Problem(longest, f"{str(specification.overrides[longest])[:40]}...", rule, "write shorter values"))
    return specification


def default_run_id(env: Environment, now: datetime | None = None) -> str:
    """`<adapter>-<UTC date>-<time>`: made without asking the cluster, and printed."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{env.serving.adapter[:32].rstrip('-')}-{moment:%Y%m%d-%H%M%S}"


def specify(
    env: Environment, *, run_id: str, settings: Sequence[str] = (), code: Code | None = None, origin: Origin | None = None
) -> Specification:  # fmt: skip
    """Build the specification of a run.

    Args:
        run_id: names the run and its folder on the shared file system.
        settings: `--set` words, SkyRL's own `key=value`.
        code: commit of this checkout; looked up when None.
        origin: the checkpoint of another run that the first attempt begins with; later ones go on from the run's own.

    Raises Refused with every problem of run id, environment, settings and the whole configuration at once.
    """
    framework = frameworks.of(env)
    if framework is not None:
        return _other(env, framework, run_id=run_id, settings=settings, code=code, origin=origin)
    folder, values, found = configuration(env, run_id=run_id, settings=settings)
    variables = _variables(env)
    if not found:
        found += skyrl.problems(values, world_gpus=env.training_gpus, environment=variables)
        found += own_checks(env, values)
    first = None
    if origin is not None:
        if origin.run_id == run_id:
            found.append(Problem("--from-run", str(origin), "a run goes on from its own checkpoints by itself", "choose another run id"))
        path = names.run_folder(env, origin.run_id)
        first = skyrl.render(
            {**values, "trainer.resume_mode": "from_path", "trainer.resume_path": layout.RunFolder(path).checkpoint(origin.step)}
        )
    if found:
        raise Refused(found)
    return _short_enough(Specification(
        run_id=run_id, environment=env.name, image=names.image_uri(env), overrides=values, variables=variables,
        entrypoint=entrypoint.command(env, run_id=run_id, folder=folder, overrides=skyrl.render(values), first=first),
        code=code or current_code(), config=value_digest(env.model_dump(mode="json")), folder=folder.root, origin=origin,
    ))  # fmt: skip


def _other(
    env: Environment, framework: Framework, *, run_id: str, settings: Sequence[str], code: Code | None, origin: Origin | None
) -> Specification:
    """The specification of a run of another trainer than SkyRL."""
    folder, values, found = configuration(env, run_id=run_id, settings=settings)
    found += framework.problems(env, values)
    found += own_checks(env, values)
    if origin is not None:
        found.append(Problem("--from-run", str(origin), f"{framework.name} has no such way to begin", "give the command its own words"))
    if found:
        raise Refused(found)
    start = framework.command(env, folder, values)
    return _short_enough(Specification(
        run_id=run_id, environment=env.name, image=names.image_uri(env), overrides=values, variables=_variables(env),
        entrypoint=entrypoint.command(
            env, run_id=run_id, folder=folder, overrides=start.resumed if start.resumed is not None else start.words,
            first=start.words if start.resumed is not None else None, marker=start.marker,
        ),
        code=code or current_code(), config=value_digest(env.model_dump(mode="json")), folder=folder.root,
    ))  # fmt: skip


def own_checks(env: Environment, values: Mapping[str, Value]) -> Sequence[Problem]:
    """What the environment's own trainer would refuse, where it says how to ask (`training.checks`)."""
    if env.training.checks is None:
        return ()
    module, _, name = env.training.checks.partition(":")
    try:
        check = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        return [Problem("training.checks", env.training.checks, f"it cannot be imported here: {error}", "mend it, or leave it out")]
    found: Sequence[Problem] = check(values)
    return found


def configuration(
    env: Environment, *, run_id: str, settings: Sequence[str] = ()
) -> tuple[layout.RunFolder, dict[str, Value], list[Problem]]:
    """Folder and SkyRL values of a run, as far as they can be read, and what is wrong with them before any rule is asked."""
    found: list[Problem] = []
    try:
        folder = layout.RunFolder(names.run_folder(env, names.check_run_id(run_id)))
    except Refused as error:
        found += error.problems
        folder = layout.RunFolder(names.run_folder(env, "RUN-ID"))
    if (framework := frameworks.of(env)) is not None:
        values, problems = framework.configure(env, run_id, folder, settings)
        return folder, values, [*found, *problems]
    written, problems = skyrl.parse(skyrl.render({key: _value(value) for key, value in env.training.overrides.items()}))
    found += (Problem(f"training.overrides.{p.field}", p.value, p.rule, p.fix) for p in problems)
    given, problems = skyrl.parse(settings)
    found += (Problem(f"--set {p.field}", p.value, p.rule, p.fix) for p in problems)
    values = {**written, **given}
    derived, problems = derive(env, folder=folder, run_id=run_id, values=values)
    found += problems
    found += _hand_set(derived, given, written)
    values |= derived
    return folder, values, found


def derive(
    env: Environment, *, folder: layout.RunFolder, run_id: str, values: Mapping[str, Value]
) -> tuple[dict[str, Value], list[Problem]]:
    """What follows from environment and run id, and what makes it impossible."""
    derived: dict[str, Value] = {
        "trainer.run_name": run_id,
        "trainer.resume_mode": "latest",
        "trainer.ckpt_path": folder.checkpoints,
        "trainer.export_path": folder.exports,
        "trainer.log_path": folder.logs,
        "trainer.policy.model.path": env.training.base_model,
    }
    full = skyrl.with_defaults(values)
    if _positive(full.get("trainer.policy.model.lora.rank")):
        derived["trainer.policy.model.lora.lora_sync_path"] = folder.lora_sync
    for key, rows, held_out in (("data.train_data", env.training.train_rows, False), ("data.val_data", env.training.eval_rows, True)):
        # The dataset script calls its file train.parquet for both (examples/train/visgym/dataset.py).
        derived[key] = [f"{entrypoint.dataset_folder(env, rows=rows, held_out=held_out)}/train.parquet"]
    placement, problems = _placement(env, full, values)
    return derived | placement, problems


def _placement(env: Environment, full: Mapping[str, Value], given: Mapping[str, Value]) -> tuple[dict[str, Value], list[Problem]]:
    """GPUs of the policy and of the rollout engines: all for both when colocated, else nodes for one or the other."""
    nodes, gpus = env.workers.count, env.workers.instance.gpus
    colocated = full.get("trainer.placement.colocate_all") is not False
    policy_nodes = nodes
    if not colocated:
        chosen = given.get("trainer.placement.policy_num_nodes")
        policy_nodes = chosen if isinstance(chosen, int) else nodes - 1
        if not 0 < policy_nodes < nodes:
            rule = f"apart from each other, policy and rollouts share {nodes} worker nodes and each needs one at least"
            fix = f"set trainer.placement.policy_num_nodes to 1..{nodes - 1}" if nodes > 1 else "set trainer.placement.colocate_all=true"
            return {}, [Problem("trainer.placement.policy_num_nodes", str(policy_nodes), rule, fix)]
    engine_gpus = 1
    for axis in ("tensor", "pipeline", "data"):
        size = full.get(f"generator.inference_engine.{axis}_parallel_size")
        engine_gpus *= size if isinstance(size, int) and size > 0 else 1
    rollout_gpus = (nodes if colocated else nodes - policy_nodes) * gpus
    if rollout_gpus % engine_gpus or not rollout_gpus:
        return {}, [Problem("generator.inference_engine.tensor_parallel_size", str(engine_gpus),
                            f"engines of {engine_gpus} GPUs (tensor x pipeline x data) do not fill {rollout_gpus} rollout GPUs",
                            "choose sizes whose product divides that number")]  # fmt: skip
    placement: dict[str, Value] = {"generator.inference_engine.num_engines": rollout_gpus // engine_gpus}
    for model in ("policy", "ref"):
        placement[f"trainer.placement.{model}_num_nodes"] = policy_nodes
        placement[f"trainer.placement.{model}_num_gpus_per_node"] = gpus
    return placement, []


def _hand_set(derived: Mapping[str, Value], given: Mapping[str, Value], written: Mapping[str, Value]) -> Iterable[Problem]:
    """Derived values that somebody wrote otherwise by hand."""
    replaced = {key: value for key, value in written.items() if key not in given}
    for source, prefix in ((replaced, "training.overrides."), (given, "--set ")):
        for key in sorted(derived.keys() & source.keys()):
            if source[key] != derived[key]:
                text = skyrl.render({key: source[key]})[0].partition("=")[2]
                due = skyrl.render({key: derived[key]})[0].partition("=")[2]
                yield Problem(f"{prefix}{key}", text, f"it follows from the environment and the run id and is {due}", "leave it out")


def _variables(env: Environment) -> dict[str, str]:
    variables = {"SKYRL_RAY_PG_TIMEOUT_IN_S": str(PLACEMENT_TIMEOUT_SECONDS)}
    if env.training.code_path is not None:
        # Ray puts neither the script's folder nor the working directory on the workers' path, so the maze environment would be
        # missing at the first rollout, after every model is loaded; a PYTHONPATH of the job's environment reaches them all
        # (ray/_private/worker.py, ray 2.57.0).
        variables["PYTHONPATH"] = env.training.code_path
    return variables


def _value(value: object) -> Value:
    return list(value) if isinstance(value, tuple) else value  # type: ignore[return-value]  # the model allows scalars and tuples of them


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def current_code() -> Code:
    """Commit of this checkout, or of the one that this code was taken from into a pod; `unknown` outside of one."""
    if told := os.environ.get(names.CODE_VARIABLE):
        return Code(told.removesuffix(names.DIRTY_SUFFIX), dirty=told.endswith(names.DIRTY_SUFFIX))
    try:
        # One process for both: the commit (`# branch.oid …`) and what differs from it.
        command = ("git", "-C", str(ROOT), "status", "--porcelain=v2", "--branch")
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return Code("unknown", dirty=True)
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    dirty = any(not line.startswith("#") for line in lines)
    return Code("unknown", dirty=True) if commit == "(initial)" else Code(commit, dirty=dirty)
