"""`serveConfigV2` of the endpoint: typed, and dumped as the YAML text that KubeRay wants; never a pasted string.

Fields and their limits: ray.serve.schema.ServeDeploySchema and ray.serve.llm.LLMConfig (Ray 2.57.0 and 2.60.0 agree).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from config import capacity, ingress, names
from config.environment import Environment
from config.serve_rules import ACCELERATORS, server_rank

# Ray's own builder, which ours calls and puts its front around.
BUILDER = "ray.serve.llm:build_openai_app"


@dataclass(frozen=True)
class ModelLoading:
    """`model_id` is the name that clients use, `model_source` the folder on the shared file system."""

    model_id: str
    model_source: str


@dataclass(frozen=True)
class Lora:
    """Adapters are loaded on demand from `<path>/<adapter>/`; Ray takes cloud storage only."""

    dynamic_lora_loading_path: str
    max_num_adapters_per_replica: int


@dataclass(frozen=True)
class Engine:
    """vLLM's arguments. Ray does not check them, so every one of them is written here by its name."""

    max_model_len: int
    max_loras: int
    max_cpu_loras: int
    max_lora_rank: int
    limit_mm_per_prompt: Mapping[str, int]
    gpu_memory_utilization: float = capacity.SERVING_MEMORY_SHARE
    tensor_parallel_size: int = 1
    enable_lora: bool = True


@dataclass(frozen=True)
class Deployment:
    """Serve's own settings of the replicas; seconds."""

    num_replicas: int
    max_ongoing_requests: int = 64
    health_check_period_s: int = 10
    # A replica that loads an adapter or compiles a graph answers late; Serve's default of 30 s would restart it.
    health_check_timeout_s: int = 120
    graceful_shutdown_timeout_s: int = 120


@dataclass(frozen=True)
class LLM:
    """One `LLMConfig`."""

    model_loading_config: ModelLoading
    lora_config: Lora
    engine_kwargs: Engine
    deployment_config: Deployment
    accelerator_type: str | None = None


@dataclass(frozen=True)
class Front:
    """What `serving.ingress` is told: where the aliases are, who may ask, and which builder makes what is behind it."""

    aliases: str
    authentication: str
    application: str = BUILDER


@dataclass(frozen=True)
class Application:
    """One Serve application."""

    args: Mapping[str, Any]
    runtime_env: Mapping[str, Any]
    name: str = "llm"
    route_prefix: str = "/"
    import_path: str = ingress.IMPORT_PATH


@dataclass(frozen=True)
class ServeConfig:
    """The whole text."""

    applications: tuple[Application, ...]
    # Every node answers: KubeRay's service picks worker pods whose proxy is healthy.
    proxy_location: str = "EveryNode"
    http_options: Mapping[str, Any] = field(default_factory=lambda: {"host": "0.0.0.0", "port": names.SERVE_PORT})  # noqa: S104


def lora_rank(env: Environment) -> int:
    """Smallest rank of vLLM's that holds the rank that training uses; without LoRA in training, vLLM's smallest."""
    return server_rank(env)


def adapter_path(env: Environment) -> str:
    """S3 folder whose sub-folders are adapters."""
    return f"s3://{names.artifact_bucket(env)}/{names.ADAPTER_PREFIX}".rstrip("/")


def serve_config(env: Environment) -> ServeConfig:
    """The endpoint of an environment."""
    serving = env.serving
    llm = LLM(
        model_loading_config=ModelLoading(model_id=serving.model_id, model_source=env.training.base_model),
        lora_config=Lora(adapter_path(env), serving.adapters_per_replica),
        engine_kwargs=Engine(
            max_model_len=serving.max_model_len,
            max_loras=serving.adapters_per_replica,
            max_cpu_loras=serving.adapters_per_replica,
            max_lora_rank=lora_rank(env),
            limit_mm_per_prompt={"image": serving.images_per_prompt},
        ),
        deployment_config=Deployment(num_replicas=serving.replicas),
        accelerator_type=ACCELERATORS.get(capacity.serving_group(env).instance.gpu),
    )
    front = Front(aliases=f"s3://{names.artifact_bucket(env)}/{names.ALIAS_PREFIX}".rstrip("/"), authentication=serving.authentication)
    application = Application(
        args={"llm_configs": [_without_none(asdict(llm))], "front": asdict(front)}, runtime_env={"working_dir": ingress.uri(env)}
    )
    return ServeConfig(applications=(application,))


def text(config: ServeConfig) -> str:
    """YAML of the whole, keys in the order of the fields."""
    return yaml.safe_dump(_plain(asdict(config)), sort_keys=False, default_flow_style=False, width=1000)


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
