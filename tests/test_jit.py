"""Kernels compiled and interpreted, and the one hash table against a dictionary."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from antecede.jit import has_numba, interpret_kernels, is_compiling, native
from antecede.jit.hashtable import EMPTY, find, grown, insert, is_full, new_table, remove, table_of, value_at

WAYS = [
    pytest.param(True, id="interpreted"),
    pytest.param(False, id="compiled", marks=pytest.mark.skipif(not has_numba(), reason="needs Numba")),
]


@native
def add_one(values, at):
    values[at] += 1
    return values[at]


@native
def add_two(values, at):
    add_one(values, at)
    return add_one(values, at)


@pytest.mark.parametrize("plain", WAYS)
def test_a_kernel_calls_others_the_way_it_was_called(plain):
    values = np.zeros(2, np.int64)
    if plain:
        with interpret_kernels():
            assert not is_compiling()
            assert add_two(values, 1) == 2
    else:
        assert add_two(values, 1) == 2
        assert add_two.compiled.signatures
    assert values.tolist() == [0, 2]


TAKE_PART = """
import sys
import numpy as np
from antecede.jit.hashtable import fill, table_of

print("ready", flush=True)
sys.stdin.readline()
table_of(np.arange(9, dtype=np.int32), np.arange(9))
print(sum(fill.compiled.stats.cache_misses.values()))
"""


@pytest.mark.skipif(not has_numba(), reason="needs Numba")
def test_of_processes_that_begin_together_one_compiles(tmp_path):
    """Each worker of a first job on Spark used to compile everything."""
    command = [sys.executable, "-c", TAKE_PART]
    surroundings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sorted(int(process.communicate(timeout=300)[0]) for process in processes) == [0, 0, 1]


def test_interpreted_kernels_load_no_numba():
    script = """
import sys
from antecede.jit import interpret_kernels
from antecede.jit.hashtable import find, new_table
with interpret_kernels():
    find(new_table(1), 1, 1)
assert "numba" not in sys.modules
find(new_table(1), 1, 1)
assert "numba" in sys.modules
"""
    if not has_numba():
        pytest.skip("needs Numba")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize("plain", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_the_table_does_what_a_dictionary_does(seed, plain):
    chance = random.Random(seed)
    keys = [(chance.randrange(4), chance.choice((n, -n, 2**62 + n))) for n in range(200)]
    table, kept = new_table(4), dict[tuple[int, int], int]()

    def step(value):
        nonlocal table
        sender, number = chance.choice(keys)
        if is_full(table, len(kept)):
            table = grown(table)
        at = find(table, np.int64(sender), np.int64(number))
        assert value_at(table, at) == kept.get((sender, number), EMPTY)
        if (sender, number) not in kept:
            insert(table, at, np.int64(sender), np.int64(number), np.int64(value))
            kept[sender, number] = value
        elif chance.random() < 0.5:
            del kept[sender, number]
            remove(table, at)

    for value in range(600 if plain else 3000):
        if plain:
            with interpret_kernels():
                step(value)
        else:
            step(value)
    assert len(kept) > 50, f"seed {seed}"


def test_a_table_of_columns_gives_first_positions():
    table = table_of(np.array([1, 2, 1]), np.array([7, 7, 7]))
    assert [int(value_at(table, find(table, np.int32(s), np.int64(7)))) for s in (1, 2, 3)] == [0, 1, EMPTY]
