"""The columns of the tables that `measure` gives, as Parquet has them. docs/measuring.md says what they mean."""

from __future__ import annotations

from typing import Final

__all__ = ["COUNTS", "QUANTITIES", "TABLES", "spread"]

QUANTITIES: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "wait_ns")
"""What distributions are of."""
COUNTS: Final = ("events", "sends", "copies", "deliveries", "control_packets")


def spread(quantity: str) -> list[str]:
    """The columns of a distribution."""
    return [f"{quantity}_{name}" for name in ("mean", "p50", "p99", "max")]


def types(*quantities: str) -> str:
    return ", ".join(
        f"{name} {'double' if name.endswith('_mean') else 'long'}" for q in quantities for name in spread(q)
    )


TABLES: Final = {
    "runs": "run string, protocol string, processes int, "
    + ", ".join(f"{name} long" for name in COUNTS)
    + f", control_per_message double, {types(*QUANTITIES)}, wait_share double, concurrency double, "
    "longest_chain long, duration_ns long",
    "processes": "run string, process string, sends long, deliveries long, control_packets long, "
    + types("delay_ns", "wait_ns"),
    "channels": f"run string, sender string, receiver string, messages long, deliveries long, {types('delay_ns')}",
    "histograms": "run string, quantity string, low long, high long, count long",
}
"""Name -> columns and their types."""
