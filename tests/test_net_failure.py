"""What nobody expected stops the node, loudly: it says nothing more to anyone, its journal stays, and it comes back.

An exception is planted at every call from the shell into the process, at every effect, callback and task.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from antecede.errors import CannotWrite, Closed, NodeFailed, NotMember
from antecede.net import Memory, Node, Settings
from antecede.net.observe.recorder import Recorder
from antecede.process import restarts
from antecede.process.core import Core
from antecede.process.inputs import (
    Acknowledge,
    Adopt,
    Arrive,
    Close,
    Input,
    Merge,
    Pass,
    Propose,
    Recorded,
    Restart,
    Send,
    Take,
    Time,
    Told,
    Turn,
    Waive,
    Withdraw,
)

QUICK = Settings(first_retry_s=0.01, last_retry_s=0.05, beat_s=0.1, dead_s=1.0, drain_s=30.0, trace_s=0.05)
PATIENCE_S = 15.0


class Surprise(Exception):
    """What nobody expected."""


def surprise(*_: Any, **__: Any) -> Any:
    raise Surprise("boo")


def plant(target: object, name: str) -> None:
    assert callable(getattr(target, name))
    setattr(target, name, surprise)


def plant_once(target: object, name: str) -> None:
    real = getattr(target, name)

    def fail_first() -> None:
        setattr(target, name, real)
        surprise()

    setattr(target, name, fail_first)


Plant = Callable[[Node], None]

IN_THE_PROCESS: dict[str, Plant] = {
    "send": lambda node: plant(node._host.core, "send"),
    "arrive": lambda node: plant(node._host.core, "arrive"),
    "take": lambda node: plant(node._host.core, "take"),
    "turn": lambda node: plant(node._host.core, "turn"),
    "tick": lambda node: plant(node._host.core, "tick"),
    "resume": lambda node: plant(node._host.core, "resume"),
    "machine.send": lambda node: plant(node._host.core.machine, "send"),
    "machine.receive_all": lambda node: plant(node._host.core.machine, "receive_all"),
    "machine.deliver": lambda node: plant(node._host.core.machine, "deliver"),
}
IN_THE_SHELL: dict[str, Plant] = {
    "transmit": lambda node: plant(node._host, "transmit"),
    "mesh.transmit": lambda node: plant(node._mesh, "transmit"),
    "what is told": lambda node: plant(node._host, "_tell"),
    "end of a turn": lambda node: plant_once(node._host.room, "fire"),
    "journal": lambda node: plant(node._journal, "append"),
    "snapshot": lambda node: plant(node._host.core, "snapshot"),
    "mesh": lambda node: plant(node._mesh, "_look"),
}


def build(network: Memory, name: str, directory: Path | None, **options: Any) -> Node:
    journal = None if directory is None else directory / f"{name}.db"
    options = {"settings": QUICK, "protocol": "matrix", **options}
    return Node(name, ["a", "b"], transport=network.at(name), journal=journal, **options)


async def provoke(a: Node, b: Node, network: Memory) -> None:
    """Let all happen that can happen to a node, until it has failed."""
    talking = asyncio.ensure_future(chatter(b, "a"))
    try:
        while a._host.failure is None:
            try:
                await a.send("b", b"provoked")
                async with asyncio.timeout(0.05):
                    (await a.receive()).ack()
            except (TimeoutError, NodeFailed):
                pass
            network.reset("a", "b")
            await asyncio.sleep(0.01)
    finally:
        talking.cancel()
        await asyncio.wait({talking})


async def chatter(node: Node, to: str) -> None:
    while True:
        await node.send(to, b"chatter")
        await asyncio.sleep(0.01)


async def check_failed(node: Node) -> None:
    """Every call says that the node has failed, and why."""

    async def iterate() -> None:
        async for _ in node:
            pass

    for call in (
        lambda: node.send("b", b"too late"),
        node.receive,
        node.flush,
        iterate,
        node.wait_closed,
        lambda: node.remove("b"),
    ):
        with pytest.raises(NodeFailed, match="Surprise: boo") as raised:
            await call()
        assert isinstance(raised.value.cause, Surprise)
        assert raised.value.__cause__ is raised.value.cause
        assert raised.value.node == node.name
    status = node.status()
    assert not status.up
    assert "Surprise" in (status.failure or "")
    assert node.connected == ()


@pytest.mark.parametrize("kept", [True, False], ids=["journal", "no journal"])
@pytest.mark.parametrize("point", [*IN_THE_PROCESS, *IN_THE_SHELL])
def test_an_exception_anywhere_stops_the_node_and_it_comes_back(point, kept, tmp_path, caplog):
    if not kept and point in ("journal", "snapshot"):
        pytest.skip("there is no journal to write")
    directory = tmp_path if kept else None
    options: dict[str, Any] = {}
    if point == "snapshot":
        options["settings"] = Settings(**{**_fields(QUICK), "snapshot_inputs": 1})

    unheard: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
        network = Memory()
        a, b = (build(network, name, directory, **options) for name in "ab")
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            await b.start()
            await b.send("a", b"before")
            await (await a.receive()).ack()
            await a.flush()
            position = a._host.commits.position_durable
            {**IN_THE_PROCESS, **IN_THE_SHELL}[point](a)
            await provoke(a, b, network)
            await check_failed(a)
            # It says nothing more, to anyone: not even that it lives.
            while "a" in b.connected:
                await asyncio.sleep(0.01)
            acked = {number: link.acked for number, link in b._host.core.links.items()}
            assert a._host.commits.position_durable >= position
            # It has been told, so closing is quiet, and does not wait for anyone.
            await a.close()
            await a.close()
            assert {number: link.acked for number, link in b._host.core.links.items()} == acked
            if kept:
                await check_back(network, b, directory)
            b.settings = Settings(drain_s=0.0)
            await b.close()

    asyncio.run(main())
    assert unheard == [], "the node hears of it, not the event loop alone"
    assert any("Surprise" in (record.exc_text or record.getMessage()) for record in caplog.records)


def test_an_exception_while_a_connection_ends_is_told_by_the_node_and_not_lost_with_its_task():
    async def main() -> None:
        network = Memory()
        b = build(network, "b", None)
        await b.start()
        plant(b._mesh._reception._door, "leave")
        before = set(network._tasks)
        network.connect("a", "b").close()
        [task] = network._tasks - before
        await asyncio.wait({task})
        assert task.exception() is None
        assert not b._mesh.runs(task)
        assert isinstance(b._host.failure, NodeFailed)
        with pytest.raises(NodeFailed, match="Surprise: boo"):
            await b.close()

    asyncio.run(main())


# Every kind of input


def plant_input(core: Core, kind: type[Input]) -> None:
    """Fail at inputs of this kind, whichever way the driver gives them to the process."""
    real = core.apply

    def apply(given: Input, now: int) -> Any:
        return surprise() if isinstance(given, kind) else real(given, now)

    core.apply = apply  # type: ignore[method-assign]
    direct = {Send: "send", Arrive: "arrive", Take: "take", Acknowledge: "acknowledge", Turn: "turn"}
    if kind in direct:
        plant(core, direct[kind])


class Scene:
    """Two nodes, and what makes an input of each kind happen at the first."""

    def __init__(self, a: Node, b: Node, network: Memory) -> None:
        self.a, self.b, self.network = a, b, network

    async def say(self) -> None:
        await self.a.send("b", b"said", label="x")

    async def hear(self) -> None:
        await self.b.send("a", b"said")
        (await self.a.receive()).ack()

    async def merge(self) -> None:
        self.a.merge("x", into="y")

    async def remove(self) -> None:
        await self.a.remove("b")

    async def join(self, until: Callable[[], Any] | None = None) -> None:
        joiner = Node.join("c", ["a"], transport=self.network.at("c"), protocol="history", settings=QUICK)
        joining = asyncio.ensure_future(joiner.start())
        try:
            await (until or self.a.receive)()
        finally:
            joining.cancel()
            await asyncio.wait({joining})
            joiner.settings = Settings(drain_s=0.0)
            await joiner.close()

    async def join_unseen(self) -> None:
        """The application does not ask for messages, so it does not come to the change."""
        await self.join(self.a.wait_closed)

    async def join_in_vain(self) -> None:
        self.network.cut("a", "b")
        while self.a.connected:
            await asyncio.sleep(0.01)
        joiner = Node.join("c", ["a"], transport=self.network.at("c"), protocol="history", settings=QUICK)
        joining = asyncio.ensure_future(joiner.start())
        while "c" not in self.a.status().joining:
            await asyncio.sleep(0.01)
        joining.cancel()
        await self.a.wait_closed()

    async def close(self) -> None:
        await self.a.close()


INPUTS: dict[type[Input], Callable[[Scene], Any]] = {
    Send: Scene.say,
    Arrive: Scene.hear,
    Take: Scene.hear,
    Acknowledge: Scene.hear,
    Turn: Scene.say,
    Time: Scene.say,
    Recorded: Scene.say,
    Merge: Scene.merge,
    Propose: Scene.remove,
    Pass: Scene.join,
    Told: Scene.join,
    Waive: Scene.join_unseen,
    Withdraw: Scene.join_in_vain,
    Close: Scene.close,
}
AT_THE_START = {Restart, Adopt}
"""Inputs of a node that is only beginning: it does not start."""


def test_no_kind_of_input_is_left_out():
    assert INPUTS.keys() | AT_THE_START == set(get_args(Input))


@pytest.mark.parametrize("kind", INPUTS, ids=lambda kind: kind.__name__)
def test_an_exception_in_any_kind_of_input_stops_the_node_and_it_comes_back(kind, tmp_path):
    options: dict[str, Any] = {"protocol": "history", "trace": tmp_path / "trace"}
    callbacks: dict[str, Any] = (
        {} if kind is Waive else {"state": lambda: b"", "changed": lambda change: None}
    )

    async def main() -> None:
        network = Memory()
        a, b = build(network, "a", tmp_path, **options, **callbacks), build(network, "b", tmp_path, **options)
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            await b.start()
            while not a.connected:
                await asyncio.sleep(0)
            await a.send("b", b"before")
            sent = a.sent + (kind not in (Send, Time) and INPUTS[kind] is Scene.say)
            plant_input(a._host.core, kind)
            with suppress(NodeFailed):
                await INPUTS[kind](Scene(a, b, network))
            with pytest.raises(NodeFailed, match="Surprise: boo"):
                await a.wait_closed()
            while a.connected:
                await asyncio.sleep(0)
            await check_failed(a)
            await a.close()
            b.settings = Settings(drain_s=0.0)
            await b.close()
            async with build(network, "a", tmp_path, **options, settings=Settings(drain_s=0)) as again:
                # What it had done by then is there: the input that failed was never written.
                assert again.status().up
                # The time is told once a millisecond: a message may come before it.
                assert again.sent in (sent, sent - (kind is Turn), sent + (kind is Time))

    asyncio.run(main())


def test_an_exception_in_the_first_input_of_a_new_life_leaves_nothing_open(tmp_path, monkeypatch):
    async def main() -> None:
        network = Memory()
        async with asyncio.timeout(PATIENCE_S):
            async with build(network, "a", tmp_path):
                pass
            with monkeypatch.context() as patch:
                patch.setattr(restarts, "come_back", surprise)
                a = build(network, "a", tmp_path)
                with pytest.raises(NodeFailed, match="in an input Restart: Surprise: boo"):
                    await a.start()
                await a.close()
            async with build(network, "a", tmp_path):
                pass

    asyncio.run(main())


async def check_back(network: Memory, b: Node, directory: Path | None) -> None:
    """A new node with the journal of the one that failed is handed all that was sent, once and in order."""
    again = build(network, "a", directory)
    async with again:
        await b.send("a", b"the last")
        numbers = []
        while True:
            message = await again.receive()
            numbers.append(message.number)
            await message.ack()
            if message.payload == b"the last":
                break
        assert numbers == list(range(numbers[0], b.sent + 1))
        answer = await again.send("b", b"I am back")
        while (await b.receive()).number != answer.number:
            pass


def _fields(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def test_the_recorder_is_a_part_of_the_node(tmp_path, monkeypatch):
    monkeypatch.setattr(Recorder, "write", surprise)

    async def main() -> None:
        network = Memory()
        a = build(network, "a", tmp_path, trace=tmp_path / "trace")
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            await a.send("a", b"note to self")
            with pytest.raises(NodeFailed, match="recording its events: Surprise"):
                await a.wait_closed()
            await a.close()

    asyncio.run(main())


def test_a_node_that_fails_while_it_records_is_closed_once_the_file_is_there(tmp_path, monkeypatch):
    """The next one with its journal writes the same events to the same file."""
    begun, go, write = threading.Event(), threading.Event(), Recorder.write

    def wait(recorder: Recorder, events: Any) -> Path:
        begun.set()
        go.wait(PATIENCE_S)
        return write(recorder, events)

    monkeypatch.setattr(Recorder, "write", wait)

    async def main() -> None:
        a = build(Memory(), "a", tmp_path, trace=tmp_path / "trace")
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            await a.send("a", b"note to self")
            while not begun.is_set():
                await asyncio.sleep(0.01)
            a._host.stop(Surprise("boo"), "here")
            closing = asyncio.ensure_future(a.close())
            await asyncio.wait({closing}, timeout=0.1)
            assert not closing.done()
            go.set()
            with pytest.raises(NodeFailed):
                await closing
            assert list((tmp_path / "trace" / "events").iterdir())

    asyncio.run(main())


def cancel(*_: Any) -> Any:
    raise asyncio.CancelledError("Surprise")


@pytest.mark.parametrize("raises", [surprise, cancel])
@pytest.mark.parametrize("callback", ["state", "changed"])
def test_a_callback_that_raises_stops_the_node(callback, raises, tmp_path):
    """Also if it waited for something that was cancelled: the task that receives would end without a word."""

    async def main() -> None:
        network = Memory()
        options: dict[str, Any] = {callback: raises}
        a = Node("a", ["a"], transport=network.at("a"), settings=QUICK, **options)
        c = Node.join("c", ["a"], transport=network.at("c"), settings=QUICK)
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            waiting = asyncio.ensure_future(a.receive())
            joining = asyncio.ensure_future(c.start())
            with pytest.raises(NodeFailed, match=rf"in the application's {callback}\(\): .*Surprise"):
                await waiting
            with pytest.raises(NodeFailed):
                await a.send("a", b"too late")
            joining.cancel()
            await asyncio.wait({joining})
            await a.close()
            if not joining.cancelled():
                c.settings = Settings(drain_s=0.0)
                await c.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("which", "kept"),
    [("", True), ("", False), ("Host.run", True), ("Mesh.run", False), ("Mesh._dial", False)],
)
def test_a_task_that_somebody_else_cancels_stops_the_node(which, kept, tmp_path):
    """As programs do when they end: or the node would look up, take messages, and send none of them."""

    async def main() -> None:
        network = Memory()
        a, b = (build(network, name, tmp_path if kept else None) for name in "ab")
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            await b.start()
            await a.send("b", b"hello")
            await b.receive()
            tasks = [
                task
                for task in asyncio.all_tasks() - {asyncio.current_task()}
                if which in getattr(task.get_coro(), "__qualname__", "")
            ]
            assert tasks
            for task in tasks:
                task.cancel()
            with pytest.raises(NodeFailed, match="somebody else cancelled it"):
                await a.wait_closed()
            with pytest.raises(NodeFailed):
                await a.send("b", b"nobody would hear of this")
            for node in (a, b):
                with suppress(NodeFailed):
                    await node.close()

    asyncio.run(main())


class Broken(logging.Handler):
    """A handler of logs that a program has brought along."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise Surprise("in the log")


