"""The parser of a followed log: bytes a second, and memory from 1 MB to 1 GB of log.

Logs of several shapes, each fed in pieces of 64 KiB as they come from a websocket. The rate is of processor time, so that the
other work of this machine counts as little as it can; memory is the growth of the process between the first MB and the last.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator

from training.console import Parser, Step

PIECE = 64 * 1024
LARGE, SMALL = 1_000_000_000, 100_000_000  # bytes of log: the training's shape, and each of the others
RATE_MB, GROWTH_MB = 100.0, 8.0
_METRICS = [
    *(f"timing/part_{number}" for number in range(20)), *(f"policy/value_{number}" for number in range(20)),
    "eval/all/avg_score", "eval/all/pass_at_1", *(f"environment/avg_{number}" for number in range(8)), "reward/avg_raw_reward",
]  # fmt: skip
_PREFIX = "\x1b[36m(visgym_entrypoint pid=14915)\x1b[0m "
_HEAD = "\x1b[32m2026-11-29 14:48:04.655\x1b[0m | \x1b[1m\x1b[32mINFO    \x1b[0m | \x1b[36mskyrl.train.utils.tracking\x1b[0m:log:189 - "


def step(number: int, *, extra: str = "", between: str = "") -> bytes:
    """One logged step as SkyRL writes it through Ray; `extra`: one more pair; `between`: a line of another worker after each line."""
    pairs = [*(f"'{name}': '{(number % 97) / 97:.4f}'" for name in sorted(_METRICS)), *([extra] if extra else []),
             f"'trainer/global_step': {number}"]  # fmt: skip
    lines = [
        f"{_HEAD}\x1b[1m\x1b[32mStep {number}: ",
        "{" + pairs[0] + ",",
        *(f" {pair}," for pair in pairs[1:-1]),
        f" {pairs[-1]}}}\x1b[0m",
    ]
    return "".join(f"{_PREFIX}{line}\n{between}" for line in lines).encode()


_NOISE = (f"\x1b[36m(vllm pid=77, ip=10.1.0.9)\x1b[0m {_HEAD}engine throughput: 812.3 tokens/s, Step by step\x1b[0m\n" * 200).encode()
_OTHER = "\x1b[36m(vllm pid=77, ip=10.1.0.9)\x1b[0m {'running': 7}\n"
SHAPES: dict[str, Callable[[int], bytes]] = {
    "a training's log: 1 step in 30 KB": lambda number: _NOISE + step(number),
    "steps and nothing else": step,
    "steps with words and nan": lambda number: step(number, extra="'mode': 'warm up',\n" + _PREFIX + " 'z': 'nan'"),
    "steps through other workers' lines": lambda number: step(number, between=_OTHER),
    "one line without an end": lambda number: b"x" * PIECE,
}


def pieces(shape: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """A log of at least `size` bytes in pieces: some MB made once, and given again and again."""
    block = b"".join(shape(number) for number in range(200))
    while len(block) < 2_000_000:
        block += block
    given = 0
    while given < size:
        for start in range(0, len(block), PIECE):
            yield block[start : start + PIECE]
        given += len(block)


def digest(shape: Callable[[int], bytes], size: int) -> tuple[float, float, int]:
    """MB/s of processor time, growth of the process in MB, and the steps seen."""
    parser, steps, spent, given = Parser(), 0, 0.0, 0
    begin = 0.0
    for piece in pieces(shape, size):
        started = time.process_time()
        events = parser.feed(piece)
        spent += time.process_time() - started
        steps += sum(isinstance(event, Step) and len(event.metrics) > 40 for event in events)
        given += len(piece)
        if not begin and given >= 1_000_000:
            begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return given / 1e6 / spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000 - begin, steps


def run() -> list[str]:
    """Every shape against the budget of rate and memory; a sentence for each that is missed."""
    missed = []
    for name, shape in SHAPES.items():
        size = LARGE if shape is SHAPES["a training's log: 1 step in 30 KB"] else SMALL
        rate, growth, steps = digest(shape, size)
        line = f"{name}: {size / 1e6:.0f} MB at {rate:.0f} MB/s (budget {RATE_MB:.0f}), memory +{growth:.1f} MB (budget {GROWTH_MB:.0f})"
        print(f"{line}, {steps} steps", flush=True)
        if rate < RATE_MB or growth > GROWTH_MB:
            missed.append(line)
    return missed
