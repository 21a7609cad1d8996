"""Cross-field rules of Ray Serve LLM that Ray itself finds late or never.

Ray accepts unknown engine arguments, a `max_lora_rank` below the adapter's rank and more adapters a replica than the engine
holds (ray 2.57.0, LLMConfig); vLLM then fails on the GPU, or thrashes.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import yaml

from config.environment import Environment
from config.manifest import Json, at, integer, items, mapping, text
from config.problems import Problem

# Ranks that vLLM takes (vllm/config/lora.py; inferred for 0.26.0).
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# vLLM's own defaults (vllm/config/lora.py).
_DEFAULT_RANK, _DEFAULT_LORAS = 16, 1
_CLOUD = "s3://"
# What Ray calls the GPUs of the instance table (ray/util/accelerators/accelerators.py); Ray finds the type by the card's name.
ACCELERATORS: Mapping[str, str] = MappingProxyType({
    "NVIDIA A10G": "A10G",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "NVIDIA RTX PRO 6000 Blackwell": "RTX-PRO-6000",
    "NVIDIA A100": "A100",
    "NVIDIA H100": "H100",
    "NVIDIA H200": "H200",
})  # fmt: skip
# vLLM's arguments that the charts write. It has hundreds more, and Ray hands on what it does not know.
_ENGINE = (
    "max_model_len", "max_loras", "max_cpu_loras", "max_lora_rank", "limit_mm_per_prompt", "gpu_memory_utilization",
    "tensor_parallel_size", "pipeline_parallel_size", "enable_lora",
)  # fmt: skip


def server_rank(env: Environment) -> int:
    """`max_lora_rank` of the endpoint: vLLM's smallest that holds the rank that training uses; without LoRA in training, its smallest."""
    rank = env.training.overrides.get("trainer.policy.model.lora.rank")
    wanted = rank if isinstance(rank, int) and not isinstance(rank, bool) else 0
    return next((size for size in LORA_RANKS if size >= wanted), LORA_RANKS[-1])


def problems(config: object, *, gpus: int, accelerators: Collection[str] = ()) -> Iterator[Problem]:
    """Everything wrong with a `serveConfigV2` on a cluster with this many GPUs, of these types (Ray's names; none: not known)."""
    if not isinstance(config, str):
        yield Problem("spec.serveConfigV2", type(config).__name__, "it is a text of YAML, not an object", "dump it")
        return
    try:
        loaded = yaml.safe_load(config)
    except (yaml.YAMLError, RecursionError) as error:
        yield Problem("spec.serveConfigV2", "", f"this is not valid YAML ({str(error).splitlines()[0]})", "mend it")
        return
    applications = items(at(loaded, "applications"))
    if not applications:
        yield Problem("spec.serveConfigV2.applications", "", "there is no application in it", "add one")
    wanted = 0
    for index, application in enumerate(applications):
        for number, llm in enumerate(items(at(application, "args", "llm_configs"))):
            field = f"spec.serveConfigV2.applications[{index}].args.llm_configs[{number}]"
            yield from _model(llm, field)
            yield from _engine(llm, field)
            yield from _lora(llm, field)
            accelerator = llm.get("accelerator_type")
            if accelerator is not None and accelerators and accelerator not in accelerators:
                yield Problem(
                    f"{field}.accelerator_type",
                    str(accelerator),
                    f"the workers' nodes have {', '.join(sorted(accelerators))}, so its replicas would wait for ever",
                    "set that, or leave it out",
                )
            wanted += _gpus(llm)
    if wanted > gpus:
        yield Problem(
            "spec.serveConfigV2",
            f"{wanted} GPUs",
            f"its replicas want more than the {gpus} GPUs of the cluster's workers",
            "fewer replicas, or more workers",
        )


