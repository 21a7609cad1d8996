"""The stand-in's policy behind the endpoint: a picture in, an utterance out; adapters loaded from S3 when first asked for.

Ray's habits are kept (https://docs.ray.io/en/latest/serve/llm/, ray.llm._internal.serve, 2.57.0): an adapter is looked for as
`<path>/<adapter>/adapter_config.json`, held for the replica's life, whatever becomes of its objects, and a rank above the
engine's is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from local.trainer import shared
from local.trainer.policy import SHAPES, WORDS, Lora, Weights, forward, log_softmax, merged, pool
from local.trainer.rollout import utterance
from training.pictures import pixels

PICTURE: Final = (225, 225, 3)
_TENSOR: Final = ("base_model.model.", ".weight")


class Rejected(Exception):
    """A request that is refused, with the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def base_weights(source: str) -> dict[str, NDArray[Any]]:
    """The base model below /shared, which is read only here. Raises ValueError where there is none."""
    from local.trainer.pretrain import base_model

    folder = shared.on_this_machine(source)
    if not folder.exists():
        raise ValueError(f"there is no base model at {source}: the stand-in trainer makes it when it first runs")
    return base_model(folder)[0]


def picture(content: bytes) -> NDArray[np.uint8]:
    """A PNG as 225 x 225 x 3 bytes. Raises Rejected."""
    try:
        found = pixels(content)
    except ValueError as error:
        raise Rejected(400, f"an image cannot be read: {error}") from error
    if found.shape != PICTURE:
        raise Rejected(400, f"the stand-in's policy sees pictures of {PICTURE[0]} x {PICTURE[1]} pixels, this one has {found.shape[1::-1]}")
    return found


@dataclass
class Adapters:
    """The adapters of one S3 folder. Safe from any thread. `client` is a boto3 S3 client; made with the pod's credentials else."""

    path: str
    base: Weights
    max_rank: int
    client: Any = None
    _held: dict[str, Weights] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def weights(self, adapter: str) -> Weights:
        """The base model with this adapter ('' for the base alone). Raises Rejected: unknown, unreadable, too high a rank."""
        if not adapter:
            return self.base
        with self._lock:
            if adapter not in self._held:
                self._held[adapter] = self._load(adapter)
            return self._held[adapter]

    def names(self) -> list[str]:
        """Sub-folders that hold an adapter's configuration."""
        pages = self._s3().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        keys = [str(item["Key"]).removeprefix(self._prefix) for page in pages for item in page.get("Contents", ())]
        return sorted(Path(key).parent.name for key in keys if Path(key).name == "adapter_config.json" and key.count("/") == 1)

    def _load(self, adapter: str) -> Weights:
        config_bytes = self._object(f"{adapter}/adapter_config.json")
        if config_bytes is None:
            raise Rejected(404, f"there is no adapter {adapter}")
        tensors = self._object(f"{adapter}/adapter_model.safetensors")
        if tensors is None:
            raise Rejected(404, f"the adapter {adapter} has no weights")
        try:
            config = json.loads(config_bytes)
            lora = Lora(int(config["r"]), int(config["lora_alpha"]))
            found = {name.removeprefix(_TENSOR[0]).removesuffix(_TENSOR[1]): value for name, value in shared.read_tensors(tensors).items()}
        except Exception as error:
            raise Rejected(400, f"the adapter {adapter} cannot be read: {error}") from error
        if lora.rank > self.max_rank:
            raise Rejected(400, f"the adapter {adapter} has rank {lora.rank}, above max_lora_rank {self.max_rank}")
        wanted = _shapes(lora)
        if {name: value.shape for name, value in found.items()} != wanted:
            raise Rejected(400, f"the adapter {adapter} does not fit the base model")
        return merged(self.base, found, lora)

    def _object(self, name: str) -> bytes | None:
        from botocore.exceptions import ClientError

        try:
            body: bytes = self._s3().get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        except ClientError as error:
            # To a role that may list below a prefix only, S3 says 403 for a key that is missing.
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in (403, 404):
                return None
            raise
        return body

    @property
    def _bucket(self) -> str:
        return urlsplit(self.path).netloc

    @property
    def _prefix(self) -> str:
        return urlsplit(self.path).path.strip("/") + "/"

    def _s3(self) -> Any:
        if self.client is None:
            import boto3

            self.client = boto3.client("s3")
        return self.client


def _shapes(lora: Lora) -> Mapping[str, tuple[int, ...]]:
    matrices = {name: shape for name, shape in SHAPES.items() if len(shape) == 2}
    return {
        **{f"{name}.lora_A": (lora.rank, shape[1]) for name, shape in matrices.items()},
        **{f"{name}.lora_B": (shape[0], lora.rank) for name, shape in matrices.items()},
    }


def say(weights: Weights, image: NDArray[np.uint8], *, temperature: float, seed: int | None) -> str:
    """What the policy says to a picture: its likeliest word at temperature 0, else one drawn."""
    logits = forward(weights, pool(image)[None]).logits[0].astype(np.float64)
    if temperature <= 0:
        return utterance(int(logits.argmax()))
    chances = np.exp(log_softmax(logits / temperature))
    return utterance(int(np.random.default_rng(seed).choice(len(WORDS), p=chances / chances.sum())))
