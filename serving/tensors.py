"""What is in a safetensors file: shapes, and whether the numbers are finite and not all zero. Any float type, no torch.

The library opens the file and so checks header, offsets and size; NumPy knows no bfloat16, so numbers are looked at as bits.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# dtype -> (unsigned integer of its size, bits of the exponent, all bits but the sign): all exponent bits set is NaN or infinity.
_FLOATS: Final[Mapping[str, tuple[str, int, int]]] = {
    "BF16": ("<u2", 0x7F80, 0x7FFF),
    "F16": ("<u2", 0x7C00, 0x7FFF),
    "F32": ("<u4", 0x7F800000, 0x7FFFFFFF),
    "F64": ("<u8", 0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF),
}
_CHUNK: Final = 1 << 24  # bytes looked at in one go


class Unreadable(Exception):
    """The file is no safetensors file, is truncated, or holds a type that is not served. The message says which."""


@dataclass(frozen=True)
class Shape:
    """One tensor: its dimensions and type, whether every number is finite, and whether any is not zero."""

    dimensions: tuple[int, ...]
    dtype: str
    finite: bool
    nonzero: bool


def look(path: Path) -> dict[str, Shape]:
    """Every tensor of a file by name. Raises Unreadable, OSError."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):  # reads the header and compares it with the size of the file
            pass
    except SafetensorError as error:
        raise Unreadable(f"it does not open: truncated, or no safetensors file ({error})") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    content = np.memmap(path, np.uint8, mode="r", offset=8 + length) if path.stat().st_size > 8 + length else np.empty(0, np.uint8)
    found = {}
    for name, told in header.items():
        if name == "__metadata__":
            continue
        if told["dtype"] not in _FLOATS:
            raise Unreadable(f"tensor {name} is of type {told['dtype']}; adapters are served in {', '.join(_FLOATS)}")
        begin, end = told["data_offsets"]
        finite, nonzero = _numbers(content[begin:end], told["dtype"])
        found[name] = Shape(tuple(told["shape"]), told["dtype"], finite, nonzero)
    return found


def _numbers(content: Any, dtype: str) -> tuple[bool, bool]:
    kind, exponent, unsigned = _FLOATS[dtype]
    finite, nonzero = True, False
    for start in range(0, len(content), _CHUNK):
        bits = content[start : start + _CHUNK].view(kind)
        finite = finite and not bool(((bits & exponent) == exponent).any())
        nonzero = nonzero or bool((bits & unsigned).any())
    return finite, nonzero