def _model(llm: Json, field: str) -> Iterator[Problem]:
    name = text(at(llm, "model_loading_config", "model_id"))
    if not name or ":" in name:
        yield Problem(
            f"{field}.model_loading_config.model_id",
            name,
            "clients write <model>:<adapter>, so a model's id is not empty and has no colon",
            "for example visgym-qwen3vl",
        )


def _engine(llm: Json, field: str) -> Iterator[Problem]:
    """Ray hands on an argument that nobody knows, and vLLM ends at its start: a slip of the pen in one of those that the charts write."""
    for name in mapping(llm.get("engine_kwargs")):
        near = difflib.get_close_matches(str(name), _ENGINE, n=1, cutoff=0.85) if name not in _ENGINE else []
        if near:
            yield Problem(f"{field}.engine_kwargs.{name}", "", "vLLM has no such argument", f"did you mean {near[0]}")


def behind_training(service: Json, env: Environment) -> Iterator[Problem]:
    """An endpoint whose `max_lora_rank` is below the rank that training uses starts, and refuses every adapter."""
    rank = env.training.overrides.get("trainer.policy.model.lora.rank")
    try:
        loaded = yaml.safe_load(text(at(service, "spec", "serveConfigV2")))
    except (yaml.YAMLError, RecursionError):
        return
    if not isinstance(rank, int) or isinstance(rank, bool):
        return
    for index, application in enumerate(items(at(loaded, "applications"))):
        for number, llm in enumerate(items(at(application, "args", "llm_configs"))):
            held = integer(at(llm, "engine_kwargs", "max_lora_rank"))
            held = _DEFAULT_RANK if held is None else held
            if isinstance(llm.get("lora_config"), dict) and held < rank:
                yield Problem(
                    f"spec.serveConfigV2.applications[{index}].args.llm_configs[{number}].engine_kwargs.max_lora_rank",
                    str(held),
                    f"training makes adapters of rank {rank}",
                    f"set {server_rank(env)}",
                )


def _lora(llm: Json, field: str) -> Iterator[Problem]:
    lora, engine = llm.get("lora_config"), mapping(llm.get("engine_kwargs"))
    if not isinstance(lora, dict):
        return
    path = lora.get("dynamic_lora_loading_path")
    if path is not None and not text(path).startswith(_CLOUD):
        yield Problem(
            f"{field}.lora_config.dynamic_lora_loading_path", str(path), "Ray loads adapters from S3, not from a folder", "use s3://…"
        )
    if engine.get("enable_lora") is not True:
        yield Problem(
            f"{field}.engine_kwargs.enable_lora", str(engine.get("enable_lora", "")), "vLLM loads no adapter without it", "set true"
        )
    held = max(integer(engine.get("max_cpu_loras")) or 0, integer(engine.get("max_loras")) or _DEFAULT_LORAS)
    replicas = integer(lora.get("max_num_adapters_per_replica"))
    if (replicas if replicas is not None else 16) > held:  # 16 is Ray's default
        yield Problem(
            f"{field}.lora_config.max_num_adapters_per_replica",
            str(replicas if replicas is not None else "16 (default)"),
            f"the engine holds {held}",
            "raise engine_kwargs.max_cpu_loras, or lower this",
        )
    rank = integer(engine.get("max_lora_rank")) or _DEFAULT_RANK
    if rank not in LORA_RANKS:
        yield Problem(
            f"{field}.engine_kwargs.max_lora_rank", str(rank), f"vLLM takes {', '.join(map(str, LORA_RANKS))}", "use the next higher one"
        )


def _gpus(llm: Json) -> int:
    parallel = (integer(at(llm, "engine_kwargs", "tensor_parallel_size")) or 1) * (
        integer(at(llm, "engine_kwargs", "pipeline_parallel_size")) or 1
    )
    replicas = at(llm, "deployment_config", "num_replicas")
    if replicas in (None, "auto"):
        replicas = at(llm, "deployment_config", "autoscaling_config", "min_replicas")
    return parallel * (integer(replicas) if integer(replicas) is not None else 1)  # type: ignore[operator]
