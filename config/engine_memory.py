"""What one GPU of an inference engine needs: one rule for what synth refuses and for what preflight refuses.

All of it is inferred, not measured, apart from the weights.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Final

from config.base_models import BaseModel

# What vLLM needs beside weights and cache: activations of its profiling run, CUDA graphs, the adapter's slots.
OVERHEAD_GIB: Final = 3.0
# CUDA's and NCCL's own memory of one process, which no engine's share holds: the engine's own, or the sleeping trainer's.
CONTEXT_GIB: Final = 1.0
# What a trainer that sleeps on the same GPU keeps beside that (buffers that PyTorch and NCCL do not give back).
SLEEPING_TRAINER_SHARE: Final = 0.05


def need_gib(model: BaseModel, *, tokens: int, shards: int, sequences: int = 1, overhead: float = OVERHEAD_GIB) -> float:
    """Memory of an engine on one GPU, in GiB, with a cache of so many sequences of `tokens`. With less vLLM ends at its start.

    Synth leaves the overhead out, which is inferred: on its word a platform is not built at all. Preflight asks with it, before each run,
    where `--set` changes the share.
    """
    return (model.engine_weights_gib + sequences * model.cache_gib(tokens)) / shards + overhead


def largest_share(gpu_gib: float, *, colocated: bool) -> float:
    """The largest share of a GPU that an engine can take (vLLM's gpu_memory_utilization), rounded down to hundredths."""
    return floor(100 * (1 - CONTEXT_GIB / gpu_gib - (SLEEPING_TRAINER_SHARE if colocated else 0.0))) / 100


def smallest_share(need: float, gpu_gib: float) -> float:
    """The smallest share of a GPU that holds so many GiB, rounded up to hundredths: as it is written, it passes."""
    return ceil(100 * need / gpu_gib) / 100
