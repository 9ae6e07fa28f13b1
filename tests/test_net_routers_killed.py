"""Routers as real processes, killed with SIGKILL while messages pass: the short form of `benchmarks.chaos.routers`."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.chaos.routers import Wan, run


@pytest.mark.parametrize("f", [1, 2])
def test_a_separator_of_f_plus_1_routers_survives_f_that_are_killed(f, tmp_path):
    async def main() -> None:
        wan = Wan(tmp_path, seed=f, f=f)
        await wan.start()
        try:
            talking = asyncio.ensure_future(wan.talk(120))
            gone = [f"1.g{router + 1}" for router in range(f)]
            await asyncio.gather(*map(wan.kill, gone))
            await wan.remove(*gone)
            await talking
            await wan.settle()
        finally:
            await wan.stop()
        assert wan.judge().ok, wan.judge()

    asyncio.run(main())


def test_routers_are_killed_come_back_and_are_replaced(tmp_path):
    told = asyncio.run(run(tmp_path, kills=4, messages=200, f=1, zones=2, seed=5))
    assert told["ok"], told
    assert told["restarts"], told
    assert told["joins"], told
