"""Named arrays as bytes, to go from one task to another: an Arrow IPC stream of one row, compressed.

A column has one list, the values of an array; its shape is in the field's metadata. Clocks are mostly small numbers, so
LZ4 takes them down to a third.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["pack", "unpack"]

Array: TypeAlias = NDArray[Any]

VERSION: Final = 2
WHAT: Final = b"antecede.blob"


def pack(what: str, arrays: Mapping[str, Array]) -> bytes:
    """
    >>> unpack("example", pack("example", {"a": np.arange(4).reshape(2, 2), "none": np.zeros((0, 3))}))["a"]
    array([[0, 1],
           [2, 3]])
    """
    fields, columns = [], []
    for name, array in arrays.items():
        values = pa.array(np.ascontiguousarray(array).reshape(-1))
        columns.append(pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values))
        shape = {b"shape": json.dumps(array.shape).encode()}
        fields.append(pa.field(name, columns[-1].type, metadata=shape))
    schema = pa.schema(fields, metadata={WHAT: f"{what} {VERSION}".encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(what: str, data: bytes) -> dict[str, Array]:
    """What `pack` was given. The arrays may be written to."""
    with pa.ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    found = (batch.schema.metadata or {}).get(WHAT, b"nothing").decode()
    assert found == f"{what} {VERSION}", f"{found}, expected {what} {VERSION}"
    return {
        field.name: batch.column(at)
        .values.to_numpy(zero_copy_only=False)
        .reshape(json.loads(field.metadata[b"shape"]))
        .copy()
        for at, field in enumerate(batch.schema)
    }
