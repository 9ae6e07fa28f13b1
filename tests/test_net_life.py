"""The life of a node: it starts once, in one loop, and can be cancelled at every await without losing or leaking."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from antecede.errors import (
    BadJournal,
    Closed,
    NodeFailed,
    NotDrained,
    NotMember,
    WrongLoop,
)
from antecede.net import Memory, Node, Settings
from antecede.net.transports.transport import MemoryTransport

QUICK = Settings(first_retry_s=0.01, last_retry_s=0.05, beat_s=0.1, dead_s=0.3, drain_s=2.0)
PATIENCE_S = 30.0


def build(network: Memory, name: str, journal: Path | None = None, **options: Any) -> Node:
    options = {"settings": QUICK, "protocol": "matrix", "transport": network.at(name), **options}
    return Node(name, ["a", "b"], journal=journal, **options)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run_bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main()

    asyncio.run(run_bounded())


async def cancel_after(steps: int, work: Coroutine[Any, Any, Any], times: int = 1) -> bool:
    """Cancel a call after so many turns of the loop, so many times; whether it was cancelled."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
        if task.done():
            break
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({task})
    if task.cancelled():
        return True
    task.result()
    return False


async def check_nothing_left(before: set[asyncio.Task[Any]]) -> None:
    """No task is left that was not there before."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


# Out of order


@pytest.mark.parametrize("call", ["send", "receive", "flush", "iterate", "status", "wait_closed", "leave"])
def test_a_node_that_has_not_started_says_so(call):
    async def main() -> None:
        node = build(Memory(), "a")

        async def iterate() -> None:
            async for _ in node:
                pass

        async def status() -> None:
            node.status()

        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "send": lambda: node.send("b", b""),
            "receive": node.receive,
            "flush": node.flush,
            "iterate": iterate,
            "status": status,
            "wait_closed": node.wait_closed,
            "leave": node.leave,
        }
        with pytest.raises(Closed, match="has not started"):
            await calls[call]()

    run(main)


def test_a_node_that_never_started_can_be_closed():
    async def main() -> None:
        node = build(Memory(), "a")
        assert await node.close() == {}
        assert await node.close() == {}
        with pytest.raises(Closed, match="lives once"):
            await node.start()

    run(main)


def test_a_node_lives_once(tmp_path):
    async def main() -> None:
        network = Memory()
        node = build(network, "a", tmp_path / "a.db")
        async with node:
            with pytest.raises(Closed, match="lives once"):
                await node.start()
        with pytest.raises(Closed, match="lives once"):
            async with node:
                pass
        # Nothing of the second attempt is left: name and journal are free.
        async with build(network, "a", tmp_path / "a.db"):
            pass

    run(main)


def test_a_start_that_fails_leaves_nothing_open(tmp_path):
    async def main() -> None:
        network = Memory()
        before = asyncio.all_tasks()
        async with build(network, "a", tmp_path / "a.db"):
            with pytest.raises(BadJournal, match="is in use by another node of this process"):
                await build(Memory(), "a", tmp_path / "a.db").start()
        await check_nothing_left(before)

    run(main)


def test_a_node_is_used_in_the_loop_that_started_it():
    node = build(Memory(), "a")
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(node.start())
        # A message is there to be taken.
        loop.run_until_complete(node.send("a", b""))

        async def elsewhere() -> None:
            for call in (
                lambda: node.send("a", b""),
                node.receive,
                node.flush,
                node.close,
                node.wait_closed,
            ):
                with pytest.raises(WrongLoop, match="another event loop"):
                    await call()

        asyncio.run(elsewhere())
        loop.run_until_complete(node.close())
    finally:
        loop.close()


def test_a_node_that_nobody_closed_ends_with_its_loop(tmp_path):
    """All tasks are cancelled then: the node's address and journal are free, also while somebody holds the node."""
    address, left = "", list[Node]()

    def node() -> Node:
        return Node("a", {"a": address or "127.0.0.1:0"}, journal=tmp_path / "a.db", settings=QUICK)

    async def leave_open() -> None:
        nonlocal address
        left.append(node())
        await left[0].start()
        await left[0].send("a", b"kept")
        address = left[0].address

    async def come_back() -> None:
        async with node() as again:
            assert (await again.receive()).payload == b"kept"

    run(leave_open)
    assert isinstance(left[0].failure, NodeFailed)
    run(come_back)


