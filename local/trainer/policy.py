"""The policy: a value-iteration network of a few hundred weights that sees the maze's picture and nothing else.

Input is the 225 x 225 x 3 picture, average-pooled to one colour per 25 x 25 block. One layer encodes each colour; from the code
come a reward map r, a propagation map p (both between 0 and 1) and an attention map. Value spreads over the picture by
`sweeps` rounds of v <- max(v, r + p (max over the four neighbours of v - r)) (MVProp, Nardelli et al., "Value Propagation
Networks", https://arxiv.org/abs/1805.11199). Where attention looks, the 3 x 3 values and the code are read out, and two
small layers name one of six words. Which colours attract, block, or are the agent is learned. All in numpy; the backward
pass is written out and checked against finite differences.

Adapters have LoRA's shape (https://arxiv.org/abs/2106.09685): each matrix W of `MATRICES` becomes W + alpha / r * B A with
the base frozen. Arrays are float32 unless the weights are of another type; N states are one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.maze import PIXELS, SIDE, Maze, Square

Floats = NDArray[Any]
Weights = Mapping[str, Floats]

WORDS: Final = ("('move', 0)", "('move', 1)", "('move', 2)", "('move', 3)", "('stop', 'stop')", "")
"""What the policy can say. The last is an utterance that the environment cannot parse: format has to be learned too."""

HIDDEN: Final = 16  # channels of the code
PATCH: Final = 9  # values read out: the square and its neighbours
READOUT: Final = 24
SWEEPS: Final = 20

SHAPES: Final[Mapping[str, tuple[int, ...]]] = {
    "encoder": (HIDDEN, 3),
    "encoder_bias": (HIDDEN,),
    "maps": (3, HIDDEN),  # reward, propagation, attention
    "maps_bias": (3,),
    "readout": (READOUT, PATCH + HIDDEN),
    "readout_bias": (READOUT,),
    "head": (len(WORDS), READOUT),
    "head_bias": (len(WORDS),),
}
MATRICES: Final = tuple(name for name, shape in SHAPES.items() if len(shape) == 2)
_SQUARES: Final = SIDE * SIDE
_SHARPNESS: Final = 4.0  # of the attention, so that it singles out one square early
_EPSILON: Final = 1e-8


def initial_weights(rng: np.random.Generator) -> dict[str, Floats]:
    """Random weights of He's scale. The maps start flat, with little reward and far propagation everywhere: a random
    start whose walls carry value better than floors does not find its way back."""
    weights: dict[str, Floats] = {}
    for name, shape in SHAPES.items():
        scale = 0.0 if len(shape) == 1 or name == "maps" else np.sqrt(2.0 / shape[1])
        weights[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
    weights["maps_bias"][:2] = (-2.0, 2.0)
    return weights


def pool(picture: NDArray[np.uint8]) -> Floats:
    """Mean colour of every 25 x 25 block of a picture (any number of blocks), between -1 and 1: channels x rows x columns.

    Sums of bytes are exact, so that the mean depends neither on the order of additions nor on the size of the picture.
    """
    rows, columns, channels = picture.shape
    blocks = picture.reshape(rows // PIXELS, PIXELS, columns // PIXELS, PIXELS, channels)
    sums = blocks.sum(axis=(1, 3), dtype=np.uint32).astype(np.float32)
    return np.ascontiguousarray((sums / np.float32(PIXELS * PIXELS * 127.5) - np.float32(1.0)).transpose(2, 0, 1))


@lru_cache(maxsize=65536)
def observe(maze: Maze, agent: Square) -> Floats:
    """`pool(maze.picture(agent))`, the policy's only input: 3 x 9 x 9.

    States of one maze differ in the agent's block alone, so only that block is drawn and pooled anew.
    """
    pooled = _empty_maze(maze).copy()
    pooled[:, agent[0], agent[1]] = pool(maze.block(agent, agent=True))[:, 0, 0]
    return pooled


@lru_cache(maxsize=1024)
def _empty_maze(maze: Maze) -> Floats:
    return pool(maze.picture(None))


@dataclass
class Trace:
    """What the forward pass leaves for the backward pass. S is the number of squares of the picture."""

    columns: Floats  # 3 x NS, the encoder's input
    code: Floats  # HIDDEN x NS, after relu
    maps: Floats  # 3 x N x 9 x 9, logits of reward, propagation, attention
    reward: Floats  # N x 9 x 9
    propagation: Floats  # N x 9 x 9
    values: list[Floats]  # one N x 9 x 9 per sweep, before it
    patches: Floats  # PATCH x N x S, the last values
    attention: Floats  # N x S
    spread: Floats  # N, standard deviation of the values read out
    features: Floats  # (PATCH + HIDDEN) x N
    hidden: Floats  # READOUT x N, after relu
    logits: Floats  # N x words


def _unfold(maps: Floats) -> Floats:
    """C x N x 9 x 9 -> (9 C) x (N S): every square with its eight neighbours, zeros outside."""
    channels, count = maps.shape[:2]
    padded = np.zeros((channels, count, SIDE + 2, SIDE + 2), maps.dtype)
    padded[:, :, 1:-1, 1:-1] = maps
    columns = np.empty((channels, 9, count, SIDE, SIDE), maps.dtype)
    for offset in range(9):
        row, column = divmod(offset, 3)
        columns[:, offset] = padded[:, :, row : row + SIDE, column : column + SIDE]
    return columns.reshape(channels * 9, count * _SQUARES)


def _fold(columns: Floats, count: int) -> Floats:
    """9 x (N S) -> N x 9 x 9: the transpose of `_unfold` for one channel."""
    parts = columns.reshape(9, count, SIDE, SIDE)
    padded = np.zeros((count, SIDE + 2, SIDE + 2), columns.dtype)
    for offset in range(9):
        row, column = divmod(offset, 3)
        padded[:, row : row + SIDE, column : column + SIDE] += parts[offset]
    return padded[:, 1:-1, 1:-1]


def _neighbours(value: Floats) -> tuple[Floats, ...]:
    """The value right of, above, left of and below every square; zeros outside."""
    padded = np.zeros((len(value), SIDE + 2, SIDE + 2), value.dtype)
    padded[:, 1:-1, 1:-1] = value
    return padded[:, 1:-1, 2:], padded[:, :-2, 1:-1], padded[:, 1:-1, :-2], padded[:, 2:, 1:-1]


def _best_neighbour(value: Floats) -> Floats:
    right, above, left, below = _neighbours(value)
    return np.maximum(np.maximum(right, left), np.maximum(above, below))


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))


def forward(weights: Weights, inputs: Floats, *, sweeps: int = SWEEPS) -> Trace:
    """Logits of N states.

    Args:
        weights: by the names of `SHAPES`.
        inputs: N x 3 x 9 x 9, from `observe`.
    """
    count = len(inputs)
    columns = np.ascontiguousarray(inputs.transpose(1, 0, 2, 3)).reshape(3, count * _SQUARES)
    code = np.maximum(weights["encoder"] @ columns + weights["encoder_bias"][:, None], 0)
    maps = (weights["maps"] @ code + weights["maps_bias"][:, None]).reshape(3, count, SIDE, SIDE)
    reward, propagation = _sigmoid(maps[0]), _sigmoid(maps[1])
    value, values = reward, []
    for _ in range(sweeps):
        values.append(value)
        value = np.maximum(value, reward + propagation * (_best_neighbour(value) - reward))
    scores = code.dtype.type(_SHARPNESS) * maps[2].reshape(count, _SQUARES)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    attention = scores / scores.sum(axis=1, keepdims=True)
    patches = _unfold(value[None]).reshape(PATCH, count, _SQUARES)
    read = np.einsum("cns,ns->cn", patches, attention)
    # Values shrink with the distance to the goal; only which neighbour is best matters, so they are standardised.
    centred = read - read.mean(axis=0)
    spread = np.sqrt((centred * centred).mean(axis=0) + code.dtype.type(_EPSILON))
    around = np.einsum("cns,ns->cn", code.reshape(HIDDEN, count, _SQUARES), attention)
    features = np.concatenate([centred / spread, around])
    hidden = np.maximum(weights["readout"] @ features + weights["readout_bias"][:, None], 0)
    logits = np.ascontiguousarray((weights["head"] @ hidden + weights["head_bias"][:, None]).T)
    return Trace(
        columns, code, maps, reward, propagation, values, patches, attention, spread, features, hidden, logits
    )  # fmt: skip


def backward(weights: Weights, trace: Trace, slope: Floats, map_slope: Floats | None = None) -> dict[str, Floats]:
    """Gradient of a loss by every weight.

    Args:
        slope: N x words, the loss's gradient by the logits.
        map_slope: 3 x N x 9 x 9, its gradient by the maps' logits, when the loss looks at them too.
    """
    count = len(slope)
    gradient: dict[str, Floats] = {}
    gradient["head"] = slope.T @ trace.hidden.T
    gradient["head_bias"] = slope.sum(axis=0)
    hidden = (weights["head"].T @ slope.T) * (trace.hidden > 0)
    gradient["readout"] = hidden @ trace.features.T
    gradient["readout_bias"] = hidden.sum(axis=1)
    features = weights["readout"].T @ hidden
    standard, by_standard, by_around = trace.features[:PATCH], features[:PATCH], features[PATCH:]
    along = (by_standard * standard).mean(axis=0)
    by_read = (by_standard - by_standard.mean(axis=0) - standard * along) / trace.spread

    code_maps = trace.code.reshape(HIDDEN, count, _SQUARES)
    by_attention = np.einsum("cns,cn->ns", trace.patches, by_read) + np.einsum("cns,cn->ns", code_maps, by_around)
    centred = by_attention - (by_attention * trace.attention).sum(axis=1, keepdims=True)
    by_maps = np.empty((3, count, SIDE, SIDE), slope.dtype)
    by_maps[2] = (slope.dtype.type(_SHARPNESS) * trace.attention * centred).reshape(count, SIDE, SIDE)

    value = _fold((by_read[:, :, None] * trace.attention).reshape(PATCH, -1), count)
    reward, propagation = np.zeros_like(value), np.zeros_like(value)
    for before in reversed(trace.values):
        best = _best_neighbour(before)
        moved = np.where(trace.reward + trace.propagation * (best - trace.reward) > before, value, 0)
        reward += moved * (1 - trace.propagation)
        propagation += moved * (best - trace.reward)
        value = value - moved + _from_best(before, best, moved * trace.propagation)
    reward += value
    by_maps[0] = reward * trace.reward * (1 - trace.reward)
    by_maps[1] = propagation * trace.propagation * (1 - trace.propagation)
    if map_slope is not None:
        by_maps += map_slope
    flat = by_maps.reshape(3, -1)
    gradient["maps"] = flat @ trace.code.T
    gradient["maps_bias"] = flat.sum(axis=1)
    code = (by_around[:, :, None] * trace.attention).reshape(HIDDEN, -1) + weights["maps"].T @ flat
    code = code * (trace.code > 0)
    gradient["encoder"] = code @ trace.columns.T
    gradient["encoder_bias"] = code.sum(axis=1)
    return gradient


def _from_best(before: Floats, best: Floats, slope: Floats) -> Floats:
    """Passes each square's slope on to the neighbour that was its best (the first one, on a tie)."""
    padded = np.zeros((len(before), SIDE + 2, SIDE + 2), before.dtype)
    right, above, left, below = _neighbours(before)
    left_over = slope
    for side, rows, columns in (
        (right, slice(1, -1), slice(2, None)),
        (above, slice(None, -2), slice(1, -1)),
        (left, slice(1, -1), slice(None, -2)),
        (below, slice(2, None), slice(1, -1)),
    ):
        share = np.where(side == best, left_over, 0)
        padded[:, rows, columns] += share
        left_over = left_over - share
    return padded[:, 1:-1, 1:-1]


