"""Whether the GPUs hold the run: the policy's steps (from measurements), the engine's weights and cache (inferred)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from config import engine_memory
from config.engine_memory import CONTEXT_GIB
from config.engine_memory import OVERHEAD_GIB as ENGINE_OVERHEAD_GIB
from config.problems import Problem
from training.preflight.findings import Rule, Subject
from training.preflight.memory import Peak, Step, peak
from training.skyrl_settings import ENGINE, PLACE

TRAIN: Final = "trainer.micro_train_batch_size_per_gpu"
FORWARD: Final = "trainer.micro_forward_batch_size_per_gpu"
# The wider margin of what nobody has measured: a tenth of the GPU.
INFERRED_MARGIN: Final = 0.10


def step(subject: Subject, *, backward: bool) -> Step | None:
    """The pass over one micro batch that this run makes; None where it cannot be computed (unknown model, Megatron)."""
    settings = subject.settings
    if subject.model is None or settings["trainer.strategy"] != "fsdp" or not subject.gpu_gib:
        return None
    tokens, micro_batch = settings.longest, int(settings[TRAIN if backward else FORWARD])
    budget = int(settings["trainer.max_tokens_per_microbatch"])
    if budget > 0:  # micro batches by tokens: as many sequences as the budget takes, one at least
        micro_batch = max(1, budget // tokens)
    return Step(
        model=subject.model, gpus=settings.policy_gpus, tokens=tokens, micro_batch=micro_batch,
        rank=int(settings["trainer.policy.model.lora.rank"]), chunk=settings["trainer.logprobs_chunk_size"], backward=backward,
        checkpointing=bool(settings["trainer.gradient_checkpointing"]),
        sequence_parallel=int(settings["trainer.policy.sequence_parallel_size"]),
        offloaded=bool(settings["trainer.policy.fsdp_config.cpu_offload"]),
    )  # fmt: skip


def colocated(subject: Subject) -> bool:
    """Whether a sleeping engine shares the policy's GPUs."""
    return bool(subject.settings[f"{PLACE}colocate_all"])


def fits(subject: Subject, what: Step) -> bool:
    """Whether a pass fits a GPU, with the margins of a plan."""
    margin = INFERRED_MARGIN * subject.gpu_gib if what.inferred else 0.0
    return peak(what).planned(colocated=colocated(subject)) + margin <= subject.gpu_gib


def micro_batches(subject: Subject, *, backward: bool) -> Sequence[int]:
    """The micro batches that one may choose from: divisors of the samples of an optimizer step and GPU."""
    samples = subject.settings.mini_per_gpu
    return [size for size in range(1, samples + 1) if samples % size == 0] if backward else [1, 2, 4, 8, 16, 32, 64]


def largest(subject: Subject, *, backward: bool) -> Step | None:
    """The largest micro batch that fits; None if not even one sequence does."""
    this = step(subject, backward=backward)
    if this is None:
        return None
    sizes = [size for size in micro_batches(subject, backward=backward) if fits(subject, replace(this, micro_batch=size))]
    return replace(this, micro_batch=max(sizes)) if sizes else None


def longest(subject: Subject, *, backward: bool) -> int:
    """The longest conversation that fits at micro batch 1, in tokens, rounded down to 64; 0 if none does."""
    this = step(subject, backward=backward)
    if this is None:
        return 0
    low, high = 0, 1 << 14  # in units of 64 tokens
    while low < high:
        middle = (low + high + 1) // 2
        if fits(subject, replace(this, micro_batch=1, tokens=64 * middle)):
            low = middle
        else:
            high = middle - 1
    return 64 * low


def _pass_fits(subject: Subject, *, backward: bool) -> Iterator[Problem]:
    this = step(subject, backward=backward)
    if this is None or fits(subject, this):
        return
    need = peak(this)
    key, what = (TRAIN, "a training step") if backward else (FORWARD, "a pass that computes log-probabilities")
    best = largest(subject, backward=backward)
    if best is not None and best.micro_batch < this.micro_batch:
        fix = f"the largest that fits is {key}={best.micro_batch}"
    elif tokens := longest(subject, backward=backward):
        fix = (
            f"at micro batch 1 the longest conversation that fits is {tokens} tokens: lower generator.max_input_length to "
            f"{tokens - int(subject.settings['generator.sampling_params.max_generate_length'])} or less, or use GPUs with more memory"
        )
    else:
        fix = "the weights alone do not fit: use more GPUs, or GPUs with more memory"
    planned = need.planned(colocated=colocated(subject))
    yield Problem(key, str(this.micro_batch), f"{what} of {this.tokens} tokens needs {planned:.1f} GiB, {subject.gpu}", fix)