@pytest.mark.parametrize("during", ["an input", "the end of a turn"])
def test_a_log_that_is_broken_keeps_no_node_up(during):
    async def main() -> None:
        network = Memory()
        async with asyncio.timeout(PATIENCE_S):
            a = build(network, "a", None)
            await a.start()
            waiting = asyncio.ensure_future(a.receive())
            await asyncio.sleep(0)
            logger, handler = logging.getLogger("antecede.net"), Broken()
            logger.addHandler(handler)
            plant(a._host.core, "take" if during == "an input" else "turn")
            try:
                await a.send("a" if during == "an input" else "b", b"hello", durable=False)
                with pytest.raises((NodeFailed, Surprise)):
                    async with asyncio.timeout(1):
                        await waiting
            finally:
                logger.removeHandler(handler)
            assert isinstance(a.failure, NodeFailed)
            with pytest.raises(NodeFailed, match="boo"):
                await a.send("b", b"nobody would hear of this")
            await a.close()

    asyncio.run(main())


def test_a_log_that_is_broken_leaves_no_send_waiting_for_a_peer_of_which_it_should_have_told():
    async def main() -> None:
        settings = Settings(**{**_fields(QUICK), "queue": 1, "dead_s": 0.3})
        a = build(Memory(), "a", None, settings=settings)
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            await a.send("b", b"who is not there")
            logger, handler = logging.getLogger("antecede.net"), Broken()
            logger.addHandler(handler)
            try:
                with pytest.raises(NodeFailed, match="in the log"):
                    async with asyncio.timeout(5):
                        await a.send("b", b"which waits")
            finally:
                logger.removeHandler(handler)
            await a.close()

    asyncio.run(main())


