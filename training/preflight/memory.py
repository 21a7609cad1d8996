"""GPU memory of one training step of a LoRA policy under FSDP, per GPU: what stands, what is gathered, what a token costs.

Measured on NVIDIA H200s (1 and 2 GPUs) with the shape of Qwen3-VL-8B, LoRA rank 32 on every linear layer of the language model,
FSDP2 with one unit a layer, fp32 shards and bf16 compute, AdamW, gradient checkpointing, PyTorch 2.11, transformers 5.17, peak
*allocated* memory, 4,096 to 73,728 tokens a micro batch. The formula stays within 1 % of every measured row (a test holds them).

No constant of the step's peak is fitted; each term follows from the model's dimensions and from what PyTorch holds at that moment,
and leaving any row out changes none. The moment is the language-model head, not a decoder layer: SkyRL's forward pass makes bf16
logits of all tokens, and only what follows works in chunks of the sequence (skyrl/backends/skyrl_train/workers/model_wrapper.py,
skyrl 0.3.0). Bytes a token and vocabulary entry, as the slopes of the rows show (the reading of them is inferred, not profiled):

- chunked, with backward, 6: bf16 logits, their gradient as far as it is summed up, and the next chunk's, which the backward pass of a
  slice makes as long as the whole; beside them one chunk of every sequence of the micro batch in fp32.
- at once, with backward, 12: bf16 logits, fp32 log-probabilities and their gradient, and that in bf16.
- chunked, without backward, 2: bf16 logits; beside them a chunk in fp32 and its log-probabilities.
- at once, without backward, 8: the six that it adds with a backward pass. No row measured it, so it counts as inferred.

What is saved for the backward pass is the bf16 input of each layer. The root's unit (embedding and head) stays gathered in bf16, and
the last layer is gathered ahead of its backward pass. A layer's own need was counted with PyTorch's FakeTensorMode on transformers'
Qwen3VLTextModel under PEFT; it decides only for models with a small vocabulary. Pictures count by their tokens: the vision tower is
frozen, so nothing of it is saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from config.base_models import GIB, BaseModel
from config.engine_memory import CONTEXT_GIB

# Bytes a token and vocabulary entry: (chunked, at once), with and without a backward pass.
_HEAD_TRAIN: Final = (6, 12)
_HEAD_FORWARD: Final = (2, 8)
# Bytes an entry of one chunk of logits of every sequence, with and without a backward pass.
_CHUNK_TRAIN, _CHUNK_FORWARD = 4, 8
# How often the outputs of one layer's linears are held in bf16 while it is recomputed and differentiated, or only computed.
_LAYER_TRAIN, _LAYER_FORWARD = 3.8, 1.6
# What one layer saves for its backward pass where nothing is recomputed: the same count. Inferred, not measured.
_LAYER_SAVED: Final = 2.9
# PyTorch reserves more than it has allocated (fragmentation): measured 1 to 13 GiB, growing with the activations.
_RESERVED_FIXED_GIB, _RESERVED_SHARE = 1.0, 0.14
# What a sleeping vLLM keeps (context, graphs). Inferred, not measured.
_SLEEPING_ENGINE_GIB = 2.0


@dataclass(frozen=True)
class Step:
    """One pass over one micro batch on each GPU.

    Attributes:
        model: what is trained.
        gpus: over which FSDP shards the weights.
        tokens: tokens of a sequence, padded to the longest.
        micro_batch: sequences at once on each GPU.
        rank: rank of the LoRA adapter; 0 trains every weight (inferred, not measured).
        chunk: tokens of a chunk of log-probabilities; None computes them at once from fp32 logits.
        backward: False for a pass that only computes log-probabilities.
        checkpointing: whether layers are recomputed in the backward pass (False is inferred, not measured).
        sequence_parallel: GPUs that share one sequence (above 1 is inferred, not measured).
        offloaded: whether shards stand in host memory between layers (inferred, not measured).
    """

    model: BaseModel
    gpus: int
    tokens: int
    micro_batch: int
    rank: int = 32
    chunk: int | None = 1024
    backward: bool = True
    checkpointing: bool = True
    sequence_parallel: int = 1
    offloaded: bool = False

    @property
    def inferred(self) -> bool:
        """Whether something of it was never measured."""
        at_once = self.chunk is None and not self.backward
        return self.rank == 0 or not self.checkpointing or self.sequence_parallel > 1 or self.offloaded or at_once


@dataclass(frozen=True)
class Peak:
    """Allocated memory of one GPU at its highest, in GiB, by what it is for."""

    step: Step
    weights: float
    optimizer: float
    gathered: float
    activations: float

    @property
    def static(self) -> float:
        """What stands between steps."""
        return self.weights

    @property
    def total(self) -> float:
        """The peak."""
        return self.weights + self.optimizer + self.gathered + self.activations

    @property
    def reserved_margin(self) -> float:
        """What PyTorch's allocator may hold above the peak."""
        return _RESERVED_FIXED_GIB + _RESERVED_SHARE * (self.gathered + self.activations)

    def planned(self, *, colocated: bool) -> float:
        """What a plan sets aside: the peak, the allocator's margin, CUDA's own memory, and a sleeping engine where there is one."""
        return self.total + self.reserved_margin + CONTEXT_GIB + (_SLEEPING_ENGINE_GIB if colocated else 0.0)

    def formula(self, *, colocated: bool) -> str:
        """The arithmetic on one line."""
        step, engine = self.step, f" + {_SLEEPING_ENGINE_GIB:g} sleeping engine" if colocated else ""
        return (
            f"{self.weights:.1f} weights (4 bytes x parameters / {step.gpus} GPUs) + {self.optimizer:.1f} optimizer and gradients"
            f" + {self.gathered:.1f} gathered layers + {self.activations:.1f} activations ({step.micro_batch} x {step.tokens} tokens)"
            f" = {self.total:.1f} GiB; + {self.reserved_margin:.1f} fragmentation + {CONTEXT_GIB:g} CUDA{engine}"
            f" = {self.planned(colocated=colocated):.1f} GiB"
        )


