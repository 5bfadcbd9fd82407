"""Pictures of environments as PNG (ISO/IEC 15948): true colour, 8 bits, no filter."""

import struct
import zlib

import numpy as np
import numpy.typing as npt

MOST_PIXELS = 420
"""Along each side; a larger picture is made smaller by leaving out rows and columns."""


def png(picture: npt.NDArray[np.uint8]) -> bytes:
    """Of [H, W, 3]."""
    height, width, _ = picture.shape
    step = -(-max(height, width) // MOST_PIXELS)
    picture = np.ascontiguousarray(picture[::step, ::step])
    height, width, _ = picture.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    lines[:, 1:] = picture.reshape(height, 3 * width)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
