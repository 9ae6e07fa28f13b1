"""Antecede delivers messages between processes in causal order, and shows that it did."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from antecede.errors import (
    AntecedeError,
    BadJournal,
    CallerError,
    CannotWrite,
    Closed,
    NodeFailed,
    NotDrained,
    NotMember,
    Unsupported,
    WrongLoop,
    WrongType,
)
from antecede.model import Message, Packet, View
from antecede.protocols import PROTOCOLS, Machine, create, restore

__version__ = "0.2.0"

__all__ = [
    "PROTOCOLS",
    "AntecedeError",
    "BadJournal",
    "CallerError",
    "CannotWrite",
    "Closed",
    "Delivery",
    "Machine",
    "Message",
    "Node",
    "NodeFailed",
    "NotDrained",
    "NotMember",
    "Packet",
    "Settings",
    "Unsupported",
    "View",
    "WrongLoop",
    "WrongType",
    "__version__",
    "create",
    "restore",
    "verify",
]

# Who logs what is the program's to say.
logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from antecede.net import Delivery, Node, Settings
    from antecede.verification import verify
else:
    LAZY = {
        "Delivery": "antecede.net",
        "Node": "antecede.net",
        "Settings": "antecede.net",
        "verify": "antecede.verification",
    }

    def __getattr__(name: str) -> object:
        """Loaded when it is asked for: a program that embeds a machine needs no event loop, and no Arrow."""
        if name in LAZY:
            return getattr(import_module(LAZY[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
