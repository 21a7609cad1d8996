"""Size of the models that the project trains, where it is known: what decides which GPU holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from config.environment import Environment

GIB = 1 << 30


@dataclass(frozen=True)
class BaseModel:
    """A model's parameters (vision tower included), and the shape of its language model."""

    name: str
    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocabulary: int

    @property
    def engine_weights_gib(self) -> float:
        """Weights in the inference engine, in GiB: bf16, two bytes a parameter."""
        return 2 * self.parameters / GIB

    @property
    def training_weights_gib(self) -> float:
        """Weights of the policy, in GiB: SkyRL keeps them in fp32 (`bf16=False`), four bytes a parameter."""
        return 4 * self.parameters / GIB

    @property
    def linears(self) -> Sequence[tuple[int, int]]:
        """Inputs and outputs of each linear layer of one decoder layer: q, k, v, o, gate, up, down."""
        attention, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        hidden, inner = self.hidden_size, self.intermediate_size
        return ((hidden, attention), (hidden, keys), (hidden, keys), (attention, hidden), (hidden, inner), (hidden, inner), (inner, hidden))

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of a LoRA adapter on every linear layer of the language model: `rank * (inputs + outputs)` each."""
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in self.linears)

    def cache_gib(self, tokens: int) -> float:
        """Key-value cache of one sequence in bf16, in GiB."""
        return tokens * self.layers * 2 * self.kv_heads * self.head_size * 2 / GIB


# Keyed by repository and folder, as an environment names them. Parameters were counted on the model's class (transformers),
# its shape is that of https://huggingface.co/Qwen/Qwen3-VL-8B-Instruct/blob/main/config.json.
BASE_MODELS: Mapping[tuple[str, str], BaseModel] = MappingProxyType(
    {("VisGym/visgym_model", "mixed_qwen3vl"): BaseModel(
        "Qwen3-VL-8B", parameters=8_767_123_696, layers=36, heads=32, kv_heads=8, head_size=128, hidden_size=4096,
        intermediate_size=12_288, vocabulary=151_936,
    )}
)  # fmt: skip


def of(env: Environment) -> BaseModel | None:
    """The base model of an environment, or None where its size is not known."""
    return BASE_MODELS.get((env.training.base_model_repository, env.training.base_model_subfolder))
