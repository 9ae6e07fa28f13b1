"""Snapshots of earlier versions, as the present one has them.

A journal is a snapshot and the inputs since. Its inputs replay by the rules of their time: `rules` in the snapshot says
which, until a `Restart` of the present version comes. Inputs of earlier versions are read as they are: new fields have
defaults that mean what was meant before they were there.

version  until    what is different
  3      0.1      no limits in the snapshot: the node's settings decided, so those of the node that opens it do; who was
                  refused was forgotten by a snapshot, and was heard again; a bundle had no most number of packets; what
                  a change was told of was told before `Pass`, once; no one could withdraw; the pieces of a state had no
                  numbers. Where packets go over routers, hops had no clocks: what is under way cannot be put in order
                  with hops of now, nor can its inputs be replayed by the machines of now. Such a snapshot is refused
  4      now

>>> try:
...     upgrade({"antecede": 2}, Limits())
... except BadSnapshot as error:
...     print(error)
the process has a snapshot of version 2; this release reads version 3 to 4: take a release that reads version 2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antecede.errors import BadSnapshot
from antecede.protocols import PROTOCOLS
from antecede.protocols.machine import plain
from antecede.wire import Limits

__all__ = ["OLDEST", "VERSION", "could_run_alone", "upgrade"]

OLDEST = 3
VERSION = 4


def upgrade(snapshot: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
    """The same process as a snapshot of the present version; `limits` are for versions that did not have them."""
    version = snapshot.get("antecede")
    if version == VERSION:
        return snapshot
    if version != OLDEST:
        raise BadSnapshot.version("the process", version, f"{OLDEST} to {VERSION}")
    machine = snapshot.get("machine")
    kind = PROTOCOLS.get(str(machine.get("protocol"))) if isinstance(machine, Mapping) else None
    if kind is not None and kind.routed:
        raise BadSnapshot(
            "the snapshot has hops without clocks, as in 0.1: let 0.1 deliver all that is under way, stop all nodes, "
            "and give them new journals"
        )
    changing = snapshot.get("changing")
    if not isinstance(changing, Mapping):
        raise BadSnapshot("the snapshot of the process has no state of its view")
    told = plain(limits)
    return {
        **snapshot,
        "antecede": VERSION,
        "rules": OLDEST,
        "limits": told,
        "sending": told,
        "refused": [],
        "repeats": [],
        "closed": False,
        "changing": {**changing, "untold": [], "pieces": _number_pieces(changing.get("pieces"))},
    }


def could_run_alone(protocol: str, rules: int) -> bool:
    """Whether one process alone could run this protocol when these rules were in force."""
    return protocol != "bounded" or rules > 5


def _number_pieces(pieces: Any) -> list[list[Any]]:
    """The pieces of a state that have arrived: they were kept in the order of their coming."""
    return [[at, piece, False] for at, piece in enumerate(pieces if isinstance(pieces, list) else ())]
