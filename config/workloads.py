"""What runs on the cluster: the Ray cluster, the training and the endpoint."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.model import AbsolutePath, Name, Part, Positive, RayClusterName, RayServiceName, Scalar, text

# Ray Serve takes what stands before the first `:` as the base model, so an id with one would be read as an adapter.
ModelId = Annotated[
    str,
    text(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        rule="a model id has letters, digits, `.`, `_` and `-`, and no `:`",
        example="visgym-qwen3vl",
    ),
]


class RayCluster(Part):
    """The RayCluster that training runs on: one head, one worker pod a node of the `workers` group."""

    name: RayClusterName = "skyrl-visgym"
    namespace: Name = "training"
    worker_cpus: Positive | None = None
    worker_memory_gib: Positive | None = None
    head_cpus: Positive | None = None
    head_memory_gib: Positive | None = None
    shared_memory_gib: Positive | None = None
    autoscaling: bool = False
    # Pods also on nodes that HyperPod checks or is about to replace: for looking at such a node, not for training on it.
    tolerate_unhealthy_nodes: bool = False
    # Keeps actors over a head's death, not a training: its driver dies with the head. Needs a Redis of the user's.
    gcs_fault_tolerance: bool = False
    redis_address: Annotated[str, Field(pattern=r"^(redis://|rediss://)?[A-Za-z0-9.-]+:[0-9]{1,5}$")] | None = None
    # Name of a Secret with the key `password`, in the cluster's namespace.
    redis_password_secret: Name | None = None
    environment: dict[str, str] = Field(default_factory=dict)


class PlainCommand(Part):
    """What the launcher must know of a trainer that is neither SkyRL nor verl. Paths are relative to the run's folder."""

    # One logged step a line: the group `step` is needed, every other named group is a metric (`reward`, `seconds` are known ones).
    step_pattern: Annotated[str, Field(max_length=1000)] = r"step[ :=]+(?P<step>\d+)"
    # A file that is there once there is something to go on from, and the words that the command takes then.
    resume_marker: str | None = None
    resume_words: tuple[str, ...] = ()


class Training(Part):
    """The job. `overrides` are SkyRL's own keys; what the environment can derive (placement, paths) is not written here."""

    base_model: AbsolutePath = "/shared/models/visgym_sft_mixed_qwen3vl"
    base_model_repository: str = "VisGym/visgym_model"
    base_model_subfolder: str = "mixed_qwen3vl"
    base_model_revision: str = "main"
    maze: str = "maze_2d/easy"
    # Which rules, log and way to resume the entrypoint has: training/frameworks.
    framework: Literal["skyrl", "verl", "command"] = "skyrl"
    command: PlainCommand = PlainCommand()
    entrypoint: str = "python examples/train/visgym/entrypoint.py --env_variant sft"
    # What the trainer itself would refuse, asked before anything is submitted: `module:function`, importable on this machine.
    checks: (
        Annotated[str, text(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", rule="this is module:function", example="mine.rules:problems")] | None
    ) = None
    dataset_command: str | None = "python examples/train/visgym/dataset.py"
    # Folder that workers import from (PYTHONPATH of the job); null: the image sets its own.
    code_path: AbsolutePath | None = "/home/ray/skyrl"
    train_rows: Positive = 256
    eval_rows: Positive = 64
    # What `evaluate` plays: VisGym's mazes in SkyRL's own environment (needs both installed), or the mazes built in here.
    evaluation_task: Literal["visgym", "built-in"] = "visgym"
    # The best solve rate that any policy can reach, mazes solvable within max_turns / mazes, keyed by max_turns; measured
    # with a breadth-first search over upstream VisGym's maze_2d/easy, seeds 0..63. Empty: unknown, and said so.
    oracle_bounds: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    overrides: dict[str, Scalar | tuple[Scalar, ...] | None] = Field(default_factory=dict)


Share = Annotated[float, Field(ge=0, le=1)]


class Gate(Part):
    """What an export must show before it becomes a release. Rates are shares of mazes really solved, not SkyRL's pass_at_1."""

    # Of the oracle bound: solve rate / the best that any policy can reach within max_turns.
    min_of_bound: Share = 0.5
    min_format_rate: Share = 0.95
    # Level of the exact tests: better than the baseline at this level, and not worse than the current release at it.
    significance: Annotated[float, Field(gt=0, lt=1)] = 0.05
    # How much better, of the bound, the mazes that the checkpoint was chosen by may look than fresh ones.
    max_selection_gap: Share = 0.2
    # Refuse what was not evaluated on the fresh mazes too.
    fresh_mazes_required: bool = True
    # An OpenAI server for an export that is not released yet, as models `base` and `candidate`: run where the export can be read.
    # {base}, {export}, {rank}, {port}, {max_model_len} and {images} are filled in. null: name one with --endpoint.
    server: str | None = (
        "vllm serve {base} --served-model-name base --host 127.0.0.1 --port {port} --max-model-len {max_model_len} --enable-lora"
        " --max-lora-rank {rank} --lora-modules candidate={export} --limit-mm-per-prompt.image {images}"
    )


class Serving(Part):
    """The OpenAI-compatible endpoint: a RayService with the base model and adapters from S3."""

    name: RayServiceName = "maze-vlm"
    namespace: Name = "serving"
    model_id: ModelId = "visgym-qwen3vl"
    adapter: Name = "maze-grpo"
    share_workers: bool = True
    replicas: Positive = 1
    max_model_len: Positive = 16000
    images_per_prompt: Positive = 16
    adapters_per_replica: Positive = 2
    gate: Gate = Gate()
    # none: whoever may reach the Service inside the cluster. api-key: a key of the Secret `<name>-api-keys`, entry `keys`.
    # internal-load-balancer: no key, and a load balancer that only the VPC reaches.
    authentication: Literal["none", "api-key", "internal-load-balancer"] = "none"
