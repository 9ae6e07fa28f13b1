"""Antecede delivers messages between processes in causal order, and shows that it did."""

from antecede.model import Message, Packet, View
from antecede.protocols import PROTOCOLS, Machine, create, restore

__version__ = "0.1.0"

__all__ = ["PROTOCOLS", "Machine", "Message", "Packet", "View", "__version__", "create", "restore"]