def test_a_node_is_used_in_the_thread_that_started_it(tmp_path):
    """Also in the middle of a turn. What two threads do at once would get the same numbers, and be lost as repeats."""

    async def main() -> None:
        settings = Settings(drain_s=0)
        async with build(Memory(), "a", tmp_path / "a.db", settings=settings) as node:
            await node.send("a", b"")
            received = await node.receive()
            await node.send("b", b"", durable=False)
            assert node._host.stirred
            for call in (
                lambda: asyncio.run(node.send("a", b"")),
                lambda: asyncio.run(node.receive()),
                received.ack,
            ):
                refused: list[BaseException] = []

                def run(call: Callable[[], object] = call, refused: list[BaseException] = refused) -> None:
                    try:
                        call()
                    except WrongLoop as error:
                        refused.append(error)

                thread = Thread(target=run)
                thread.start()
                thread.join()
                assert refused
            assert node.sent == 2

    asyncio.run(main())


def test_a_fork_has_no_node_to_send_with():
    """Its copy of the loop does not run: what it sent would never leave, and `send` returned."""

    async def main() -> None:
        async with build(Memory(), "a", settings=Settings(drain_s=0)) as node:
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    asyncio.run(node.send("b", b"from a fork", durable=False))
                    os.write(write, b"sent")
                except BaseException as error:
                    os.write(write, type(error).__name__.encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            assert os.read(read, 100) == b"WrongLoop"
            os.close(read)
            os.close(write)
            await node.send("b", b"from the one that started it")
            assert node.sent == 1

    run(main)


# Closing


def test_close_tells_what_was_not_acknowledged(caplog):
    async def main() -> None:
        hasty = Settings(drain_s=0.05)
        a = build(Memory(), "a", settings=hasty)
        await a.start()
        await a.send("b", b"which is not there")
        assert await a.close() == {"b": 1}
        assert await a.close() == {"b": 1}
        strict = build(Memory(), "a", settings=hasty)
        await strict.start()
        await strict.send("b", b"which is not there")
        with pytest.raises(NotDrained, match="1 by b were not") as raised:
            await strict.close(strict=True)
        assert raised.value.left == {"b": 1}

    run(main)
    assert "not acknowledged and are lost: 1 for b" in caplog.text


def test_all_who_close_wait_for_the_same_end(tmp_path):
    async def main() -> None:
        a = build(Memory(), "a", tmp_path / "a.db", settings=Settings(drain_s=0.2))
        await a.start()
        await a.send("b", b"which is not there")
        closing = [asyncio.ensure_future(a.close()) for _ in range(3)]
        waiting = asyncio.ensure_future(a.wait_closed())
        assert await asyncio.gather(*closing) == [{"b": 1}] * 3
        await waiting
        async with build(Memory(), "a", tmp_path / "a.db", settings=Settings(drain_s=0)):
            pass

    run(main)


def test_iteration_ends_when_the_application_closes():
    async def main() -> None:
        async with build(Memory(), "a") as a:
            await a.send("a", b"note to self")
            found = []
            async for message in a:
                found.append(message.payload)
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(a.close()))
            assert found == [b"note to self"]

    run(main)


# Cancelled at every await


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_start_that_is_cancelled_anywhere_leaks_nothing(tmp_path, times):
    async def main() -> None:
        network, steps = Memory(), 0
        before = asyncio.all_tasks()
        while True:
            node = build(network, "a", tmp_path / "a.db")
            if not await cancel_after(steps, node.start(), times):
                await node.close()
                break
            await check_nothing_left(before)
            steps += 1 + steps // 3
        assert steps > 2

    run(main)


