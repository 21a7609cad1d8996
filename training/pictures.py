"""PNG, as much of it as pictures of mazes need: 8 bits a channel, red, green and blue (https://www.w3.org/TR/png-3/)."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
LARGEST_SIDE: Final = 4096


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture (rows x columns x 3, uint8) as PNG; the same picture gives the same bytes."""
    rows, columns, channels = picture.shape
    if channels != 3 or picture.dtype != np.uint8:
        raise ValueError("a picture is rows x columns x 3 of uint8")
    lines = np.zeros((rows, 1 + columns * 3), np.uint8)  # each line begins with its filter, here none
    lines[:, 1:] = picture.reshape(rows, columns * 3)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def pixels(content: bytes) -> NDArray[np.uint8]:
    """The picture (rows x columns x 3) in a PNG of 8-bit RGB without interlacing. Raises ValueError for anything else."""
    header, data = b"", b""
    for kind, part in _chunks(content):
        header, data = (part, data) if kind == b"IHDR" else (header, data + part) if kind == b"IDAT" else (header, data)
    if len(header) != 13:
        raise ValueError("this is no PNG")
    columns, rows, depth, colour, compression, filters, interlace = struct.unpack(">IIBBBBB", header)
    if (depth, colour, compression, filters, interlace) != (8, 2, 0, 0, 0) or not (
        0 < columns <= LARGEST_SIDE and 0 < rows <= LARGEST_SIDE
    ):
        raise ValueError("only PNG of 8-bit RGB without interlacing is read here")
    expected = rows * (1 + 3 * columns)
    try:
        raw = zlib.decompressobj().decompress(data, expected + 1)
    except zlib.error as error:
        raise ValueError(f"this PNG's data is torn ({error})") from None
    if len(raw) != expected:
        raise ValueError("this PNG's data is of another size than its header says")
    lines = np.frombuffer(raw, np.uint8).reshape(rows, 1 + 3 * columns)
    return _unfiltered(lines[:, 0], lines[:, 1:]).reshape(rows, columns, 3)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    if not content.startswith(_SIGNATURE):
        raise ValueError("this is no PNG")
    found, place = [], len(_SIGNATURE)
    while place + 12 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, place)
        data = content[place + 8 : place + 8 + size]
        if len(data) != size:
            break
        found.append((kind, data))
        place += 12 + size
    return found


def _unfiltered(kinds: NDArray[np.uint8], lines: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if not kinds.any():
        return lines.copy()
    before = np.zeros(lines.shape[1], np.int64)
    found = np.empty_like(lines)
    for row, (kind, line) in enumerate(zip(kinds.tolist(), lines, strict=True)):
        found[row] = before = _line(kind, line.astype(np.int64), before)
    return found


def _line(kind: int, line: NDArray[Any], above: NDArray[Any]) -> NDArray[Any]:
    if kind == 0:
        return line
    if kind == 2:
        return np.asarray((line + above) % 256)
    if kind == 1:
        return np.asarray(line.reshape(-1, 3).cumsum(axis=0).reshape(-1) % 256)
    if kind not in (3, 4):
        raise ValueError("this PNG has a filter that there is not")
    made = line.copy()
    for index in range(len(line)):
        left = int(made[index - 3]) if index >= 3 else 0
        corner = int(above[index - 3]) if index >= 3 else 0
        guess = (left + int(above[index])) // 2 if kind == 3 else _paeth(left, int(above[index]), corner)
        made[index] = (int(line[index]) + guess) % 256
    return made


def _paeth(left: int, above: int, corner: int) -> int:
    straight = left + above - corner
    by_left, by_above, by_corner = abs(straight - left), abs(straight - above), abs(straight - corner)
    return left if by_left <= by_above and by_left <= by_corner else above if by_above <= by_corner else corner