def peak(step: Step) -> Peak:
    """Predict the peak of one pass."""
    model = step.model
    trained = model.adapter_parameters(step.rank) if step.rank else model.parameters
    held = model.parameters + (trained if step.rank else 0)
    share = 0.0 if step.offloaded else 1 / step.gpus
    tokens = step.tokens * step.micro_batch / step.sequence_parallel
    outputs = sum(outputs for _, outputs in model.linears)

    # Embedding and head belong to FSDP's root unit, which stays gathered in bf16.
    root = 2 * 2 * model.vocabulary * model.hidden_size
    layer = 2 * sum(inputs * outs for inputs, outs in model.linears)
    saved = 0.0
    if step.backward:
        saved = model.layers * 2 * (model.hidden_size if step.checkpointing else _LAYER_SAVED * outputs)
    per_entry = (_HEAD_TRAIN if step.backward else _HEAD_FORWARD)[step.chunk is None]
    in_head = saved + per_entry * model.vocabulary
    chunk = 0.0
    if step.chunk:
        chunked = step.micro_batch * min(step.chunk, step.tokens / step.sequence_parallel)
        chunk = (_CHUNK_TRAIN if step.backward else _CHUNK_FORWARD) * model.vocabulary * chunked
    in_layer = saved + (_LAYER_TRAIN if step.backward else _LAYER_FORWARD) * 2 * outputs
    head = root + layer, chunk + tokens * in_head
    # While one layer computes, the next is gathered.
    body = root + 2 * layer, tokens * in_layer
    gathered, activations = max(head, body, key=sum)
    # Gradient and AdamW's two moments, fp32; between steps the gradient is gone.
    states = 12 if step.backward else 8
    return Peak(
        step=step,
        weights=4 * held * share / GIB,
        optimizer=states * trained * share / GIB,
        gathered=gathered / GIB,
        activations=activations / GIB,
    )
