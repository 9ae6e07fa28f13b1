"""What two nodes must agree on before they carry messages for each other: each states its terms in its hello.

  equal     the protocol, its parameters, the version of the wire,
            and who is in which group, if both are in the same view
  fits      whatever one node may send, the other takes: packets and payloads of so many bytes
  smaller   the window: each node has no more payloads under way than the other takes
  told      the queue: messages, and their bytes, that a node has under way before it can hear that it is to pause. The
            other takes four times as much, so that whoever obeys is never cut off, and no more than `MOST_QUEUE`

Terms that a peer does not state, because it is older than they are, are not compared.

>>> ours, theirs = Terms("permit", packet_bytes=4096), Terms("permit", packet_bytes=8192)
>>> check_terms(ours, theirs, "bob", "ann")
Traceback (most recent call last):
antecede.errors.BadHello: bob sends packets of up to 8192 bytes, and ann takes 4096: give both nodes the same \
limits.packet_bytes, the largest that the journal of either ever had
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from antecede import wire
from antecede.errors import BadHello, BadParameter
from antecede.model import View
from antecede.net.settings import MOST_QUEUE, MOST_QUEUE_BYTES
from antecede.process.views.change import parameters_among
from antecede.protocols import create

__all__ = ["Parameters", "Terms", "check_terms", "digest", "flat_parameters", "state_parameters"]

Scalar: TypeAlias = bool | int | float | Annotated[str, Meta(max_length=256)] | None
Parameters: TypeAlias = Annotated[dict[Annotated[str, Meta(max_length=64)], Scalar], Meta(max_length=32)]
"""The parameters of a protocol as a peer is told them: flat, and few."""


class Terms(Struct, frozen=True):
    """What one node states."""

    protocol: str
    parameters: Parameters | None = None
    packet_bytes: int | None = None
    payload_bytes: int | None = None
    window: int | None = None
    wire: int = wire.VERSION
    queue: int | None = None
    queue_bytes: int | None = None
    groups: tuple[int, str] | None = None
    """The number of the view, and a digest of its groups."""


def state_parameters(protocol: str, parameters: Mapping[str, Any], founders: Sequence[str]) -> Parameters:
    """All parameters of a protocol, defaults too, as every node of the system states them. Raises `CallerError`.

    What is large, such as a topology, is stated by its digest.

    >>> state_parameters("monitor", {}, ["ann", "bob"])
    {'monitor': 'ann'}
    >>> state_parameters("bounded", {}, ["ann", "bob"])
    {'k': 4}
    """
    chosen = parameters_among(protocol, parameters, founders)
    stated = {**create(protocol, View(tuple(founders)), founders[0], **chosen).parameters, **chosen}
    return {name: _state(value) for name, value in sorted(stated.items())}


def _state(value: Any) -> Scalar:
    plain = getattr(value, "plain", None)
    if plain is not None:
        value = plain()
    if (
        value is None
        or isinstance(value, bool | int | float)
        or (isinstance(value, str) and len(value) <= 256)
    ):
        return value
    return digest(value)


def digest(value: Any) -> str:
    """What stands for something large."""
    return "sha256 " + sha256(msgspec.msgpack.encode(value, order="deterministic")).hexdigest()


def flat_parameters(protocol: str, parameters: Mapping[str, Any]) -> Parameters:
    """The parameters that one who joins states."""
    try:
        return msgspec.convert(dict(parameters), Parameters)
    except msgspec.ValidationError as error:
        raise BadParameter(
            protocol, f"a node that joins must have parameters that are numbers and short texts: {error}"
        ) from None


def check_terms(ours: Terms, theirs: Terms, peer: str, me: str) -> None:
    """Raise `BadHello` if `me` cannot carry messages for this peer."""
    if theirs.protocol != ours.protocol:
        raise BadHello(
            f"{peer} runs protocol {theirs.protocol}"[:200]
            + f", and {me} runs {ours.protocol}: give all nodes the same"
        )
    if theirs.wire != ours.wire:
        raise BadHello(
            f"{peer} writes packets of version {theirs.wire}, and {me} writes {ours.wire}: upgrade the older of the two"
        )
    if None not in (theirs.parameters, ours.parameters) and theirs.parameters != ours.parameters:
        raise BadHello(
            f"{peer} has parameters {theirs.parameters}"[:300]
            + f", and {me} has {ours.parameters}"[:300]
            + ": give all nodes the same"
        )
    if ours.groups and theirs.groups and ours.groups[0] == theirs.groups[0] and ours.groups != theirs.groups:
        raise BadHello(f"{peer} has other groups than {me}: give all founders the same")
    for name, what in (("packet_bytes", "packets"), ("payload_bytes", "payloads")):
        there, here = getattr(theirs, name), getattr(ours, name)
        if there is None or here is None or there == here:
            continue
        verb, ours_verb = ("sends", "takes") if there > here else ("takes", "sends")
        raise BadHello(
            f"{peer} {verb} {what} of up to {there} bytes, and {me} {ours_verb} {here}: give both nodes the same "
            f"limits.{name}, the largest that the journal of either ever had"
        )
    for name, what, most in (
        ("queue", "messages", MOST_QUEUE),
        ("queue_bytes", "bytes", max(MOST_QUEUE_BYTES, ours.queue_bytes or 0)),
    ):
        stated = getattr(theirs, name)
        if stated is not None and stated > most:
            raise BadHello(
                f"{peer} has up to {stated} {what} on their way, and {me} takes {most}: give {peer} a smaller {name}"
            )