@pytest.mark.parametrize("kept", [True, False], ids=["journal", "no journal"])
def test_a_send_that_is_cancelled_anywhere_was_sent_or_was_not(tmp_path, kept):
    async def main() -> None:
        network = Memory()
        options = {"settings": Settings(queue=4, drain_s=0, first_retry_s=0.01, last_retry_s=0.05)}
        a, b = (build(network, name, tmp_path / name if kept else None, **options) for name in "ab")
        async with a, b:
            for steps in range(60):
                await cancel_after(steps % 12, a.send("b", f"{steps}".encode()))
                if steps % 3 == 0:
                    async with asyncio.timeout(5):
                        while a.status().blocked:
                            await asyncio.sleep(0)
                if a.sent > b.status().taken:
                    (await b.receive()).ack()
            await a.flush()
            sent = a.sent
            numbers = [(await b.receive()).number for _ in range(sent - b.status().taken)]
            assert b.status().taken == sent
            assert not numbers or numbers[-1] == sent
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await b.receive()

    run(main)


@pytest.mark.parametrize("sender", [None, "a"])
@pytest.mark.parametrize("kept", [True, False], ids=["journal", "no journal"])
def test_a_receive_that_is_cancelled_anywhere_takes_nothing(tmp_path, kept, sender):
    async def main() -> None:
        network, found = Memory(), list[int]()
        a, b = (build(network, name, tmp_path / name if kept else None) for name in "ab")
        async with a, b:

            async def take() -> None:
                message = await b.receive(sender=sender)
                found.append(message.number)
                message.ack()

            for steps in range(60):
                await a.send("b", b"x", durable=False)
                await cancel_after(steps % 15, take())
            async with asyncio.timeout(10):
                while len(found) < 60:
                    await take()
            assert found == list(range(1, 61))

    run(main)


@pytest.mark.parametrize("kept", [True, False], ids=["journal", "no journal"])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_close_that_is_cancelled_anywhere_closes(tmp_path, kept, times):
    async def main() -> None:
        network, steps, cancelled = Memory(), 1, True
        before = asyncio.all_tasks()
        journal = tmp_path / "a.db" if kept else None
        sent = 0
        while cancelled:
            async with build(network, "b", settings=Settings(drain_s=0)):
                a = build(network, "a", journal, settings=Settings(drain_s=0.02))
                await a.start()
                assert a.sent == (sent if kept else 0)
                await a.send("a", b"note to self")
                sent = a.sent
                cancelled = await cancel_after(steps, a.close(), times)
                # Whoever was cancelled finds it closed: name, journal and tasks are given back.
                assert a._phase == "closed"
                assert a.status().up is False
                await a.close()
            await check_nothing_left(before)
            steps += 1 + steps // 3
        assert steps > 2

    run(main)


@pytest.mark.parametrize("failed", [False, True], ids=["closed", "failed"])
def test_a_transport_that_cannot_be_closed_keeps_nothing_else_open(tmp_path, failed, caplog):
    class Stubborn(MemoryTransport):
        async def close(self) -> None:
            await super().close()
            raise RuntimeError("boo")

    async def main() -> None:
        before = asyncio.all_tasks()
        transport = Stubborn(Memory(), "a")
        a = build(Memory(), "a", tmp_path / "a.db", transport=transport)
        await a.start()
        if failed:
            a._host.stop(KeyError("another"), "in a test")
            await asyncio.wait({a._minding})
        with pytest.raises((RuntimeError, NodeFailed)):
            await a.close()
        await check_nothing_left(before)
        async with build(Memory(), "a", tmp_path / "a.db"):
            pass

    run(main)
    assert not failed or "RuntimeError: boo" in caplog.text, "an error that comes second is not lost"


WAITS: dict[str, Callable[[Node], Coroutine[Any, Any, Any]]] = {
    "flush": lambda a: a.flush(),
    "ack": lambda a: acknowledge(a),
    "wait_closed": lambda a: a.wait_closed(),
    "contacts": lambda a: count_contacts(a),
}


