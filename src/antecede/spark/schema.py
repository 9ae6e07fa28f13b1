"""The columns of a packet, as streams take it and sources give it. `antecede.spark.stream.packets` explains them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["ALL_PACKETS", "GROUP_MARK", "PACKETS"]

PACKETS: Final = pa.schema(
    [
        pa.field("receiver", pa.string(), nullable=False),
        pa.field("sender", pa.string(), nullable=False),
        pa.field("number", pa.int64()),
        pa.field("stamp", pa.binary(), nullable=False),
        pa.field("payload", pa.binary()),
        pa.field("arrival", pa.int64()),
    ]
)
"""The columns that every stream of packets may have."""

ALL_PACKETS: Final = pa.schema([*PACKETS, pa.field("label", pa.string()), pa.field("group", pa.string())])
"""With those that only some protocols and some streams need."""

GROUP_MARK: Final = "antecede.group"
"""The key in a column's metadata that says: positions count by this column and the receiver."""