def test_closing_a_failed_node_tells_those_who_have_not_heard():
    async def main() -> None:
        network = Memory()
        async with asyncio.timeout(PATIENCE_S):
            a, b = build(network, "a", None), build(network, "b", None)
            await a.start()
            await b.start()
            a._host.stop(Surprise("boo"), "in a test")
            with pytest.raises(NodeFailed, match="a failed in a test: Surprise: boo"):
                await a.close()
            await a.close()
            with pytest.raises(NodeFailed):
                async with b:
                    pass
            # What the body raises is not hidden.

    async def body() -> None:
        async with build(Memory(), "a", None) as a:
            a._host.stop(Surprise("boo"), "in a test")
            raise ZeroDivisionError

    with pytest.raises(Closed, match="was started before"):
        asyncio.run(main())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(body())


def test_a_removed_node_does_not_end_quietly():
    async def main() -> None:
        network, names = Memory(), ["a", "b", "c"]
        nodes = [Node(name, names, transport=network.at(name), settings=QUICK) for name in names]
        async with asyncio.timeout(PATIENCE_S), nodes[0] as a, nodes[1]:
            await nodes[2].start()
            network.cut("c", "a")
            network.cut("c", "b")
            await a.remove("c")
            for other in "ab":
                network.heal("c", other)

            async def iterate() -> None:
                async for _ in nodes[2]:
                    pass

            with pytest.raises(NotMember, match="is no member any more"):
                await iterate()
            await nodes[2].close()

    asyncio.run(main())


def test_a_full_disk_is_an_error_of_the_system_too(tmp_path):
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            a = build(Memory(), "a", tmp_path)
            await a.start()

            def full(*_: Any) -> None:
                raise CannotWrite("journal a.db", "no space left on device", "nothing was lost")

            a._journal.append = full  # type: ignore[union-attr,method-assign]
            with pytest.raises(OSError, match="no space left"):
                await a.send("a", b"note to self")
            with pytest.raises(CannotWrite):
                await a.receive()
            await a.close()

    asyncio.run(main())