# --- adapter ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lora:
    """Shape of the adapter: rank and scale alpha / rank."""

    rank: int
    alpha: int

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def initial_adapter(lora: Lora, rng: np.random.Generator) -> dict[str, Floats]:
    """A random A and a zero B for every matrix, so that training starts from the base."""
    adapter: dict[str, Floats] = {}
    for name in MATRICES:
        rows, columns = SHAPES[name]
        adapter[f"{name}.lora_A"] = (rng.standard_normal((lora.rank, columns)) / np.sqrt(columns)).astype(np.float32)
        adapter[f"{name}.lora_B"] = np.zeros((rows, lora.rank), np.float32)
    return adapter


def merged(base: Weights, adapter: Weights, lora: Lora) -> dict[str, Floats]:
    """The weights that the adapted policy acts with."""
    weights = dict(base)
    for name in MATRICES:
        delta = adapter[f"{name}.lora_B"] @ adapter[f"{name}.lora_A"]
        weights[name] = base[name] + delta.dtype.type(lora.scale) * delta
    return weights


def adapter_gradient(gradient: Weights, adapter: Weights, lora: Lora) -> dict[str, Floats]:
    """The chain rule from the merged matrices to A and B."""
    found: dict[str, Floats] = {}
    for name in MATRICES:
        slope = gradient[name] * gradient[name].dtype.type(lora.scale)
        found[f"{name}.lora_A"] = adapter[f"{name}.lora_B"].T @ slope
        found[f"{name}.lora_B"] = slope @ adapter[f"{name}.lora_A"].T
    return found


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