async def acknowledge(node: Node) -> None:
    await node.send("a", b"note to self", durable=False)
    await (await node.receive()).ack()


async def count_contacts(node: Node) -> int:
    return len([contact async for contact in node.contacts()])


@pytest.mark.parametrize("call", WAITS)
def test_of_a_call_that_waits_only_the_waiting_is_cancelled(call, tmp_path):
    async def main() -> None:
        before = asyncio.all_tasks()
        async with build(Memory(), "a", tmp_path / "a.db", settings=Settings(drain_s=0)) as a:
            for steps in range(12):
                await a.send("a", b"x", durable=False)
                await cancel_after(steps, WAITS[call](a))
            assert a.status().up
            assert not a._host.arrivals.waiters
            assert not a._host.contacts.waiters
            await a.flush()
            sent = a.sent
        await check_nothing_left(before)
        async with build(Memory(), "a", tmp_path / "a.db", settings=Settings(drain_s=0)) as a:
            assert a.sent == sent

    run(main)


async def start_three(network: Memory) -> list[Node]:
    names = ["a", "b", "c"]
    nodes = [Node(name, names, transport=network.at(name), settings=QUICK) for name in names]
    for node in nodes:
        await node.start()
    while not all(len(node.connected) == 2 for node in nodes):
        await asyncio.sleep(0)
    return nodes


@pytest.mark.parametrize("call", ["leave", "remove"])
def test_a_change_that_is_cancelled_anywhere_is_made_by_the_next_call_and_the_others_go_on(call):
    async def main() -> None:
        before, steps, cancelled = asyncio.all_tasks(), 0, True
        while cancelled:
            nodes = a, b, c = await start_three(Memory())
            gone = "a" if call == "leave" else "c"
            cancelled = await cancel_after(steps, a.leave() if call == "leave" else a.remove("c"))
            with suppress(NotMember):
                await (a.leave() if call == "leave" else a.remove("c"))
            while gone in b.members:
                await asyncio.sleep(0)
            await b.send("c" if gone == "a" else "a", b"go on")
            (await (c if gone == "a" else a).receive()).ack()
            for node in nodes:
                with suppress(NotMember):
                    await node.close()
            await check_nothing_left(before)
            steps += 1 + steps // 4
        assert steps > 5

    run(main)


@pytest.mark.parametrize("call", ["leave", "remove"])
def test_a_change_that_is_not_waited_for_any_more_goes_on(call):
    async def main() -> None:
        nodes = a, b, _ = await start_three(Memory())
        assert await cancel_after(1, a.leave() if call == "leave" else a.remove("c"))
        gone = "a" if call == "leave" else "c"
        while gone in b.members:
            await asyncio.sleep(0)
        await (a.leave() if call == "leave" else a.remove("c"))
        for node in nodes:
            with suppress(NotMember):
                await node.close()

    run(main)


def test_a_join_that_is_cancelled_anywhere_leaves_no_ghost():
    async def main() -> None:
        before, steps, cancelled = asyncio.all_tasks(), 0, True
        while cancelled:
            network = Memory()
            a, b = (build(network, name) for name in "ab")
            async with a, b:
                d = Node.join("d", ["a"], protocol="matrix", transport=network.at("d"), settings=QUICK)
                if not (cancelled := await cancel_after(steps, d.start())):
                    await d.leave()
                    await d.close()
                while "d" in a.members or "d" in b.members or a.status().joining:
                    await asyncio.sleep(0)
                await a.send("b", b"go on")
                (await b.receive()).ack()
            await check_nothing_left(before)
            steps += 1 + steps // 4
        assert steps > 5

    run(main)


def test_a_timeout_round_close_ends_the_draining(tmp_path):
    async def main() -> None:
        network = Memory()
        a = build(network, "a", tmp_path / "a.db", settings=Settings(drain_s=600))
        await a.start()
        await a.send("b", b"which is not there")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await a.close()
        again = build(network, "a", tmp_path / "a.db", settings=Settings(drain_s=0))
        async with again:
            assert again.status().queued == {"b": 1}

    run(main)
