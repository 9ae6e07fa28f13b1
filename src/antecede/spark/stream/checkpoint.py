"""How far a stream by closed sets has come: a directory for each micro-batch, in `closed` of its checkpoint.

It has the `State`, and the files of what is held. It is written under another name and then renamed: it is there whole,
or not. Spark may repeat the last micro-batch; those before it are not asked for again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadParameter, BadSnapshot
from antecede.protocols.receiver import BEYOND, Receiver
from antecede.spark.storage import local
from antecede.spark.stream.closed_patience import lane_of
from antecede.spark.stream.closed_tasks import opened
from antecede.spark.stream.packets import WAITING
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status

__all__ = ["State", "before", "closed_statuses", "forget", "last_held", "state_of", "waiting_closed"]

VERSION: Final = 2
KEPT: Final = 3
"""Micro-batches whose state is kept."""


class State(Struct, frozen=True):
    """What is known after a micro-batch."""

    version: int
    decided: dict[str, Any]
    receiver: str
    reached: list[int]
    """How many messages of each sender were delivered, or given up."""
    place: int
    """Of the next delivery."""
    held: list[str]
    """Files of what is held."""
    status: Status
    lane: list[Any] | None = None
    """The machine that serves, if something was given up and has not come since."""


def state_of(
    settings: Settings,
    me: int,
    reached: list[int],
    place: int,
    held: list[str],
    status: Status,
    lane: list[Any] | None = None,
) -> State:
    decided, receiver = settings.decided(), settings.processes[me]
    return State(VERSION, decided, receiver, reached, place, held, status, lane)


def before(home: Path, batch: int, settings: Settings, me: int, out: Path) -> State:
    """The state that the micro-batch before left, with the paths of what is held."""
    earlier = [place for place in home.glob("[0-9]*") if int(place.name) < batch]
    if not earlier:
        if any(out.glob("batch=*")) and not (home / f"{batch:012d}").exists():
            raise BadParameter("stream by closed sets", "out", out, "no output of another checkpoint")
        reached = [0] * len(settings.processes)
        reached[me] = BEYOND
        return state_of(settings, me, reached, 0, [], Status())
    place = max(earlier)
    state = read(place / "state")
    for what, found, wanted in (
        ("settings", state.decided, settings.decided()),
        ("receiver", state.receiver, settings.processes[me]),
    ):
        if found != wanted:
            raise BadSnapshot(f"{what} of the stream", found, wanted)
    return msgspec.structs.replace(state, held=[str(place / name) for name in state.held])


def read(path: Path) -> State:
    data = path.read_bytes()
    version = msgspec.msgpack.decode(data)["version"]
    if version != VERSION:
        raise BadSnapshot("version of the stream", version, VERSION)
    return msgspec.msgpack.decode(data, type=State)


def forget(home: Path) -> None:
    """Remove what no micro-batch will ask for again."""
    for place in (*home.glob("work-*"), *sorted(home.glob("[0-9]*"))[:-KEPT]):
        shutil.rmtree(place, ignore_errors=True)


# Looking at it from elsewhere


def last_states(checkpoint: str | os.PathLike[str]) -> Iterator[tuple[State, Path]]:
    """The last state, if there is one, and where it is."""
    for place in sorted((Path(str(local(checkpoint))) / "closed").glob("[0-9]*"))[-1:]:
        yield read(place / "state"), place


def last_held(checkpoint: str | os.PathLike[str]) -> int:
    """How many messages wait in the query with this checkpoint."""
    return sum(state.status.held for state, _ in last_states(checkpoint))


def closed_statuses(checkpoint: str | os.PathLike[str], batch: int) -> list[Status]:
    """The status after a micro-batch, if its state is still kept."""
    here = local(checkpoint)
    place = Path(here or "", "closed", f"{batch:012d}", "state")
    return [read(place).status] if here is not None and place.exists() else []


def waiting_closed(checkpoint: str | os.PathLike[str]) -> pa.Table:
    """What waits in the query with this checkpoint: rows of `antecede.spark.stream.watch.WAITING`."""
    for state, home in last_states(checkpoint):
        decided = state.decided
        settings = Settings(decided["protocol"], tuple(decided["processes"]), decided["parameters"])
        return pa.Table.from_pylist(waits(settings, state, home), WAITING)
    return WAITING.empty_table()


def waits(settings: Settings, state: State, home: Path) -> list[dict[str, Any]]:
    me, held = settings.view.id(state.receiver), [opened(str(home / name)) for name in state.held]
    lane = lane_of(settings, me, state.lane, state.reached, state.place, held)
    return [told(settings, lane.machine, state.receiver, key, since) for key, since in lane.since.items()]


def told(
    settings: Settings, machine: Receiver, receiver: str, key: tuple[int, int], since: int
) -> dict[str, Any]:
    names = settings.processes
    awaits = [
        {"sender": names[a.sender], "first": a.first, "last": a.last, "counted": a.counted}
        for a in machine.awaits(key)
    ]
    told = {"group": "", "receiver": receiver, "sender": names[key[0]], "number": key[1]}
    return {**told, "since_ms": since, "awaits": awaits}
