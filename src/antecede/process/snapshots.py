"""A process as plain data with a version, and back: what a journal begins with. Older versions are upgraded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antecede import wire
from antecede.errors import BadSnapshot, CallerError, PeerError, Refused
from antecede.link import Link
from antecede.model import CausalContext, Message
from antecede.process.events import Record
from antecede.process.upgrade import VERSION, upgrade
from antecede.process.views.members import Roll
from antecede.protocols import restore as restore_machine
from antecede.protocols.machine import plain, portable, typed
from antecede.wire.bundles import decode_bundle, encode_bundle
from antecede.wire.octets import OWN

if TYPE_CHECKING:
    from antecede.process.core import Core

__all__ = ["restore", "take"]


def take(core: Core) -> dict[str, Any]:
    """The whole process."""
    return {
        "antecede": VERSION,
        "rules": core.rules,
        "machine": core.machine.snapshot(),
        "links": [[peer, portable(link.snapshot())] for peer, link in sorted(core.links.items())],
        "inbox": [list(identity) for identity in core.inbox],
        "taken": plain(list(core.taken.values())),
        "contexts": [[*identity, one.encode()] for identity, one in core.contexts.items()],
        "repeats": [list(identity) for identity in core.repeats],
        "closed": core.closed,
        "unsent": sorted(core.unsent),
        "held": list(core.held),
        "record": core.record.snapshot(),
        "epoch": core.epoch,
        "window": core.window,
        "limits": plain(core.limits),
        "sending": plain(core.sending),
        "refused": [[peer, one.peer, one.kind, one.why] for peer, one in sorted(core.refused.items())],
        # Where there is a topology, the view does not change, and the machine keeps it.
        "parameters": {name: one for name, one in core.parameters.items() if name != "topology"},
        "changing": core.changing.snapshot(),
        "out": [
            [peer, encode_bundle(waiting.packets(), OWN)]
            for peer, waiting in sorted(core.out.items())
            if waiting
        ],
    }


def restore(kind: type[Core], snapshot: Mapping[str, Any], limits: wire.Limits) -> Core:
    """The process whose snapshot this was."""
    snapshot = upgrade(snapshot, limits)
    try:
        core = kind(
            restore_machine(snapshot["machine"]),
            {int(peer): Link.restore(link) for peer, link in snapshot["links"]},
            typed(snapshot["limits"], wire.Limits),
            typed(snapshot["changing"]["membership"]["roll"], Roll),
            typed(snapshot["epoch"], int),
            typed(snapshot["parameters"], dict[str, Any]),
            typed(snapshot["window"], int),
        )
        core.send_under(typed(snapshot["sending"], wire.Limits), typed(snapshot["rules"], int))
        core.changing.load(snapshot["changing"])
        offered = core.inbox
        core.inbox = {(sender, number): offered.pop((sender, number)) for sender, number in snapshot["inbox"]}
        if offered:
            raise ValueError(f"{len(offered)} eligible messages are missing from the inbox")
        core.taken = {message.id: message for message in typed(snapshot["taken"], list[Message])}
        core.taken_bytes = sum(len(message.payload) for message in core.taken.values())
        core.contexts = {
            (sender, number): CausalContext.decode(data)
            for sender, number, data in typed(snapshot.get("contexts", []), list[tuple[int, int, bytes]])
        }
        core.repeats = dict.fromkeys(typed(snapshot["repeats"], list[tuple[int, int]]))
        core.closed = typed(snapshot["closed"], bool)
        core.unsent = dict.fromkeys(typed(snapshot["unsent"], list[int]), 0)
        for held in core.machine.waiting():
            if held.where == "unsent" and held.message.number in core.unsent:
                core.unsent[held.message.number] = len(held.message.payload)
        core.unsent_bytes = sum(core.unsent.values())
        core.held = typed(snapshot["held"], list[int])
        core.record = Record.restore(snapshot["record"])
        core.refused = {
            peer: Refused(name, error, why)
            for peer, name, error, why in typed(snapshot["refused"], list[tuple[int, str, str, str]])
        }
        _gather(core, snapshot["out"])
    except (LookupError, TypeError, ValueError, CallerError, PeerError) as error:
        raise BadSnapshot(
            f"the snapshot does not restore a process: {type(error).__name__}: {error}"
        ) from error
    return core


def _gather(core: Core, out: Sequence[tuple[int, bytes]]) -> None:
    """Take over what has gathered, and count what is on its way."""
    for peer, link in core.links.items():
        for number, packets in core.changing.unacknowledged(peer, link):
            messages = [packet.message for packet in packets if packet.message is not None]
            core.out[peer].pending += len(messages)
            core.out[peer].leave(number, len(messages), sum(len(one.payload) for one in messages))
    for peer, data in out:
        core.follow(decode_bundle(data, *core.changing.seats(peer), OWN))
