"""Antecede delivers messages between processes in causal order, and shows that it did."""

from importlib import import_module
from typing import Any

from antecede.model import Message, Packet, View
from antecede.protocols import PROTOCOLS, Machine, create, restore

__version__ = "0.1.0"

LAZY = {"Node": "antecede.net", "verify": "antecede.verification"}

__all__ = ["PROTOCOLS", "Machine", "Message", "Packet", "View", "__version__", "create", "restore"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: a program that embeds a machine needs no event loop, and no Arrow."""
    if name in LAZY:
        return getattr(import_module(LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