def training_step_fits(subject: Subject) -> Iterator[Problem]:
    """The largest step: forward and backward over one micro batch of the longest conversations."""
    yield from _pass_fits(subject, backward=True)


def forward_pass_fits(subject: Subject) -> Iterator[Problem]:
    """Log-probabilities of the old policy, without a backward pass."""
    yield from _pass_fits(subject, backward=False)


@dataclass(frozen=True)
class EngineMemory:
    """What one GPU of a rollout engine holds, in GiB; all of it inferred."""

    share: float
    budget: float
    weights: float
    sequence: float
    tokens: int

    @property
    def cache(self) -> float:
        """What is left for the key-value cache."""
        return self.budget - self.weights - ENGINE_OVERHEAD_GIB

    @property
    def sequences(self) -> int:
        """How many of the longest conversations the cache holds at once."""
        return max(0, int(self.cache // self.sequence)) if self.sequence else 0

    def formula(self) -> str:
        """The arithmetic on one line."""
        return (
            f"{self.share:g} of the GPU = {self.budget:.1f} GiB - {self.weights:.1f} weights (2 bytes x parameters / tensor parallel size)"
            f" - {ENGINE_OVERHEAD_GIB:g} overhead = {self.cache:.1f} GiB of cache = {self.sequences} conversations of {self.tokens} tokens"
            f" ({self.sequence:.2f} GiB each); inferred"
        )


def engine_shards(subject: Subject) -> int:
    """GPUs over which one copy of the engine's weights is spread."""
    return int(subject.settings[f"{ENGINE}tensor_parallel_size"] * subject.settings[f"{ENGINE}pipeline_parallel_size"])


def engine(subject: Subject) -> EngineMemory | None:
    """Memory of the rollout engine on one GPU; None where it cannot be computed."""
    settings, model = subject.settings, subject.model
    if model is None or not subject.gpu_gib or not settings[f"{ENGINE}run_engines_locally"]:
        return None
    shards = engine_shards(subject)
    share = float(settings[f"{ENGINE}gpu_memory_utilization"])
    tokens = settings.longest
    return EngineMemory(
        share=share, budget=share * subject.gpu_gib, weights=model.engine_weights_gib / shards,
        sequence=model.cache_gib(tokens) / shards, tokens=tokens,
    )  # fmt: skip


def _share_for(subject: Subject, memory: EngineMemory, sequences: int) -> float:
    need = memory.weights + ENGINE_OVERHEAD_GIB + sequences * memory.sequence
    return engine_memory.smallest_share(need, subject.gpu_gib)


def _largest_share(subject: Subject) -> float:
    return engine_memory.largest_share(subject.gpu_gib, colocated=colocated(subject))


def engine_holds_a_conversation(subject: Subject) -> Iterator[Problem]:
    """vLLM ends at its start if the cache cannot hold one sequence of the longest length."""
    memory, model = engine(subject), subject.model
    if memory is None or model is None:
        return
    # vLLM looks at the longest sequence that it accepts, not at the longest that comes.
    accepted = subject.settings[f"{ENGINE}engine_init_kwargs.max_model_len"]
    tokens = max(memory.tokens, accepted if isinstance(accepted, int) else 0)
    shards = engine_shards(subject)
    need = engine_memory.need_gib(model, tokens=tokens, shards=shards)
    if need <= memory.share * subject.gpu_gib:
        return
    wanted = engine_memory.smallest_share(need, subject.gpu_gib)
    fix = f"set at least {wanted:.2f}" if wanted <= _largest_share(subject) else f"shard the engine with {ENGINE}tensor_parallel_size"
    yield Problem(
        f"{ENGINE}gpu_memory_utilization", f"{memory.share:g}",
        f"{memory.budget:.1f} GiB hold no conversation of {tokens} tokens beside {memory.weights:.1f} GiB of weights", fix,
    )  # fmt: skip


def engine_holds_a_group(subject: Subject) -> Iterator[Problem]:
    """With a cache smaller than one prompt's samples the engine throws out sequences and computes them again."""
    memory, samples = engine(subject), subject.settings.samples
    if memory is None or not 1 <= memory.sequences < samples:
        return
    wanted, most = _share_for(subject, memory, samples), _largest_share(subject)
    yield Problem(
        f"{ENGINE}gpu_memory_utilization", f"{memory.share:g}",
        f"the cache holds {memory.sequences} of the {samples} conversations of one prompt at their longest, so rollouts wait",
        f"{wanted:.2f} holds them all" if wanted <= most else f"no share holds them all; the largest that fits is {most:.2f}",
    )  # fmt: skip


def engine_leaves_the_rest(subject: Subject) -> Iterator[Problem]:
    """Beside the engine's share stands what no share holds: CUDA's own memory, and what a sleeping trainer keeps."""
    memory = engine(subject)
    if memory is None or memory.share <= (most := _largest_share(subject)):
        return
    kept = "the sleeping trainer keeps its CUDA context and buffers there" if colocated(subject) else "CUDA itself needs some"
    yield Problem(
        f"{ENGINE}gpu_memory_utilization", f"{memory.share:g}",
        f"it leaves {max(0.0, subject.gpu_gib - memory.budget):.1f} GiB of the GPU, and {kept}", f"set at most {most:.2f}",
    )  # fmt: skip


def engine_leaves_a_margin(subject: Subject) -> Iterator[Problem]:
    """The rollout phase was never measured, so it gets the wider margin; a share within it may still work."""
    memory = engine(subject)
    if memory is None or not colocated(subject) or memory.share > _largest_share(subject):
        return
    need = memory.budget + CONTEXT_GIB + INFERRED_MARGIN * subject.gpu_gib
    if need > subject.gpu_gib:
        yield Problem(
            f"{ENGINE}gpu_memory_utilization", f"{memory.share:g}",
            f"{memory.budget:.1f} GiB + {CONTEXT_GIB:g} of the trainer's CUDA context + {INFERRED_MARGIN * subject.gpu_gib:.1f} margin"
            f" = {need:.1f} GiB, {subject.gpu}", "watch the first rollout, or lower it",
        )  # fmt: skip


def weights_meet_on_the_gpu(subject: Subject) -> Iterator[Problem]:
    """While weights go from policy to engine, both stand on a colocated GPU; the cache is woken after that."""
    memory, this = engine(subject), step(subject, backward=False)
    if memory is None or this is None or not colocated(subject):
        return
    need = peak(this).weights + memory.weights + ENGINE_OVERHEAD_GIB + INFERRED_MARGIN * subject.gpu_gib
    if need > subject.gpu_gib:
        yield Problem(
            f"{PLACE}colocate_all", "true", f"the policy's shard and the engine's weights need {need:.1f} GiB together, {subject.gpu}",
            "use more GPUs, or shard the engine with tensor_parallel_size",
        )  # fmt: skip


def memory_is_checked(subject: Subject) -> Iterator[Problem]:
    """Says so where the memory of a step is not computed."""
    if subject.environment.local or step(subject, backward=True) is not None:
        return
    if subject.model is None:
        yield Problem(
            "training.base_model_repository", subject.environment.training.base_model_repository,
            "the size of this model is not known, so GPU memory and disk are not checked", "add it to config/base_models.py",
        )  # fmt: skip
    else:
        value = str(subject.settings["trainer.strategy"])
        yield Problem("trainer.strategy", value, "GPU memory is computed for fsdp only and was not checked", "watch the first step")


def peaks(subject: Subject) -> Iterator[tuple[str, Peak]]:
    """The two passes of this run, named."""
    for name, backward in (("training step", True), ("log-probabilities", False)):
        if (this := step(subject, backward=backward)) is not None:
            yield name, peak(this)


RULES: Final = (
    Rule("training-step-fits-gpu", "error", training_step_fits),
    Rule("forward-pass-fits-gpu", "error", forward_pass_fits),
    Rule("engine-holds-a-conversation", "error", engine_holds_a_conversation, inferred=True),
    Rule("engine-holds-a-group", "warning", engine_holds_a_group, inferred=True),
    Rule("engine-leaves-the-rest", "error", engine_leaves_the_rest, inferred=True),
    Rule("engine-leaves-a-margin", "warning", engine_leaves_a_margin, inferred=True),
    Rule("weights-meet-on-the-gpu", "error", weights_meet_on_the_gpu, inferred=True),
    Rule("memory-is-checked", "warning", memory_is_checked),
)
