"""Arrays as bytes, to go from one task to another: a version, names, types and shapes, then what is in them.

Compressed, because clocks are mostly small numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["pack", "unpack"]

Array: TypeAlias = NDArray[Any]

VERSION: Final = 1
CODEC: Final = "lz4"


def pack(what: str, arrays: Mapping[str, Array]) -> bytes:
    """
    >>> unpack("example", pack("example", {"a": np.arange(3)}))
    {'a': array([0, 1, 2])}
    """
    head = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    plain = msgspec.msgpack.encode(
        (VERSION, what, head, [np.ascontiguousarray(array).tobytes() for array in arrays.values()])
    )
    return msgspec.msgpack.encode((len(plain), pa.compress(plain, codec=CODEC, asbytes=True)))


def unpack(what: str, data: bytes) -> dict[str, Array]:
    """What `pack` was given. The arrays may be written to."""
    length, compressed = msgspec.msgpack.decode(data)
    plain = pa.decompress(compressed, length, codec=CODEC, asbytes=True)
    version, found, head, bodies = msgspec.msgpack.decode(plain)
    assert (version, found) == (VERSION, what), f"{found} of version {version}, expected {what} of {VERSION}"
    return {
        name: np.frombuffer(bytearray(body), dtype).reshape(shape)
        for (name, dtype, shape), body in zip(head, bodies, strict=True)
    }
